//go:build mutants

package mutants_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

var (
	sampleSize = flag.Int("sample", 50, "how many mutants TestOperators makes")
	sampleSeed = flag.Uint64("sample-seed", 1, "which ones it makes")
	sampleSite = flag.String("sample-site", "", "only this one, as \"operator file:line:column\"")
)

// caughtShare is the share of mutants by operator that the tests have to catch.
const caughtShare = 0.9

// room is a folder that TestOperators mutates, with the packages whose tests judge it.
type room struct {
	dir   string
	tests []string
}

// rooms are those that hold the log and what is derived from it.
var rooms = []room{
	{"internal/eventlog", []string{"./internal/eventlog"}},
	{"internal/lease", []string{"./internal/lease", "./services/runner"}},
	{"internal/projection", []string{"./internal/projection", "./services/snapshotter"}},
	{"services/alerter", []string{"./services/alerter"}},
	{"services/recorder", []string{"./services/recorder"}},
	{"services/recorder/archive", []string{"./services/recorder/archive", "./services/recorder"}},
	{"services/recorder/index", []string{"./services/recorder/index", "./services/recorder"}},
	{"services/recorder/retention", []string{"./services/recorder"}},
	{"services/runner/intake", []string{"./services/runner"}},
	{"services/runner/owner", []string{"./services/runner/owner", "./services/runner"}},
	{"services/runner/work", []string{"./services/runner/work", "./services/runner"}},
}

// site is a place in the source and what an operator makes of it.
type site struct {
	operator string
	file     string // below root
	pos      token.Position
	edits    []edit
}

// edit replaces the bytes from one offset to another.
type edit struct {
	from, to int
	text     string
}

func (s site) String() string {
	return fmt.Sprintf("%s %s:%d:%d", s.operator, s.file, s.pos.Line, s.pos.Column)
}

// TestOperators mutates the code at random sites, the same for a seed, and wants most of the
// mutants caught by the tests of their rooms. One that doesn't compile is replaced by another.
func TestOperators(t *testing.T) {
	r := rand.New(rand.NewPCG(*sampleSeed, 0)) // a choice that can be made again
	var report strings.Builder
	w := tabwriter.NewWriter(&report, 0, 0, 2, ' ', 0)
	made, caught := 0, 0
	for made < *sampleSize {
		in := rooms[made%len(rooms)]
		m := pick(r, sitesOf(t, in.dir))
		if *sampleSite != "" {
			in, m = siteNamed(t, *sampleSite)
		}
		began := time.Now()
		verdict := m.try(t, in.tests)
		if verdict == uncompiled && *sampleSite == "" {
			continue
		}
		made++
		if verdict == noticed {
			caught++
		}
		t.Logf("%s: %s in %.0f s", m, verdict, time.Since(began).Seconds())
		_, _ = fmt.Fprintf(w, "%s\t%s\n", m, verdict)
		if *sampleSite != "" {
			return
		}
	}
	_ = w.Flush()
	t.Logf("%d of %d caught\n%s", caught, made, &report)
	if float64(caught) < caughtShare*float64(made) {
		t.Errorf("%d of %d mutants were caught, want %.0f %%", caught, made, 100*caughtShare)
	}
}

// pick chooses an operator first, so that none drowns in another's sites.
func pick(r *rand.Rand, sites []site) site {
	var operators []string
	for _, s := range sites {
		if !slices.Contains(operators, s.operator) {
			operators = append(operators, s.operator)
		}
	}
	operator := operators[r.IntN(len(operators))]
	sites = slices.DeleteFunc(slices.Clone(sites), func(s site) bool { return s.operator != operator })
	return sites[r.IntN(len(sites))]
}

func siteNamed(t *testing.T, name string) (room, site) {
	t.Helper()
	for _, r := range rooms {
		for _, s := range sitesOf(t, r.dir) {
			if s.String() == name {
				return r, s
			}
		}
	}
	t.Fatalf("there is no site %q", name)
	return room{}, site{}
}

// uncompiled is the verdict on what says nothing about the tests.
const uncompiled = "doesn't compile"

