package work

import (
	"time"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// shortest is the wait that is told: a shorter one counts as the tool's.
const shortest = 100 * time.Millisecond

// waits knows how long the calls of an agent have waited for storage and for people, which isn't
// the time of their tools. It is used by one goroutine.
type waits map[string]*callWaits

// callWaits is how long a call has waited.
type callWaits struct {
	storage, approval []span
	asked             time.Time // since when it waits for a decision; zero: it doesn't
}

// span is a stretch of time.
type span struct{ from, to time.Time }

// openWaits returns the waits of the calls that a run's state has of an execution.
func openWaits(s *wire.State, node, exec string) waits {
	w := waits{}
	for _, c := range run.OpenCalls(s, node, exec) {
		if c.AskedAt > 0 {
			w.waitOf(c.CallID).asked = time.UnixMilli(c.AskedAt)
		}
	}
	return w
}

func (w waits) waitOf(call string) *callWaits {
	if w[call] == nil {
		w[call] = &callWaits{}
	}
	return w[call]
}

// noteStored notes that an event of a call was taken into the log, for which its agent waited.
func (w waits) noteStored(e *wire.Event, from, to time.Time) {
	if e.CallID != "" && to.Sub(from) >= shortest {
		x := w.waitOf(e.CallID)
		x.storage = append(x.storage, span{from, to})
	}
}

// noteDecision notes when a call begins to wait for a decision, and when it has one.
func (w waits) noteDecision(e *wire.Event, now time.Time) {
	switch e.Payload.(type) {
	case *wire.PermissionRequired:
		w.waitOf(e.CallID).asked = now
	case *wire.PermissionDecided:
		if x := w.waitOf(e.CallID); !x.asked.IsZero() {
			if now.Sub(x.asked) >= shortest {
				x.approval = append(x.approval, span{x.asked, now})
			}
			x.asked = time.Time{}
		}
	}
}

// noteResult tells with the result of a call how long it has waited, and takes that from the time that its
// agent has measured, as far as it lies in it.
func (w waits) noteResult(e *wire.Event, p *wire.AgentTool, now time.Time) {
	x := w[e.CallID]
	if x == nil {
		return
	}
	delete(w, e.CallID)
	end := now
	if e.Timestamp > 0 {
		end = time.UnixMilli(e.Timestamp)
	}
	begin := end
	if p.DurationMs != nil {
		begin = end.Add(-time.Duration(*p.DurationMs) * time.Millisecond)
	}
	var within time.Duration
	total := func(all []span) int64 {
		var sum time.Duration
		for _, s := range all {
			sum += s.to.Sub(s.from)
			within += max(0, min(s.to.Sub(s.from), s.to.Sub(begin)))
		}
		return sum.Milliseconds()
	}
	p.StorageWaitMs, p.ApprovalWaitMs = total(x.storage), total(x.approval)
	if p.DurationMs != nil {
		p.DurationMs = new(max(0, *p.DurationMs-within.Milliseconds()))
	}
}
