//go:build mutants

package mutants_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// patience is how long a test may take with a mutant. One that takes longer has
// noticed only if it is much faster without: it waits for what never comes.
var patience = flag.Duration("patience", time.Minute, "how long a test may take")

// muchFaster is how much faster that is.
const muchFaster = 6

// TestMutants runs, for each mutant, the test that it names: without it, where it
// must pass, and with it, where it must fail. The mutated file replaces the one of
// the tree in the build only (go build -overlay).
func TestMutants(t *testing.T) {
	var caught table
	t.Cleanup(func() { t.Logf("\n%s", &caught) })
	ctx, intact := t.Context(), newPasses(t.TempDir())
	for _, m := range all(t) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			usual, err := intact.of(ctx, m)
			if err != nil {
				t.Fatalf("without the mutant: %v", err)
			}
			began := time.Now()
			verdict := m.run(t, usual)
			caught.add(row{m, verdict, time.Since(began)})
			if verdict == noticed {
				t.Logf("caught by %s in %.1f s", m.test, time.Since(began).Seconds())
			} else {
				t.Errorf("rule %s, %s: %s in %s: %s", m.rule, m.text, m.test, m.pkg, verdict)
			}
		})
	}
}

// noticed is the verdict of a test that failed as it should.
const noticed = "caught"

// run builds the mutant's package with it and runs its test, which takes as long as
// usual without it.
func (m mutant) run(t *testing.T, usual time.Duration) (verdict string) {
	src, err := m.source()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mutated := filepath.Join(dir, "mutated.go")
	if err := os.WriteFile(mutated, src, 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	replaced := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replaced, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "package.test")
	if out, err := build(t.Context(), m.pkg, binary, "-overlay", replaced); err != nil {
		return fmt.Sprintf("doesn't compile, which says nothing: %v\n%s", err, out)
	}
	out, err := run(t.Context(), m.pkg, binary, m.test)
	switch {
	case err == nil:
		return "survived"
	case bytes.Contains(out, []byte("panic: natstest: ")): // hours of a bubble have passed
		return noticed
	case bytes.Contains(out, []byte("panic: test timed out")):
		if usual*muchFaster < *patience {
			return noticed
		}
		return fmt.Sprintf("timed out, but it takes %s anyway", usual)
	case !bytes.Contains(out, []byte("--- FAIL: "+m.test+" ")):
		return fmt.Sprintf("failed in another way: %v\n%s", err, tail(out))
	}
	return noticed
}

// build makes the test binary of a package.
func build(ctx context.Context, pkg, binary string, flags ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-c", "-o", binary}, flags, []string{pkg})...)
	cmd.Dir = root
	return cmd.CombinedOutput()
}

// run runs a test of a package in its folder.
func run(ctx context.Context, pkg, binary, test string) ([]byte, error) {
	dir := filepath.Join(root, filepath.FromSlash(pkg))
	args := []string{"-test.run", "^" + strings.ReplaceAll(test, "/", "$/^") + "$", "-test.timeout", patience.String(), "-test.count", "1", "-test.v"}
	if generates(dir) { // the example that fails is of no use, and must not be kept beside the test
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime", "1s")
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	return cmd.CombinedOutput()
}

// generates reports whether a test is of a package whose tests generate their input.
func generates(dir string) bool {
	paths, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is well formed
	return slices.ContainsFunc(paths, func(path string) bool {
		src, err := os.ReadFile(path)
		return err == nil && bytes.Contains(src, []byte(`"pgregory.net/rapid"`))
	})
}

// tail returns the last lines of an output.
func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }

// passes knows which tests pass without a mutant.
type passes struct {
	dir    string
	mu     sync.Mutex
	builds map[string]func() (string, error)        // by package
	tests  map[string]func() (time.Duration, error) // by package and test
}

func newPasses(dir string) *passes {
	return &passes{dir: dir, builds: map[string]func() (string, error){}, tests: map[string]func() (time.Duration, error){}}
}

// of returns how long the mutant's test takes without it. It fails if the test
// does.
func (p *passes) of(ctx context.Context, m mutant) (time.Duration, error) {
	p.mu.Lock()
	if p.builds[m.pkg] == nil {
		binary := filepath.Join(p.dir, strings.ReplaceAll(m.pkg[2:], "/", "-")+".test")
		p.builds[m.pkg] = sync.OnceValues(func() (string, error) {
			out, err := build(ctx, m.pkg, binary)
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			return binary, err
		})
	}
	built, key := p.builds[m.pkg], m.pkg+" "+m.test
	if p.tests[key] == nil {
		p.tests[key] = sync.OnceValues(func() (time.Duration, error) {
			binary, err := built()
			if err != nil {
				return 0, err
			}
			began := time.Now()
			out, err := run(ctx, m.pkg, binary, m.test)
			if err != nil || !bytes.Contains(out, []byte("--- PASS: "+m.test+" ")) {
				return 0, fmt.Errorf("%s doesn't pass: %w\n%s", m.test, err, tail(out))
			}
			return time.Since(began), nil
		})
	}
	passed := p.tests[key]
	p.mu.Unlock()
	return passed()
}

// table lists what caught the mutants.
type table struct {
	mu   sync.Mutex
	rows []row
}

type row struct {
	m       mutant
	verdict string
	took    time.Duration
}

func (b *table) add(r row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = append(b.rows, r)
}

// String implements [fmt.Stringer].
func (b *table) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortFunc(b.rows, func(x, y row) int { return strings.Compare(x.m.name, y.m.name) })
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprint(w, "mutant\tby\tverdict\tseconds\n")
	for _, r := range b.rows {
		verdict, _, _ := strings.Cut(r.verdict, "\n")
		_, _ = fmt.Fprintf(w, "%s\t%s %s\t%s\t%.1f\n", r.m.name, r.m.pkg, r.m.test, verdict, r.took.Seconds())
	}
	_ = w.Flush() // a builder takes everything
	return s.String()
}
