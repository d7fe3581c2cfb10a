package owner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/wire"
)

// passTrial ends the trial: the owner has decided, and lives.
func (o *owner) passTrial(ctx context.Context) error {
	if o.trial.count == 0 {
		return nil
	}
	o.trial.count = 0
	err := o.putRegistration(ctx, 0)
	o.leaveTrial()
	return err
}

// leaveTrial lets others be tried.
func (o *owner) leaveTrial() {
	if o.trial.leave != nil {
		o.trial.leave()
		o.trial.leave = nil
	}
}

// hasFailed reports whether the run has ended so many processes that it is set aside.
func (t *runTrial) hasFailed(most int) bool { return t.count > most }

// setAside pauses a run that has ended the processes that took it over.
func (o *owner) setAside() *wire.Event {
	o.cfg.SetAside.Inc()
	o.cfg.Logger.Error("run set aside: taking it over has ended the process each time", "run", o.runID,
		"times", o.trial.count-1, "runner", o.trial.last.Runner)
	return &wire.Event{Payload: &wire.FlowPaused{
		Reason: wire.PauseEndedItsRunner,
		Message: fmt.Sprintf("%d processes in a row ended while they took the run over, the last one that of runner %s, which began at %s: "+
			"see what it wrote last, mend the cause, then `wake resume %s`",
			o.trial.count-1, o.trial.last.Runner, time.UnixMilli(o.trial.last.Since).UTC().Format(time.RFC3339), o.runID),
	}}
}

// judgeSuspects pauses the run for a node that has ended the processes that executed it.
func (o *owner) judgeSuspects(ctx context.Context) error {
	for node, n := range o.view.State().Nodes {
		if !o.isSuspect(n) || o.view.State().Status != wire.RunRunning || !o.needsWorker(node, n) {
			continue
		}
		if err := o.judgeNode(ctx, node); err != nil && !errors.Is(err, lease.ErrHeld) {
			return err
		}
	}
	return nil
}

// judgeNode sets the run aside for a node unless it has got on meanwhile. It claims the node for a moment, so that no worker is
// at it that this process doesn't see yet.
func (o *owner) judgeNode(ctx context.Context, node string) error {
	if err := o.anchorNode(ctx, node); err != nil {
		return err
	}
	n := o.view.State().Nodes[node]
	if !o.isSuspect(n) || !n.Open() || o.view.State().Status != wire.RunRunning {
		return nil
	}
	o.cfg.SetAside.Inc()
	o.cfg.Logger.Error("run set aside: a node of it has ended the process each time", "run", o.runID, "node", node, "times", n.Trials, "runner", n.Runner)
	return o.appendEvents(ctx, []*wire.Event{{Payload: &wire.FlowPaused{
		Reason: wire.PauseEndedItsRunner,
		Message: fmt.Sprintf("node %s: %d processes in a row ended while they executed it, the last one that of runner %s: "+
			"see what it wrote last, mend the cause, then `wake resume %s`", node, n.Trials, n.Runner, o.runID),
	}}})
}
