package work

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func about(call string, p wire.Payload) *wire.Event { return &wire.Event{CallID: call, Payload: p} }

func named(t *testing.T, field, p string) wire.Raw {
	t.Helper()
	raw, err := wire.Marshal(map[string]string{field: p})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Changes by others of files that the agent knows are told; its own, those of
// files it never looked at, and those outside of its folder are not.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	for _, p := range []string{dir + "/read.go", dir + "/own.go", dir + "/unknown.go", outside + "/secret"} {
		write(t, p, "one")
	}
	if err := os.Symlink(outside, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 100)
	f, err := watchFiles(dir, func(path, change string) { told <- fmt.Sprintf("%s %s", filepath.Base(path), change) })
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for call, p := range map[string]string{"c1": dir + "/read.go", "c2": "../" + filepath.Base(outside) + "/secret", "c3": "link/secret", "c4": "new.go"} {
		input := named(t, "file_path", p)
		f.observeEvent(about(call, &wire.ToolIntent{ToolName: "Read", ToolInput: input}))
		f.observeEvent(about(call, &wire.AgentTool{ToolName: "Read", ToolInput: input}))
	}
	// The agent writes a file itself.
	own := named(t, "file_path", "own.go")
	f.observeEvent(about("c5", &wire.ToolIntent{ToolName: "Write", ToolInput: own}))
	write(t, dir+"/own.go", "the agent's")
	f.observeEvent(about("c5", &wire.AgentTool{ToolName: "Write", ToolInput: own}))

	write(t, dir+"/unknown.go", "another")
	write(t, outside+"/secret", "another")
	expect := func(want string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			select {
			case got := <-told:
				if got == want {
					return
				}
				switch got {
				case "read.go modified", "new.go modified": // a write may be told in two steps
				default:
					t.Fatalf("told %q, want %q", got, want)
				}
			case <-deadline:
				t.Fatalf("nobody told %q", want)
			}
		}
	}
	write(t, dir+"/read.go", "somebody else's")
	expect("read.go modified")
	write(t, dir+"/new.go", "new")
	expect("new.go created")
	if err := os.Remove(dir + "/own.go"); err != nil {
		t.Fatal(err)
	}
	expect("own.go deleted")
}
