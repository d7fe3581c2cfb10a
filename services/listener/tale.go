package listener

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// tale is what is held of a session that hooks report of. Its run has the session's id.
type tale struct {
	session string
	l       *Listener

	mu     sync.Mutex
	opened bool // what the log has was read
	begun  bool
	driven bool // a runner records the session itself
	writer *eventlog.Writer
	asked  map[string]*permissionRequest // that are open, by call
	heard  time.Time
}

// permissionRequest is a permission that is asked for.
type permissionRequest struct {
	pos      uint64 // of its event
	tool     string
	seat     *waitingHook  // nil: no hook waits for it
	gone     time.Time     // when it is to be closed, if no hook comes for it by then
	decision *callDecision // nil: there is none yet
}

// waitingHook is where a hook waits.
type waitingHook struct {
	t       *tale
	call    string
	verdict chan report.Verdict
}

// seatKey names the call that a hook waits for.
type seatKey struct{ session, call string }

// callDecision is a command that decides.
type callDecision struct {
	run, call, by string
	verdict       report.Verdict
}

// decisionOf returns the decision that an entry of the log records.
func decisionOf(e eventlog.Entry) (d callDecision, ok bool) {
	if e.Event == nil {
		return d, false
	}
	p, is := e.Event.Payload.(*wire.CommandReceived)
	var c wire.Command
	if !is || !p.Accepted || wire.Unmarshal(p.Command, &c) != nil || c.NodeID != wire.HooksNode {
		return d, false
	}
	d = callDecision{run: c.RunID, call: c.CallID, by: cmp.Or(p.By, c.By, "operator"), verdict: report.Verdict{Decision: "allow", Note: c.Note}}
	if c.Type == "deny" {
		d.verdict.Decision = "deny"
	}
	if len(c.UpdatedInput) > 0 {
		input, err := wire.AppendJSON(nil, c.UpdatedInput)
		if err != nil {
			return d, false
		}
		d.verdict.Input = input
	}
	return d, c.Type == "approve" || c.Type == "deny"
}

// openTale reads what the log has of the session, once.
func (t *tale) openTale(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.openLocked(ctx)
}

func (t *tale) openLocked(ctx context.Context) error {
	if t.opened {
		return nil
	}
	start, err := t.findStart(ctx)
	if err != nil {
		return err
	}
	if start == nil {
		if t.driven, err = t.l.isDriven(ctx, t.session); err != nil {
			return err
		}
	} else {
		t.begun, t.driven = true, start.Imported != wire.ImportedIngest
	}
	asked, first := map[string]*permissionRequest{}, uint64(0)
	for e, err := range history.ReadSession(ctx, t.l.log, eventlog.Query{Run: t.session, Node: wire.HooksNode, Kinds: []wire.Kind{wire.KindTool}}) {
		if err != nil {
			return err
		}
		if e.Err != nil {
			continue
		}
		switch p := e.Event.Payload.(type) {
		case *wire.PermissionRequired:
			asked[e.Event.CallID] = &permissionRequest{pos: e.Pos, tool: p.ToolName, gone: time.Now().Add(t.l.cfg.Grace)}
		case *wire.PermissionDecided, *wire.ToolSealed:
			delete(asked, e.Event.CallID)
		}
	}
	for _, q := range asked {
		if first == 0 || q.pos < first {
			first = q.pos
		}
	}
	t.asked, t.opened = asked, true
	if first == 0 {
		return nil
	}
	for e, err := range t.l.log.Read(ctx, eventlog.Query{Run: subjects.NoRun, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: first}) {
		if err != nil {
			t.opened = false
			return err
		}
		if d, ok := decisionOf(e); ok && d.run == t.session {
			t.decideLocked(d)
		}
	}
	return nil
}

// findStart returns the beginning of the session's run, nil if it has none.
func (t *tale) findStart(ctx context.Context) (*wire.FlowStart, error) {
	for e, err := range history.ReadSession(ctx, t.l.log, eventlog.Query{Run: t.session, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}) {
		if err != nil {
			return nil, err
		}
		if e.Err != nil {
			continue
		}
		if start, is := e.Event.Payload.(*wire.FlowStart); is {
			return start, nil
		}
	}
	return nil, nil
}

