package native_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/pkg/wire"
)

// TestQuestion asks the parent and ends once it is answered, not before; also if the
// agent dies while it waits.
func TestQuestion(t *testing.T) {
	for _, killed := range []bool{false, true} {
		b := newBench(t,
			apitest.Message(apitest.Call("q", "notify_parent", `{"message":"Which?","priority":"question"}`)),
			apitest.Message(apitest.Text("I wait.")),
			apitest.Message(apitest.Text("That one.")))
		b.each = func(s agent.Session, e *wire.Event) bool {
			if e.Type() != wire.TypeCheckpoint || e.Turn != 2 {
				return true
			}
			if killed {
				return false
			}
			for _, m := range []agent.Message{{Content: "Build passed.", Notice: true}, {Content: "The left one.", CommandID: "c", Answers: "q"}} {
				if err := s.Send(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
			return true
		}
		b.run()
		if killed {
			b.resume("")
			b.request.Asked = []string{"q"}
			b.each = func(s agent.Session, e *wire.Event) bool {
				if e.Type() == wire.TypeAgentInit {
					if err := s.Send(t.Context(), agent.Message{Content: "The left one.", Answers: "q"}); err != nil {
						t.Error(err)
					}
				}
				return true
			}
			b.run()
		}
		if got := outcome(b.log); got != "That one." {
			t.Fatalf("outcome %q", got)
		}
		p := of[*wire.CCMessage](b.log)
		if len(p) != 1 || p[0].Text != "Which?" || p[0].Priority != wire.PriorityQuestion {
			t.Errorf("told %+v", p)
		}
		if last := string(b.script.Requests()[2]); !strings.Contains(last, "The left one.") {
			t.Errorf("last request %s", last)
		}
	}
}
