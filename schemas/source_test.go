package schemas_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// source is what the sources of pkg/wire say about its types: the schemas and
// the documents repeat their comments, so that there is one place to write them.
type source struct {
	doc     map[string]string            // struct → its comment
	fields  map[string]map[string]string // struct → name in Go → comment
	elem    map[string]map[string]string // struct → name in Go → type of its items, or its own
	wire    map[string]map[string]string // payload → name on the wire → name in Go
	pointer map[string]map[string]bool   // struct → name in Go → whether it is a pointer
	tagged  map[string]bool              // structs with json tags
	payload map[string]string            // type of event → struct
	groups  []group
	values  map[string][]string // named string type → its constants
	verbs   []string            // the untyped constants Verb…
}

// group is a paragraph of the list of types.
type group struct {
	title string
	types []string
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{
		doc: map[string]string{}, fields: map[string]map[string]string{}, wire: map[string]map[string]string{},
		payload: map[string]string{}, values: map[string][]string{}, elem: map[string]map[string]string{}, tagged: map[string]bool{},
		pointer: map[string]map[string]bool{},
	}
	files, err := filepath.Glob("../pkg/wire/*.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]string{}
	returns := map[string]string{} // struct → constant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				s.readTypes(d)
				s.readConstants(d, constants)
			case *ast.FuncDecl:
				s.readMethod(d, returns)
			}
		}
	}
	for name, constant := range returns {
		s.payload[constants[constant]] = name
	}
	return s
}

func (s *source) readTypes(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		typ, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		name := typ.Name.Name
		s.doc[name] = clean(d.Doc.Text())
		body, ok := typ.Type.(*ast.StructType)
		if !ok {
			continue
		}
		s.fields[name], s.elem[name], s.pointer[name] = map[string]string{}, map[string]string{}, map[string]bool{}
		for _, field := range body.Fields.List {
			comment := clean(field.Doc.Text() + field.Comment.Text())
			_, pointer := field.Type.(*ast.StarExpr)
			for _, id := range field.Names {
				s.pointer[name][id.Name] = pointer
				s.fields[name][id.Name], s.elem[name][id.Name] = comment, elem(field.Type)
			}
			s.readTags(name, field)
		}
	}
}

// readTags reads the tags of a field, `wire:"model,required"` or `json:"model"`.
func (s *source) readTags(structName string, field *ast.Field) {
	if field.Tag == nil {
		return
	}
	text, _ := strconv.Unquote(field.Tag.Value)
	tag := reflect.StructTag(text)
	if _, ok := tag.Lookup("json"); ok {
		s.tagged[structName] = true
	}
	if onWire, _, _ := strings.Cut(tag.Get("wire"), ","); onWire != "" {
		if s.wire[structName] == nil {
			s.wire[structName] = map[string]string{}
		}
		s.wire[structName][onWire] = field.Names[0].Name
	}
}

// elem returns the name of a type, without pointers, arrays and maps.
func elem(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.StarExpr:
		return elem(x.X)
	case *ast.ArrayType:
		return elem(x.Elt)
	case *ast.MapType:
		return elem(x.Value)
	}
	return ""
}

// readConstants reads blocks of string constants; a comment inside that of Type
// begins a group.
func (s *source) readConstants(d *ast.GenDecl, constants map[string]string) {
	for _, spec := range d.Specs {
		c, ok := spec.(*ast.ValueSpec)
		if !ok || d.Tok != token.CONST || len(c.Values) != 1 {
			continue
		}
		lit, ok := c.Values[0].(*ast.BasicLit)
		if ok && strings.HasPrefix(c.Names[0].Name, "Verb") {
			verb, _ := strconv.Unquote(lit.Value)
			s.verbs = append(s.verbs, verb)
		}
		typ, named := c.Type.(*ast.Ident)
		if !ok || !named || lit.Kind != token.STRING {
			continue
		}
		value, _ := strconv.Unquote(lit.Value)
		constants[c.Names[0].Name] = value
		s.values[typ.Name] = append(s.values[typ.Name], value)
		if typ.Name != "Type" {
			continue
		}
		if c.Doc != nil {
			s.groups = append(s.groups, group{title: strings.TrimSuffix(clean(c.Doc.Text()), ".")})
		}
		last := &s.groups[len(s.groups)-1]
		last.types = append(last.types, value)
	}
}

// readMethod reads the methods Type of the payloads.
func (s *source) readMethod(d *ast.FuncDecl, returns map[string]string) {
	if d.Recv == nil {
		return
	}
	recv := d.Recv.List[0].Type
	if star, ok := recv.(*ast.StarExpr); ok {
		recv = star.X
	}
	name := recv.(*ast.Ident).Name
	if d.Name.Name != "Type" {
		return
	}
	if ret, ok := d.Body.List[len(d.Body.List)-1].(*ast.ReturnStmt); ok {
		if id, ok := ret.Results[0].(*ast.Ident); ok {
			returns[name] = id.Name
		}
	}
}

// comment returns the comment of a payload's field, by its name on the wire.
func (s *source) comment(structName, onWire string) string {
	return s.outside(s.fields[structName][s.wire[structName][onWire]])
}

var (
	link      = regexp.MustCompile(`\[\*?([\w.]+)\]`)
	described = strings.NewReplacer(
		"seeds/000", "the agent observability specification", "seeds/004", "the supervisor's specification",
		"[RunNode]", "_run", "[NoRun]", "_", "\n", " ",
	)
	inner = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*(\.[A-Z]\w*)?`)
)

// clean makes a comment fit to be read outside of Go.
func clean(comment string) string {
	return strings.TrimSpace(link.ReplaceAllString(described.Replace(strings.TrimSpace(comment)), "$1"))
}

// outside replaces names of Go by those of the wire: ParentPos by parentPos,
// ToolIntent by tool:intent, AgentError.ErrorType by agent:error.errorType.
func (s *source) outside(comment string) string {
	return inner.ReplaceAllStringFunc(comment, func(name string) string {
		structName, field, dotted := strings.Cut(name, ".")
		for typ, payload := range s.payload {
			if payload == structName && dotted {
				return typ + "." + s.onWire(payload, field)
			} else if payload == name {
				return typ
			}
		}
		for structName := range s.wire {
			if found := s.onWire(structName, name); found != name {
				return found
			}
		}
		return name
	})
}

// onWire returns the name of a field on the wire.
func (s *source) onWire(structName, inGo string) string {
	for onWire, name := range s.wire[structName] {
		if name == inGo {
			return onWire
		}
	}
	return inGo
}