// begin begins the run, unless the watcher has meanwhile.
func (t *tale) begin(ctx context.Context, about session.About) error {
	if t.begun {
		return nil
	}
	w, err := history.Claim(ctx, t.l.log, t.session, wire.RunNode, eventlog.Claim{Runner: t.l.cfg.ID})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close(ctx) }() // what was appended is stored
	there, err := t.findStart(ctx)      // by the writer that had claimed it before
	if err != nil {
		return err
	}
	if there == nil {
		about.Session = t.session
		start, err := about.Start("")
		if err != nil {
			return err
		}
		if _, err := w.Append(ctx, &wire.Event{Timestamp: cmp.Or(about.At, time.Now().UnixMilli()), Payload: start}); err != nil {
			return err
		}
	}
	t.begun = true
	return nil
}

// appendEvents stores events on the node of hooks.
func (t *tale) appendEvents(ctx context.Context, events ...*wire.Event) (pos uint64, err error) {
	if t.writer == nil || t.writer.Err() != nil {
		if t.writer, err = history.Claim(ctx, t.l.log, t.session, wire.HooksNode, eventlog.Claim{Runner: t.l.cfg.ID}); err != nil {
			return 0, err
		}
	}
	return t.writer.Append(ctx, events...)
}

// errMuch is returned to a session that asks for too much at the same time.
var errMuch = errors.New("listener: the session asks for too much at the same time")

// askPerson stores a request, and has its hook wait, which is the only one that asks about the call. A hook that reports again waits for its open request.
func (t *tale) askPerson(ctx context.Context, rep report.Report) (*waitingHook, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard = time.Now()
	if err := t.openLocked(ctx); err != nil || t.driven {
		return nil, err
	}
	q := t.asked[rep.Call]
	if q == nil {
		if len(t.asked) >= maxPerTale {
			return nil, errMuch
		}
		input, err := wire.RawFromJSON(orNull(rep.Input))
		if err != nil {
			return nil, fmt.Errorf("listener: input: %w", err)
		}
		if err := t.begin(ctx, rep.About); err != nil {
			return nil, err
		}
		q = &permissionRequest{tool: rep.Tool}
		q.pos, err = t.appendEvents(ctx, &wire.Event{
			Timestamp: rep.At, CallID: rep.Call, Payload: &wire.PermissionRequired{ToolName: rep.Tool, ToolInput: input},
		})
		if err != nil {
			return nil, err
		}
		t.asked[rep.Call] = q
	}
	s := &waitingHook{t: t, call: rep.Call, verdict: make(chan report.Verdict, 1)}
	q.seat = s
	if q.decision != nil {
		s.verdict <- q.decision.verdict
	}
	return s, nil
}

func orNull(input json.RawMessage) []byte {
	if len(input) == 0 {
		return []byte("null")
	}
	return input
}

// leaveHook is called when the hook doesn't wait any more.
func (s *waitingHook) leaveHook() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if q := s.t.asked[s.call]; q != nil && q.seat == s { // the hook has ended; it may have told why
		q.seat, q.gone = nil, time.Now().Add(sweepTime)
	}
}

// takeDecision tells the hooks that wait. The first decision counts.
func (t *tale) takeDecision(d callDecision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.decideLocked(d)
}

func (t *tale) decideLocked(d callDecision) {
	q := t.asked[d.call]
	if q == nil || q.decision != nil {
		return
	}
	q.decision = &d
	if q.seat != nil {
		q.seat.verdict <- d.verdict // it has room for one
	}
}

