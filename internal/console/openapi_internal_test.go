package console

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/schemas"
)

// operation is one of schemas/openapi.yaml, as far as it is compared with the code.
type operation struct {
	ID         string `json:"operationId"`
	Summary    string
	Security   []map[string][]string
	Parameters []parameter
	Body       struct {
		Content map[string]struct {
			Schema struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	} `json:"requestBody"`
	Responses map[string]any
}

type parameter struct {
	Name, In string
	Ref      string `json:"$ref"`
	Schema   struct{ Enum []string }
}

// description is the document: its operations by method and path, and its parameters by what refers to them.
type description struct {
	operations map[string]operation
	parameters map[string]parameter
	security   []map[string][]string // unless an operation has its own
}

func readDescription(t *testing.T) description {
	t.Helper()
	text, err := fs.ReadFile(schemas.Files, "openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var raw struct {
		OpenAPI    string `json:"openapi"`
		Security   []map[string][]string
		Paths      map[string]map[string]json.RawMessage
		Components struct{ Parameters map[string]parameter }
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(asJSON, &raw)
	}
	if err != nil || !strings.HasPrefix(raw.OpenAPI, "3.1.") {
		t.Fatalf("openapi %q, %v", raw.OpenAPI, err)
	}
	d := description{map[string]operation{}, map[string]parameter{}, raw.Security}
	for name, p := range raw.Components.Parameters {
		d.parameters["#/components/parameters/"+name] = p
	}
	for path, methods := range raw.Paths {
		var shared []parameter
		if b := methods["parameters"]; b != nil {
			if err := json.Unmarshal(b, &shared); err != nil {
				t.Fatal(err)
			}
		}
		for method, b := range methods {
			if method == "parameters" {
				continue
			}
			var op operation
			if err := json.Unmarshal(b, &op); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			op.Parameters = append(op.Parameters, shared...)
			for i, p := range op.Parameters {
				if p.Ref != "" {
					op.Parameters[i] = d.parameters[p.Ref]
				}
			}
			d.operations[strings.ToUpper(method)+" "+path] = op
		}
	}
	return d
}

// Every address has a line in schemas/openapi.yaml, with its parts and the role that may ask, and the other way round.
func TestRoutesAreDescribed(t *testing.T) {
	d := readDescription(t)
	want := map[string]role{}
	for _, r := range (&Console{}).routes() {
		if strings.HasSuffix(r.pattern, "/api/{verb}") {
			for _, verb := range readVerbs {
				want["POST /api/"+verb] = r.least
			}
			continue
		}
		want[strings.TrimSuffix(r.pattern, "{$}")] = r.least
	}
	got, ids := map[string]role{}, map[string]bool{}
	for address, op := range d.operations {
		security := op.Security
		if security == nil {
			security = d.security
		}
		for _, s := range security {
			for scheme, roles := range s {
				if len(roles) != 1 || got[address] != "" && got[address] != role(roles[0]) {
					t.Errorf("%s: %s wants %v", address, scheme, roles)
				}
				got[address] = role(roles[0])
			}
		}
		if len(security) == 0 {
			got[address] = ""
		}
		if ids[op.ID] || op.ID == "" || op.Summary == "" || len(op.Responses) == 0 {
			t.Errorf("%s is %q, with the summary %q and %d responses", address, op.ID, op.Summary, len(op.Responses))
		}
		ids[op.ID] = true
		for _, p := range op.Parameters {
			if p.Name == "" {
				t.Errorf("%s has a parameter that isn't described", address)
			}
			if p.In == "path" != strings.Contains(address, "{"+p.Name+"}") {
				t.Errorf("%s: is %s in the path?", address, p.Name)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses and who may ask (-code +schemas/openapi.yaml):\n%s", diff)
	}
	types := d.operations["POST /runs/{run}/command"].Body.Content["application/x-www-form-urlencoded"].Schema.Properties["type"].Enum
	if diff := cmp.Diff(orders, types); diff != "" {
		t.Errorf("commands (-code +schemas/openapi.yaml):\n%s", diff)
	}
}

// What the code reads of a request is described, and what is described is read.
func TestFieldsAreDescribed(t *testing.T) {
	described := map[string]bool{}
	for _, op := range readDescription(t).operations {
		for _, p := range op.Parameters {
			described[p.Name] = described[p.Name] || p.In == "query"
		}
		for _, content := range op.Body.Content {
			for name := range content.Schema.Properties {
				described[name] = true
			}
		}
	}
	maps.DeleteFunc(described, func(_ string, is bool) bool { return !is })
	read := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if name := fieldOf(n); name != "" {
				read[name] = true
			}
			return true
		})
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(read)), slices.Sorted(maps.Keys(described))); diff != "" {
		t.Errorf("fields of requests (-code +schemas/openapi.yaml):\n%s", diff)
	}
}

// fieldOf is the field of a request that a call reads: r.FormValue("x"), number("x"), and Get("x") of values.
func fieldOf(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return ""
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	reads := false
	switch f := call.Fun.(type) {
	case *ast.Ident:
		reads = f.Name == "number"
	case *ast.SelectorExpr:
		of, _ := f.X.(*ast.Ident)
		reads = f.Sel.Name == "FormValue" || f.Sel.Name == "PostFormValue" || f.Sel.Name == "Get" && of != nil && slices.Contains([]string{"v", "f"}, of.Name)
	}
	name, err := strconv.Unquote(literal.Value)
	if err != nil || !reads {
		return ""
	}
	return name
}

// The parts of the page of a run that are described are those that it has.
func TestPartsAreDescribed(t *testing.T) {
	var described []string
	for _, p := range readDescription(t).operations["GET /runs/{run}/parts/{part}"].Parameters {
		if p.Name == "part" {
			described = p.Schema.Enum
		}
	}
	var has []string
	for _, made := range templates().Templates() {
		if part, is := strings.CutPrefix(made.Name(), "run-"); is {
			has = append(has, part)
		}
	}
	slices.Sort(described)
	slices.Sort(has)
	if diff := cmp.Diff(has, described); diff != "" {
		t.Errorf("parts of the page of a run (-code +schemas/openapi.yaml):\n%s", diff)
	}
}
