package native_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// TestOrder has a call of a message wait until all that could run beside it has done so. What the
// calls find shows that a call which changes something runs alone, and that others don't.
func TestOrder(t *testing.T) {
	write := apitest.Call("write", "write", `{"path":"f","content":"new"}`)
	bash := apitest.Call("bash", "bash", `{"command":"cat f && echo new > f"}`)
	read := apitest.Call("read", "read", `{"path":"f"}`)
	glob := apitest.Call("glob", "glob", `{"pattern":"*"}`)
	run := func(id string) apitest.Block { return apitest.Call(id, "run_flow", `{"flow":"work"}`) }
	for _, test := range []struct {
		name  string
		calls []apitest.Block
		waits string // the call that does
		want  string // in the order of their ends
	}{
		{"read after write", []apitest.Block{write, read}, "write", "write: f: modified, 3 bytes | read: 1\tnew"},
		{"read after bash", []apitest.Block{bash, read}, "bash", "bash: old | read: 1\tnew"},
		{"write after read", []apitest.Block{read, write}, "read", "read: 1\told | write: f: modified, 3 bytes"},
		{"write after all", []apitest.Block{read, glob, write}, "read", "glob: f | read: 1\told | write: f: modified, 3 bytes"},
		{"bash after write", []apitest.Block{write, bash}, "write", "write: f: modified, 3 bytes | bash: new"},
		{"past a change", []apitest.Block{write, glob, bash, read}, "write", "write: f: modified, 3 bytes | glob: f | bash: new | read: 1\tnew"},
		{"past a call of no tool", []apitest.Block{write, apitest.Call("fly", "fly", `{}`), read}, "write", "fly: Tool not found: fly | write: f: modified, 3 bytes | read: 1\tnew"},
		{"reads together", []apitest.Block{read, glob}, "read", "glob: f | read: 1\told"},
		{"read after flow", []apitest.Block{run("a"), read}, "a", "a: old | read: 1\tflow"},
		{"flow after read", []apitest.Block{read, run("a")}, "read", "read: 1\told | a: old"},
		{"flow after write", []apitest.Block{write, run("a")}, "write", "write: f: modified, 3 bytes | a: new"},
		{"write after flow", []apitest.Block{run("a"), write}, "a", "a: old | write: f: modified, 3 bytes"},
		{"flows together", []apitest.Block{run("a"), run("b")}, "a", "b: old | a: flow"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, apitest.Message(test.calls...), apitest.Message(apitest.Text("Done.")))
				b.file("f", "old")
				wait := func(call string) {
					if call == test.waits {
						synctest.Wait()
					}
				}
				b.request.Options.RequireApproval = []string{test.waits}
				b.request.Options.Decide = func(_ context.Context, p agent.Permission) agent.Verdict {
					wait(p.CallID)
					<-time.After(time.Minute)
					return agent.Verdict{Allow: true, By: "operator"}
				}
				b.request.Flows = []flow.Child{{Name: "work"}}
				b.request.RunFlow = func(_ context.Context, call, _ string, _ wire.Raw) (agent.Part, error) {
					wait(call)
					f := filepath.Join(b.request.Options.Cwd, "f")
					found, err := os.ReadFile(f)
					if err == nil {
						err = os.WriteFile(f, []byte("flow"), 0o600)
					}
					return agent.Part{Output: wire.RawString(string(found))}, err
				}
				events := b.run()
				ends := make([]string, 0, len(test.calls))
				for _, e := range events {
					if p, ok := e.Payload.(*wire.AgentTool); ok {
						out, _ := p.ToolOutput.Text()
						if *p.DurationMs >= time.Minute.Milliseconds() {
							t.Errorf("%s took %d ms: it has waited for %s", e.CallID, *p.DurationMs, test.waits)
						}
						ends = append(ends, e.CallID+": "+strings.TrimSpace(out))
					}
				}
				if diff := cmp.Diff(test.want, strings.Join(ends, " | ")); diff != "" || outcome(events) != "Done." {
					t.Errorf("outcome %q, calls (-want +got):\n%s", outcome(events), diff)
				}
			})
		})
	}
}
