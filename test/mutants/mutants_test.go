package mutants_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// root is the folder of the module.
const root = "../.."

// mutant is a file of testdata/*.txtar: what is wrong with it, and then
//
//	rule: 2
//	test: ./internal/eventlog TestClaim
//	-- internal/eventlog/claim.go --
//	lines that occur once in the file
//	-- instead --
//	lines that replace them
//
// The rule is one of testdata/rules.txt. The test is one, of a package, that must
// fail, or its sub-test of a file in testdata, as TestHistories/usage.
type mutant struct {
	name     string
	text     string
	rule     string
	pkg      string
	test     string
	file     string // below root
	old, new []byte
}

func parse(path string) (mutant, error) {
	m := mutant{name: strings.TrimSuffix(filepath.Base(path), ".txtar")}
	a, err := txtar.ParseFile(path)
	if err != nil {
		return m, err
	}
	text, fields, _ := strings.Cut(string(a.Comment), "\n\n")
	m.text = text
	for line := range strings.Lines(fields) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "rule":
			m.rule = value
		case "test":
			m.pkg, m.test, _ = strings.Cut(value, " ")
		default:
			return m, fmt.Errorf("unknown field %q", key)
		}
	}
	if len(a.Files) != 2 || a.Files[1].Name != "instead" || len(a.Files[0].Data) == 0 {
		return m, errors.New("wants two parts: a file with the lines to replace, and instead")
	}
	if m.text == "" || m.rule == "" || !strings.HasPrefix(m.test, "Test") {
		return m, errors.New("wants a text, a rule and a test")
	}
	m.file, m.old, m.new = a.Files[0].Name, a.Files[0].Data, a.Files[1].Data
	return m, nil
}

// source returns the mutated file.
func (m mutant) source() ([]byte, error) {
	src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(src, m.old); n != 1 {
		return nil, fmt.Errorf("the lines to replace occur %d times in %s, want once: has the code moved on?", n, m.file)
	}
	if bytes.Equal(m.old, m.new) {
		return nil, errors.New("nothing is replaced")
	}
	return bytes.Replace(src, m.old, m.new, 1), nil
}

// all returns the mutants.
func all(t *testing.T) []mutant {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	var list []mutant
	for _, path := range paths {
		m, err := parse(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		list = append(list, m)
	}
	return list
}

// TestMutantsApply fails if a mutant doesn't fit the code any more, or names a
// test that isn't there. Whether the tests notice is shown by `make mutants`.
func TestMutantsApply(t *testing.T) {
	tests := map[string]map[string]bool{}
	for _, m := range all(t) {
		src, err := m.source()
		if err == nil {
			_, err = parser.ParseFile(token.NewFileSet(), m.file, src, parser.SkipObjectResolution)
		}
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if tests[m.pkg] == nil {
			tests[m.pkg] = testsOf(t, m.pkg)
		}
		name, file, sub := strings.Cut(m.test, "/")
		if !tests[m.pkg][name] || sub && !hasFile(m.pkg, file) {
			t.Errorf("%s: %s has no test %s", m.name, m.pkg, m.test)
		}
	}
}

// hasFile reports whether the testdata of a package has a file after which a
// sub-test is named.
func hasFile(pkg, name string) bool {
	paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "testdata", "*", name+".txtar"))
	return err == nil && len(paths) == 1
}

// testsOf returns the names of the tests of a package.
func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names, declaration := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range declaration.FindAllSubmatch(src, -1) {
			names[string(found[1])] = true
		}
	}
	return names
}

// lastRule is the number of the last rule of the log.
const lastRule = 26

// TestEveryRuleHasAMutant fails if a rule is neither switched off by a mutant nor
// said to have no code, and if it is both.
func TestEveryRuleHasAMutant(t *testing.T) {
	coded := rules(t)
	for n := 1; n <= lastRule; n++ {
		if _, ok := coded[fmt.Sprint(n)]; !ok {
			t.Errorf("rules.txt says nothing of rule %d", n)
		}
	}
	mutants := map[string]int{}
	for _, m := range all(t) {
		mutants[m.rule]++
		if _, ok := coded[m.rule]; !ok {
			t.Errorf("%s: rules.txt has no rule %q", m.name, m.rule)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(coded)) {
		if has := mutants[rule] > 0; has != coded[rule] {
			t.Errorf("rule %s has %d mutants, and rules.txt says that there is code to switch off: %t", rule, mutants[rule], coded[rule])
		}
	}
}

// rules returns the rules of testdata/rules.txt, and whether there is code to
// switch off.
func rules(t *testing.T) map[string]bool {
	t.Helper()
	f, err := os.Open("testdata/rules.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	coded := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		rule, text, _ := strings.Cut(lines.Text(), " ")
		if rule == "" || rule == "#" {
			continue
		}
		coded[rule] = coded[rule] || !strings.HasSuffix(text, "]")
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return coded
}
