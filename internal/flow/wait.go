package flow

import (
	"fmt"
	"time"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// waitFields are the fields that say how long nodes wait, by their types.
var waitFields = map[NodeType]string{TypeSleep: "for", TypeAt: "time"}

// longestSleep is how long a node may sleep.
const longestSleep = 100 * 365 * 24 * time.Hour

// dueTime returns when a wait is over that begins now, both in Unix ms. A time that has come already is one, too.
func dueTime(t NodeType, input wire.Raw, now int64) (int64, error) {
	field := waitFields[t]
	text, isText := input.Get(field).Text()
	if t == TypeSleep {
		span, err := time.ParseDuration(text)
		if !isText || err != nil || span < 0 || span > longestSleep {
			return 0, fmt.Errorf("must be a span of time such as 90s, 5m or 24h, not %q", input.Get(field).Plain())
		}
		return now + span.Milliseconds(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if !isText || err != nil {
		return 0, fmt.Errorf("must be a time with its zone such as 2027-01-31T02:30:00Z or 2027-01-31T03:30:00+01:00, not %q", input.Get(field).Plain())
	}
	return max(1, at.UnixMilli()), nil
}

// waitProblem says which field of a node is wrong.
func waitProblem(t NodeType, err error) error { return fmt.Errorf("input.%s %w", waitFields[t], err) }

// waitInput checks the input of a node that waits for a time.
func (r *flowReader) waitInput(o *fields, t NodeType, field string) {
	v := o.needField(field)
	s, isText := v.AsText()
	if v == nil || isText && hasBinding(s) {
		return
	}
	if v.Kind != document.Scalar {
		r.Add(v.At, o.fieldName(field), "must be a text, not %s", v.KindName())
		return
	}
	if _, err := dueTime(t, wire.RawOf(map[string]any{field: v.Scalar}), 0); err != nil {
		r.Add(v.At, o.fieldName(field), "%s", err)
	}
}

// executeWait puts on record until when a node waits, and completes it when that has come. It reports whether there was
// something to do. The time is that of the wall: a clock that is set moves what waits with it.
func (p *planner) executeWait(v *vertex, id string, n wire.NodeState) bool {
	switch {
	case n.Due == 0:
		due, err := dueTime(v.Type, n.Input, n.StartedAt)
		if err != nil {
			p.emit(n.Exec, &wire.NodeError{Target: id, Error: waitProblem(v.Type, err).Error(), ErrorType: wire.ErrorInput})
			return true
		}
		p.emit(n.Exec, &wire.NodeWaiting{Target: id, Until: due, Reason: string(v.Type)})
		return true
	case p.now >= n.Due:
		p.emit(n.Exec, &wire.NodeComplete{
			Target: id, DurationMs: p.now - n.StartedAt,
			Output: wire.RawOf(map[string]any{"at": time.UnixMilli(n.Due).UTC().Format(time.RFC3339Nano), "lateMs": p.now - n.Due}),
		})
		return true
	}
	p.wakeAt(n.Due)
	return false
}

// isOverdue reports whether the run has taken as long as it may, and isn't at its end: a node that has been withdrawn
// for that is.
func (p *planner) isOverdue() bool {
	return p.s.Deadline > 0 && p.now >= p.s.Deadline && (!p.isAllSettled() || len(p.lostNodes()) > 0)
}

// endOverdue ends a run that is overdue, and withdraws what it has at work.
func (p *planner) endOverdue() {
	limit := time.Duration(ledger.TimeoutOf(p.s.Limits)) * time.Millisecond
	p.failRun("", "timeout: the run has taken the %s that it may; `wake resume %s --rerun` gives it as much again, --timeout more", limit, p.s.RunID)
}
