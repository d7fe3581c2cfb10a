package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// maxInit is how much memory a package of ours may take before main begins, in bytes.
const maxInit = 32 << 10

// TestStartIsCheap has no package make much before it is asked for it.
func TestStartIsCheap(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) { // init code.wake.dev/wake/internal/run @3.6 ms, 0.025 ms clock, 2232 bytes, 21 allocs
		what, rest, _ := strings.Cut(line, " @")
		name := strings.TrimPrefix(what, "init ")
		if name == line {
			continue
		}
		var at, clock float64
		var bytes int
		if n, err := fmt.Sscanf(rest, "%f ms, %f ms clock, %d bytes", &at, &clock, &bytes); n != 3 {
			t.Fatalf("%q: %v", line, err)
		}
		switch ours := strings.HasPrefix(name, "code.wake.dev/wake/"); {
		case ours && bytes > maxInit:
			t.Errorf("%s makes %d bytes before main begins: let what needs them make them (sync.OnceValue)", name, bytes)
		case ours:
			seen++
		}
	}
	if seen == 0 {
		t.Errorf("no package of wake in:\n%s", out)
	}
}

// A keeper begins before the large libraries that it doesn't need: each agent at work has two
// processes of this program, its keeper and its guard.
func TestKeeperStartsFirst(t *testing.T) {
	c := exec.Command(os.Args[0], "keeper")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := c.CombinedOutput()
	if err == nil {
		t.Fatal("a keeper without a runner goes on")
	}
	for _, library := range []string{"github.com/nats-io/nats-server/v2/server", "github.com/prometheus/client_golang/prometheus", "modernc.org/sqlite"} {
		if strings.Contains(string(out), "init "+library+" @") {
			t.Errorf("%s is initialised for each keeper", library)
		}
	}
	if !strings.Contains(string(out), "init ") {
		t.Errorf("nothing is initialised:\n%s", out)
	}
}
