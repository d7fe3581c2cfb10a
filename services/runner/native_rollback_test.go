package runner_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// A native agent whose session goes back to before its interrupted calls is told of them, also where the runner that took it
// back has died before it said so; what ended before them stays.
func TestNativeRolledBack(t *testing.T) {
	source := shared(strings.Replace(written, "requireApproval: [write]}", "}, policy: {interrupted: rollback}", 1))
	for _, again := range []string{"", "agent_resumed"} {
		t.Run("killed before "+again, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				folder := t.TempDir()
				script := &apitest.Script{Replies: []apitest.Reply{
					apitest.Message(apitest.Call("t0", "glob", `{"pattern":"x"}`)),
					apitest.Message(apitest.Call("t1", "write", `{"path":"f","content":"F"}`), apitest.Call("t2", "write", `{"path":"g","content":"G"}`)),
					apitest.Message(apitest.Text("Written.")),
				}}
				killed := func(id, before string, begin func()) {
					r, cut := b.native(id, folder, script), make(chan struct{})
					r.gate.before(before, func() { r.gate.close(); close(cut) })
					begin()
					<-cut
					r.kill()
				}
				killed("r1", "f: created", func() { b.submit("run1", source) })
				if again != "" {
					killed("r2", again, func() {})
				}
				b.native("r3", folder, script)
				state, entries := b.ended("run1")
				requests := script.Requests()
				if len(requests) != 3 || state.Outputs["a"].TextAt("text") != "Written." {
					t.Fatalf("%d requests, output %s:\n%s", len(requests), state.Outputs["a"], story(entries))
				}
				last := string(requests[2])
				for _, told := range []string{"No file matches.", `- write {\"content\":\"F\",\"path\":\"f\"}\n  The call was interrupted while it may have been running`, `\"path\":\"g\"}\n  The call was interrupted before it began`} {
					if !strings.Contains(last, told) {
						t.Errorf("%q isn't told: %s", told, last)
					}
				}
				if strings.Contains(last, `"content":"F","path":"f"},"name"`) {
					t.Errorf("the call is in the session: %s", last)
				}
				if n := count(entries, wire.TypeLogTruncated); n != 1 || len(state.Tools) > 0 {
					t.Errorf("taken back %d times, open calls %v", n, state.Tools)
				}
				if n := count(entries, wire.TypeToolSealed); n != 2 {
					t.Errorf("%d calls are sealed:\n%s", n, story(entries))
				}
			})
		})
	}
}