// noteReport stores what a hook tells.
func (t *tale) noteReport(ctx context.Context, rep report.Report) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard = time.Now()
	if err := t.openLocked(ctx); err != nil || t.driven {
		return err
	}
	switch rep.Event {
	case report.Decided:
		return t.closeRequest(ctx, rep.Call, rep.At, rep.Decision, rep.ByWake)
	case report.SessionEnd:
		for call := range t.asked {
			if err := t.closeRequest(ctx, call, rep.At, "", false); err != nil {
				return err
			}
		}
	case report.SessionStart, report.Notification, report.Elicitation, report.PostToolUse, report.PostToolUseFailure, report.Stop,
		report.StopFailure, report.SubagentStart, report.SubagentStop, report.PreCompact, report.PostCompact:
	default:
		return nil // of a newer hook
	}
	if !t.begun {
		start, err := t.findStart(ctx) // the watcher may have begun it meanwhile
		if t.begun = start != nil; err != nil || !t.begun {
			return err // a session in which nothing was said
		}
	}
	fired := &wire.Event{Timestamp: rep.At, CallID: rep.Call, Payload: &wire.HookFired{HookEvent: rep.Event, HookName: rep.Tool, Output: rep.Text}}
	if _, err := t.appendEvents(ctx, fired); err != nil {
		return err
	}
	if rep.Event != report.SessionEnd {
		return nil
	}
	return t.pauseRun(ctx, rep)
}

// closeRequest stores what has become of a request: what the terminal or the verdict of a command says, or that neither
// does.
func (t *tale) closeRequest(ctx context.Context, call string, at int64, decided string, byWake bool) error {
	q := t.asked[call]
	if q == nil {
		return nil
	}
	why := "the terminal was left before a decision, or doesn't say which one was made"
	if q.decision != nil {
		why = fmt.Sprintf("%s by %s: its hook has ended, and hasn't said whether Claude Code was told", q.decision.verdict.Decision, q.decision.by)
	}
	e := &wire.Event{Timestamp: at, CallID: call, Payload: &wire.ToolSealed{ToolName: q.tool, From: wire.ToolApprovalRequired, Message: why}}
	switch decision := wire.Decision(decided); {
	case byWake && q.decision != nil:
		p := &wire.PermissionDecided{Decision: wire.Decision(q.decision.verdict.Decision), By: q.decision.by, Note: q.decision.verdict.Note}
		if len(q.decision.verdict.Input) > 0 {
			input, err := wire.RawFromJSON(q.decision.verdict.Input)
			if err != nil {
				return fmt.Errorf("listener: input: %w", err)
			}
			p.UpdatedInput = input
		}
		e.Payload = p
	case decision == wire.DecisionAllow || decision == wire.DecisionDeny:
		e.Payload = &wire.PermissionDecided{Decision: decision, By: "terminal"}
	}
	if _, err := t.appendEvents(ctx, e); err != nil {
		return err
	}
	delete(t.asked, call)
	return nil
}

// pauseRun has the run of a session that has ended rest, where no watcher tells of it.
func (t *tale) pauseRun(ctx context.Context, rep report.Report) error {
	if watched, err := history.HasNode(ctx, t.l.log, t.session, session.MainNode); err != nil || watched {
		return err
	}
	w, err := history.Claim(ctx, t.l.log, t.session, wire.RunNode, eventlog.Claim{Runner: t.l.cfg.ID})
	if err != nil {
		return err
	}
	_, err = w.Append(ctx, &wire.Event{Timestamp: rep.At, Payload: &wire.FlowPaused{Reason: wire.PauseIdle, Message: "the session has ended (" + rep.Text + ")"}})
	return errors.Join(err, w.Close(ctx))
}

// sealOrphans closes requests with which no hook has waited for a while.
func (t *tale) sealOrphans(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for call, q := range t.asked {
		if q.seat != nil || time.Now().Before(q.gone) {
			continue
		}
		if err := t.closeRequest(ctx, call, time.Now().UnixMilli(), "", false); err != nil {
			return err
		}
	}
	return nil
}

// isResting reports whether nothing was heard of the session for so long, and nothing waits.
func (t *tale) isResting(long time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.asked) == 0 && time.Since(t.heard) > long
}

func (t *tale) close(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer != nil {
		_ = t.writer.Close(ctx) // what was appended is stored
	}
	t.writer = nil
}
