package work

import (
	"sync"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// callPhase is how far an open call has come.
type callPhase int

const (
	callActive callPhase = iota // at work, as far as is known
	callQueued                  // of a session that says of each call when it begins: it hasn't
	callAsked                   // waits for a decision
)

// rest tells from what an agent does whether it can't go on before a person has decided or
// answered: calls that it has made wait, and none is at work, or it has come to the end of its turn and has
// asked its parent.
type rest struct {
	mu    sync.Mutex
	says  bool                 // the session says of each call when it begins
	calls map[string]callPhase // open ones
	parks map[string]bool      // those that ask a person, and can wait without the agent
	asked []string             // ids of messages to the parent
	idle  bool                 // the turn has come to its end
}

// restOf is how an execution begins, or goes on. Agents that go on from the log have the
// calls that were open.
func restOf(s *wire.State, r *agent.Request, can agent.Capabilities, goesOn bool) *rest {
	t := &rest{says: can.SaysBegin, asked: append([]string(nil), r.Asked...)}
	if !goesOn {
		return t
	}
	t.idle = true
	for _, c := range run.OpenCalls(s, r.NodeID, r.ExecID) {
		if c.State != wire.ToolExecuting || c.Idempotent || r.Host.Has(agent.CallProgram(c.CallID)) { // others were sealed
			t.noteState(c.CallID, c.State)
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
		t.noteState(e.CallID, wire.ToolPending)
	case *wire.ToolState:
		t.noteState(e.CallID, p.To)
	case *wire.PermissionRequired:
		t.noteCall(e.CallID, callAsked)
		t.parks[e.CallID] = own && p.ToolName == ask.Tool
	case *wire.PermissionDecided:
		t.noteCall(e.CallID, callActive)
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

func (t *rest) noteState(id string, state wire.ToolCallState) {
	switch {
	case state == wire.ToolApprovalRequired:
		t.noteCall(id, callAsked)
	case state == wire.ToolPending && t.says:
		t.noteCall(id, callQueued)
	default:
		t.noteCall(id, callActive)
	}
}

func (t *rest) noteCall(id string, phase callPhase) {
	if t.calls == nil {
		t.calls, t.parks = map[string]callPhase{}, map[string]bool{}
	}
	t.calls[id] = phase
}

func (t *rest) isResting() bool {
	waits := false
	for _, phase := range t.calls {
		if phase == callActive {
			return false
		}
		waits = waits || phase == callAsked
	}
	return waits || len(t.calls) == 0 && t.idle && len(t.asked) > 0
}

// isParked reports whether the agent does nothing but wait for answers to calls that ask a
// person.
func (t *rest) isParked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, phase := range t.calls {
		if phase != callAsked || !t.parks[id] {
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
