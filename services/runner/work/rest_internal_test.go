package work

import (
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// An agent that says of each call when it begins rests while one waits for a decision, whether others of its message come before or
// behind that; any other may be at work on these.
func TestRest(t *testing.T) {
	intent, required, decided := &wire.ToolIntent{}, &wire.PermissionRequired{}, &wire.PermissionDecided{}
	begins, ends := &wire.ToolState{To: wire.ToolExecuting}, &wire.AgentTool{}
	type step struct {
		call  string
		p     wire.Payload
		rests bool // the one that says when calls begin
		other bool
	}
	steps := []step{
		{"a", intent, false, false}, {"b", intent, false, false}, {"c", intent, false, false},
		{"a", begins, false, false}, {"b", required, false, false}, {"a", ends, true, false},
		{"b", decided, false, false}, {"b", begins, false, false}, {"b", ends, false, false},
		{"c", required, true, true}, {"c", decided, false, false}, {"c", ends, false, false},
	}
	for says, name := range map[bool]string{true: "says when calls begin", false: "doesn't"} {
		r := restOf(run.New("r"), &agent.Request{}, agent.Capabilities{SaysBegin: says}, false)
		for i, s := range steps {
			want := s.other
			if says {
				want = s.rests
			}
			if rests, _ := r.observeEvent(&wire.Event{CallID: s.call, Payload: s.p}); rests != want {
				t.Errorf("%s: behind step %d it rests: %t", name, i, rests)
			}
		}
	}
}