// try runs the tests of a room with the mutant: the short ones, and if they don't notice, all.
func (s site) try(t *testing.T, tests []string) string {
	overlay, err := s.overlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"-short"}, nil} {
		for _, pkg := range tests {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			args := slices.Concat([]string{"test", "-overlay", overlay, "-failfast", "-count=1", "-timeout", "15m"}, flags, []string{pkg})
			cmd := exec.CommandContext(ctx, "go", args...)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
			out, err := cmd.CombinedOutput()
			cancel()
			switch {
			case bytes.Contains(out, []byte("[build failed]")):
				return uncompiled
			case err != nil:
				return noticed
			}
		}
	}
	return "survived"
}

func (s site) overlay(dir string) (string, error) {
	src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(s.file)))
	if err != nil {
		return "", err
	}
	slices.SortFunc(s.edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range s.edits {
		src = slices.Concat(src[:e.from], []byte(e.text), src[e.to:])
	}
	path, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(s.file)))
	if err != nil {
		return "", err
	}
	mutated, replaced := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(mutated, src, 0o600); err != nil {
		return "", err
	}
	return replaced, os.WriteFile(replaced, fmt.Appendf(nil, `{"Replace":{%q:%q}}`, path, mutated), 0o600)
}

// sitesOf lists what can be mutated in a folder and those below it.
func sitesOf(t *testing.T, dir string) (sites []site) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f := &source{name: filepath.ToSlash(rel), text: src, files: token.NewFileSet()}
		tree, err := parser.ParseFile(f.files, path, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			sites = append(sites, f.sites(n)...)
			return true
		})
		return nil
	})
	if err != nil || len(sites) == 0 {
		t.Fatalf("no sites in %s: %v", dir, err)
	}
	return sites
}

// source is a file that is looked at for sites.
type source struct {
	name  string
	text  []byte
	files *token.FileSet
}

// sites returns what the operators make of a node.
func (f *source) sites(n ast.Node) (sites []site) {
	add := func(operator string, at ast.Node, edits ...edit) {
		sites = append(sites, site{operator, f.name, f.files.Position(at.Pos()), edits})
	}
	switch n := n.(type) {
	case *ast.IfStmt:
		add("negate", n.Cond, f.replace(n.Cond, "!("+f.print(n.Cond)+")"))
		add("drop", n.Cond, f.replace(n.Cond, "false && ("+f.print(n.Cond)+")"))
	case *ast.BinaryExpr:
		if other := offByOne[n.Op]; other != token.ILLEGAL {
			add("off by one", n, f.replace(n, f.print(n.X)+" "+other.String()+" "+f.print(n.Y)))
		}
	case *ast.BasicLit:
		if v, err := strconv.Atoi(n.Value); err == nil && n.Kind == token.INT && v < 100 {
			add("off by one", n, f.replace(n, strconv.Itoa(v+1)))
		}
	case *ast.ReturnStmt:
		if len(n.Results) == 0 {
			break
		}
		if last, ok := n.Results[len(n.Results)-1].(*ast.Ident); ok && last.Name == "err" {
			add("swallow", n, f.replace(last, "nil"))
		}
	case *ast.BlockStmt:
		for i := 1; i < len(n.List); i++ {
			if a, b := n.List[i-1], n.List[i]; acts(a) && acts(b) || acts(a) && assigns(b) || assigns(a) && acts(b) {
				add("reorder", a, f.replace(a, f.print(b)), f.replace(b, f.print(a)))
			}
		}
	}
	return sites
}

// offByOne are the comparisons that a step apart makes of others.
var offByOne = map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}

// acts reports whether a statement does something that an order can matter for. Two assignments in another order,
// or two keys that are deleted, are the same program.
func acts(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, ok := call.Fun.(*ast.Ident)
		return !ok || name.Name != "delete"
	case *ast.IfStmt: // if err := write(); err != nil
		return s.Init != nil
	}
	return false
}

func assigns(s ast.Stmt) bool {
	a, ok := s.(*ast.AssignStmt)
	return ok && a.Tok != token.DEFINE
}

func (f *source) replace(n ast.Node, text string) edit {
	return edit{f.files.Position(n.Pos()).Offset, f.files.Position(n.End()).Offset, text}
}

// print returns the source of a node.
func (f *source) print(n ast.Node) string {
	e := f.replace(n, "")
	return string(f.text[e.from:e.to])
}
