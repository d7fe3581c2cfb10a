package runner

import (
	"context"
	"sync"

	"wake/internal/agent"
	"wake/internal/ask"
	"wake/internal/run"
	"wake/pkg/wire"
)

// seat is the place of an execution among those that the runner works on at once. It is
// given to others while the agent can't go on: it waits for runs that it has started, which
// need places themselves, or for a person. It is taken again before the agent goes on, so
// that never more agents work than there are places; who waits to go on comes before what
// has not begun.
type seat struct {
	slots   slots
	resting slots           // of agents that wait for a person and have no place; full: the next ones keep theirs
	turn    chan struct{}   // has a token while somebody takes the place or gives it away
	halted  <-chan struct{} // closed when the agent is told to come to a safe point: for that it needs no place

	mu    sync.Mutex
	lent  int  // calls that wait for runs
	rests bool // the agent waits for a person
	held  bool // changed by who has the turn
}

func newSeat(s, resting slots) *seat {
	return &seat{slots: s, resting: resting, turn: make(chan struct{}, 1), held: true}
}

// free gives the place back when the execution is over.
func (s *seat) free() {
	s.turn <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rests {
		s.resting.free()
	}
	if s.held {
		s.slots.free()
	}
}

// rest says whether the agent waits for a person. When it doesn't any more, rest returns
// once it has its place again; it fails if ctx ends before, or the agent is halted.
func (s *seat) rest(ctx context.Context, rests bool) error {
	s.mu.Lock()
	switch {
	case rests && !s.rests:
		s.rests = s.resting.take()
	case !rests && s.rests:
		s.rests = false
		s.resting.free()
	}
	s.mu.Unlock()
	return s.settle(ctx)
}

// lend gives the place to others while a call of the agent waits for a run of its own. The
// returned function takes it again, for which it waits.
func (s *seat) lend(ctx context.Context) (back func()) {
	add := func(n int) {
		s.mu.Lock()
		s.lent += n
		s.mu.Unlock()
		_ = s.settle(ctx) // else the call is being ended
	}
	add(1)
	return func() { add(-1) }
}

// settle takes the place or gives it away, as it is wanted. Who is to give it away doesn't
// wait for somebody else's turn: that one looks again.
func (s *seat) settle(ctx context.Context) error {
	for {
		wanted, held := s.looks()
		if wanted == held {
			return nil
		}
		if !wanted {
			select {
			case s.turn <- struct{}{}:
			default:
				return nil
			}
			s.leave()
			<-s.turn
			continue
		}
		select {
		case s.turn <- struct{}{}:
		case <-s.halted:
			return errHalted
		case <-ctx.Done():
			return ctx.Err()
		}
		err := s.take(ctx)
		<-s.turn
		if err != nil {
			return err
		}
	}
}

// looks returns whether the place is wanted, and whether it is held.
func (s *seat) looks() (wanted, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent == 0 && !s.rests, s.held
}

// leave gives the place away, if it isn't wanted still. It has the turn.
func (s *seat) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held && (s.lent > 0 || s.rests) {
		s.held = false
		s.slots.free()
	}
}

// take waits for a place. It has the turn.
func (s *seat) take(ctx context.Context) error {
	if wanted, held := s.looks(); held || !wanted {
		return nil
	}
	select {
	case s.slots <- struct{}{}:
	case <-s.halted:
		return errHalted
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	return nil
}

// decide waits until somebody decides about a call, and until the agent has its place again.
func (w *worker) decide(ctx context.Context, p agent.Permission) agent.Verdict {
	v := w.asked.decide(ctx, p)
	_ = w.seat.rest(ctx, false) // else the agent is being ended
	return v
}

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
func restOf(s *wire.State, r agent.Request, goesOn bool) *rest {
	t := &rest{calls: map[string]bool{}, parks: map[string]bool{}, asked: append([]string(nil), r.Asked...)}
	if !goesOn {
		return t
	}
	t.idle = true
	for _, c := range run.OpenCalls(s, r.NodeID, r.ExecID) {
		if c.State != wire.ToolExecuting || c.Idempotent { // others were sealed
			t.calls[c.CallID] = c.State == wire.ToolApprovalRequired
		}
	}
	return t
}

// observe takes an event, and reports whether the agent rests, and whether the event says
// anything about that.
func (t *rest) observe(e *wire.Event) (rests, tells bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := e.Parent == ""
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		t.calls[e.CallID] = false
	case *wire.ToolState:
		t.calls[e.CallID] = p.To == wire.ToolApprovalRequired
	case *wire.PermissionRequired:
		t.calls[e.CallID] = true
		t.parks[e.CallID] = own && p.ToolName == ask.Tool
	case *wire.PermissionDecided:
		t.calls[e.CallID] = false
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
	return t.is(), true
}

func (t *rest) is() bool {
	for _, waits := range t.calls {
		if !waits {
			return false
		}
	}
	return len(t.calls) > 0 || t.idle && len(t.asked) > 0
}

// parked reports whether the agent does nothing but wait for answers to calls that ask a
// person.
func (t *rest) parked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, waits := range t.calls {
		if !waits || !t.parks[id] {
			return false
		}
	}
	return len(t.calls) > 0
}

// answered notes that the agent is given an answer: to one question, or with "" to all.
func (t *rest) answered(id string) {
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
