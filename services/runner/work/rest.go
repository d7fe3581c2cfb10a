package work

import (
	"sync"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// rest tells from what an agent does whether it can't go on before a person has decided or
// answered: all calls that it has made wait, or it has come to the end of its turn and has
// asked its parent.
type rest struct {
	mu    sync.Mutex
	calls map[string]bool // open ones; true: waits for a decision
	parks map[string]bool // those that ask a person, and can wait without the agent
	asked []string        // ids of messages to the parent
	idle  bool            // the turn has come to its end
}

// restOf is how an execution begins, or goes on. Agents that go on from the log have the
// calls that were open.
func restOf(s *wire.State, r *agent.Request, goesOn bool) *rest {
	t := &rest{asked: append([]string(nil), r.Asked...)}
	if !goesOn {
		return t
	}
	t.idle = true
	for _, c := range run.OpenCalls(s, r.NodeID, r.ExecID) {
		if c.State != wire.ToolExecuting || c.Idempotent || r.Host.Has(agent.CallProgram(c.CallID)) { // others were sealed
			t.noteCall(c.CallID, c.State == wire.ToolApprovalRequired)
		}
	}
	return t
}

// observeEvent takes an event, and reports whether the agent rests, and whether the event says
// anything about that.
func (t *rest) observeEvent(e *wire.Event) (rests, tells bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := e.Parent == ""
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		t.noteCall(e.CallID, false)
	case *wire.ToolState:
		t.noteCall(e.CallID, p.To == wire.ToolApprovalRequired)
	case *wire.PermissionRequired:
		t.noteCall(e.CallID, true)
		t.parks[e.CallID] = own && p.ToolName == ask.Tool
	case *wire.PermissionDecided:
		t.noteCall(e.CallID, false)
	case *wire.AgentTool, *wire.ToolSealed:
		delete(t.calls, e.CallID)
		delete(t.parks, e.CallID)
	case *wire.CCMessage:
		if own && p.Priority != wire.PriorityInfo {
			t.asked = append(t.asked, e.CallID)
		}
	case *wire.AgentInit:
	case *wire.TurnStart, *wire.UserMessage:
		t.idle = t.idle && !own
	case *wire.TurnEnd:
		t.idle = t.idle || own
	case *wire.AgentMessage:
		t.idle = p.StopReason == "" || p.StopReason == "end_turn"
	default:
		return false, false
	}
	return t.isResting(), true
}

func (t *rest) noteCall(id string, waits bool) {
	if t.calls == nil {
		t.calls, t.parks = map[string]bool{}, map[string]bool{}
	}
	t.calls[id] = waits
}

func (t *rest) isResting() bool {
	for _, waits := range t.calls {
		if !waits {
			return false
		}
	}
	return len(t.calls) > 0 || t.idle && len(t.asked) > 0
}

// isParked reports whether the agent does nothing but wait for answers to calls that ask a
// person.
func (t *rest) isParked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, waits := range t.calls {
		if !waits || !t.parks[id] {
			return false
		}
	}
	return len(t.calls) > 0
}

// noteAnswer notes that the agent is given an answer: to one question, or with "" to all.
func (t *rest) noteAnswer(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.asked[:0]
	for _, q := range t.asked {
		if id != "" && q != id {
			kept = append(kept, q)
		}
	}
	t.asked = kept
}
