package schemas_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// conformance is the document, from here.
const conformance = "../docs/conformance.md"

// areas are what a row may be open for.
var areas = []string{"recorder", "alerter", "native agent", "Kubernetes"}

// TestConformance fails if a row of docs/conformance.md is there twice, names a
// test that doesn't exist, or is neither proven nor open.
func TestConformance(t *testing.T) {
	rows := conformanceRows(t)
	seen := map[string]bool{}
	open := map[string]int{}
	proven := 0
	for _, row := range rows {
		if seen[row.id] {
			t.Errorf("row %s is there twice", row.id)
		}
		seen[row.id] = true
		if row.text == "" {
			t.Errorf("row %s says nothing", row.id)
		}
		if area, is := strings.CutPrefix(row.proof, "open: "); is {
			if !slices.Contains(areas, area) {
				t.Errorf("row %s is open for %q, not one of %q", row.id, area, areas)
			}
			open[area]++
			continue
		}
		proven++
		for proof := range strings.SplitSeq(row.proof, ", ") {
			name, found := strings.CutSuffix(strings.TrimPrefix(proof, "`"), "`")
			if !found || len(proof) != len(name)+2 {
				t.Errorf("row %s is neither proven nor open: %q", row.id, proof)
			} else if problem := provable(t, name); problem != "" {
				t.Errorf("row %s: %s: %s", row.id, name, problem)
			}
		}
	}
	for _, want := range features() {
		if !seen[want] {
			t.Errorf("row %s is missing", want)
		}
	}
	if len(rows) != len(features()) {
		t.Errorf("%d rows for %d features", len(rows), len(features()))
	}
	t.Logf("%d rows: %d proven, %d open", len(rows), proven, len(rows)-proven)
	for _, area := range slices.Sorted(maps.Keys(open)) {
		t.Logf("open for %s: %d", area, open[area])
	}
}

// features are the rows that the document has to have: prefix, first, last.
func features() []string {
	var ids []string
	for _, series := range []struct {
		prefix   string
		from, to int
	}{
		{"A0.", 1, 36},
		{"A1.", 1, 20},
		{"A2.", 1, 17},
		{"A3.", 1, 16},
		{"A4.", 1, 13},
		{"P", 1, 7},
		{"F", 1, 18},
		{"N", 7, 12},
		{"D-DET.A", 1, 15},
		{"S", 1, 16},
		{"H", 1, 2},
		{"C", 1, 7},
		{"K", 1, 13},
		{"Q", 1, 9},
	} {
		for n := series.from; n <= series.to; n++ {
			ids = append(ids, series.prefix+strconv.Itoa(n))
		}
	}
	return ids
}

type conformanceRow struct{ id, text, proof string }

func conformanceRows(t *testing.T) []conformanceRow {
	t.Helper()
	text, err := os.ReadFile(conformance)
	if err != nil {
		t.Fatal(err)
	}
	var rows []conformanceRow
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| row |") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 {
			t.Errorf("not three cells: %s", line)
			continue
		}
		rows = append(rows, conformanceRow{strings.TrimPrefix(cells[0], "| "), cells[1], strings.TrimSuffix(cells[2], " |")})
	}
	if len(rows) == 0 {
		t.Fatal("there are no rows")
	}
	return rows
}

var named = regexp.MustCompile(`^([a-z/_0-9]+_test\.go):(Test\w+)(?:/(\w+))?$`)

// provable returns what is wrong with the name of a test: a script, or a function
// of a file, with the case of testdata that it runs.
func provable(t *testing.T, name string) string {
	t.Helper()
	if script, is := strings.CutSuffix(name, ".txtar"); is {
		if filepath.Dir(script) != "cmd/wake/testdata/script" {
			return "no script is run from there"
		}
		if _, err := os.Stat(filepath.Join("..", name)); err != nil {
			return "there is no such script"
		}
		return ""
	}
	parts := named.FindStringSubmatch(name)
	if parts == nil {
		return "it is the name of no test"
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", parts[1]), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err.Error()
	}
	if slices.ContainsFunc(file.Comments, func(c *ast.CommentGroup) bool { return strings.HasPrefix(c.List[0].Text, "//go:build") }) {
		return "the file is built only where somebody asks for it"
	}
	if !slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, is := d.(*ast.FuncDecl)
		return is && f.Recv == nil && f.Name.Name == parts[2]
	}) {
		return "the file has no such test"
	}
	if parts[3] == "" {
		return ""
	}
	dir := filepath.Join("..", filepath.Dir(parts[1]), "testdata")
	for _, pattern := range []string{parts[3] + ".*", "*/" + parts[3] + ".*"} {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err == nil && len(found) > 0 {
			return ""
		}
	}
	return "testdata has no such case"
}

// TestConformanceCanFail: names of nothing are told from names of tests.
func TestConformanceCanFail(t *testing.T) {
	for name, ok := range map[string]bool{
		"schemas/conformance_test.go:TestConformanceCanFail": true,
		"internal/flow/flow_test.go:TestRuns/f4_loop":        true,
		"cmd/wake/testdata/script/run.txtar":                 true,
		"schemas/conformance_test.go:TestNothing":            false,
		"schemas/none_test.go:TestConformance":               false,
		"internal/flow/flow_test.go:TestRuns/f99":            false,
		"internal/flow/flow_test.go":                         false,
		"cmd/wake/testdata/script/none.txtar":                false,
		"internal/run/testdata/tools.txtar":                  false,
		"TestConformance":                                    false,
	} {
		if problem := provable(t, name); (problem == "") != ok {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
