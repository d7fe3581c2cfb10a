package flow

import (
	"time"

	"code.wake.dev/wake/internal/ledger"
)

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
