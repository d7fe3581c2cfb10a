package owner

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// goOnSpending goes on with a run that a shared budget has stopped, once there is more: on another day, or since
// it was granted. If the budget ends runs by now, it ends the run.
func (o *owner) goOnSpending(ctx context.Context) error {
	s := o.view.State()
	if s.Status != wire.RunPaused || s.Reason != wire.PauseSharedBudget {
		return nil
	}
	if stop := o.stopOf(s); stop != nil && stop.Abort {
		return o.appendEvents(ctx, []*wire.Event{{Payload: &wire.FlowAborted{Reason: stop.Why}}})
	}
	if spent, known := o.cfg.Purse.Spent(s.Labels, time.Now()); spent != nil || !known {
		return nil
	}
	return o.appendEvents(ctx, []*wire.Event{{Payload: &wire.FlowResumed{Strategy: command.StrategyCrash}}})
}

// stopOf is what the run has to stop for, nil if there is nothing.
func (o *owner) stopOf(s *wire.State) *flow.Stop {
	spent, _ := o.cfg.Purse.Spent(s.Labels, time.Now())
	if spent == nil {
		return nil
	}
	return &flow.Stop{Why: "shared budget spent: " + budget.Text(*spent), Abort: spent.Then == wire.BudgetAbort}
}

// checkLimits fails with a [rejection] unless the run may go on under limits that are given.
func checkLimits(given wire.Raw, s *wire.State) error {
	if len(given) == 0 {
		return nil
	}
	if err := ledger.CheckLimits(given); err != nil {
		return command.Reject(wire.CodeBadRequest, "%v", err)
	}
	if !ledger.BoundsSpending(given) {
		return nil
	}
	b, spent := ledger.BudgetOf(ledger.MergeLimits(s.Limits, given)), ledger.Spent(s.Usage)
	if b.IsReached(spent, wire.Spent{}) {
		return command.Reject(wire.CodeBadRequest, "run %s has spent %s already: it would stop at once", s.RunID, b.Text(spent, wire.Spent{}))
	}
	return nil
}
