package work

import (
	"context"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// trialTime is how long a process has to live with an execution to have passed its trial. The trial begins when the process
// has lived for untriedTime: what ends it before, again and again, isn't the execution.
const (
	trialTime   = time.Minute
	untriedTime = 30 * time.Second
)

// offerTrial is the last chance of an execution that processes have claimed in a row, and had nothing to show for it: the
// owner sets the run aside if the next one ends without a word. Such an execution is tried alone, so that it isn't taken
// for another one that ends the process. It has passed when the process has lived with it for a while, or leaves it in
// order. Other executions get no trial, and nothing of it is on record.
//
// It belongs to the worker, and to the watch while that runs.
type offerTrial struct {
	leave func()    // lets others be tried; nil: this isn't one
	over  time.Time // when it has passed; zero: never
}

// enterTrial reports whether the worker may claim the node. It may not if processes enough have ended at it, which is for
// its owner to judge, or if another one is on trial here.
func (w *Worker) enterTrial() bool {
	n, count, most := w.view.State().Nodes[w.offer.NodeID], 0, w.cfg.NodeTrials
	if count = n.Trials; n.Process != w.cfg.Process {
		count++
		if count > most {
			w.cfg.Logger.Warn("node not begun: processes have ended at it, its owner is to judge that",
				"run", w.offer.RunID, "node", w.offer.NodeID, "times", n.Trials)
			return false
		}
	}
	if count < most {
		return true
	}
	if time.Since(w.cfg.begun) < untriedTime {
		return false
	}
	select {
	case w.cfg.alone <- struct{}{}:
		w.trial.leave, w.trial.over = func() { <-w.cfg.alone }, time.Now().Add(trialTime)
		return true
	default:
		return false
	}
}

// leaveTrial lets others be tried.
func (t *offerTrial) leaveTrial() {
	if t.leave != nil {
		t.leave()
		t.leave, t.over = nil, time.Time{}
	}
}

// passTrial puts on record that this process has lived with the execution, or leaves it in order.
func (l *nodeLog) passTrial(ctx context.Context, t *offerTrial) {
	if t.leave == nil {
		return
	}
	t.leaveTrial()
	ctx, cancel := tenure.Rest(ctx)
	defer cancel()
	err := l.enqueueEvent(ctx, &wire.Event{Payload: &wire.NodeTried{Trials: l.cfg.NodeTrials}})
	if err != nil && !tenure.Over(err) {
		l.cfg.Logger.Warn("not on record that the node ends no process", "run", l.offer.RunID, "node", l.offer.NodeID, "error", err)
	}
}
