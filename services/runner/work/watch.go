package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/view"
)

// watch follows the run while a worker executes one of its nodes: it ends the
// work when it is withdrawn or another worker may do it, tells the agent to come to a
// safe point when the run is paused or the runner ends, and passes on messages and
// decisions to the agent.
type watch struct {
	cfg      *Config
	offer    wire.NodeOffer
	log      *nodeLog
	halt     *halt
	asked    *approvals
	view     *view.View // that only the watch folds meanwhile
	claimed  uint64     // position of the state at the claim
	informed bool       // the agent has been given notices
	trial    *offerTrial

	messages chan wire.InboxEntry
	done     chan struct{}
}

func newWatch(x *execution, v *view.View, t *offerTrial) *watch {
	return &watch{
		cfg: x.cfg, offer: x.offer, log: x.log, halt: &x.halt, asked: &x.asked, view: v, claimed: x.state.Position.Seq, trial: t,
		messages: make(chan wire.InboxEntry), done: make(chan struct{}),
	}
}

// beginWatching begins to watch until ctx ends.
func (w *watch) beginWatching(ctx context.Context, cancel context.CancelCauseFunc) {
	go func() {
		defer close(w.done)
		defer close(w.messages)
		if err := w.followRun(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
}

func (w *watch) awaitEnd() { <-w.done }

// followRun returns why the work is to end, nil if ctx has ended.
func (w *watch) followRun(ctx context.Context) error {
	passed := map[string]bool{}
	anchor, stop := w.anchorTicks()
	defer stop()
	draining := w.cfg.Draining
	for {
		if w.isReplaced() {
			return eventlog.ErrFenced
		}
		if !w.stillWanted() {
			return errWithdrawn
		}
		if reason := view.Interrupts(w.view.State); reason != "" {
			w.halt.tellReason(reason)
		}
		if w.hasGotOn() {
			w.trial.leaveTrial()
		}
		w.asked.takeDecisions(w.view.State.Inbox, w.offer.NodeID, w.offer.ExecID)
		// There may be no agent to take a message; the rest goes on.
		next, to := w.nextMessage(passed), chan<- wire.InboxEntry(w.messages)
		if next == nil || w.halt.isTold() {
			next, to = &wire.InboxEntry{}, nil
		}
		select {
		case to <- *next:
			kind := next.Command.TextAt("type")
			if err := w.passedOn(ctx, passed, next.ID, kind == run.CommandNotice); err != nil {
				return err
			}
		case <-w.view.More():
			if err := w.view.Follow(ctx); err != nil {
				return err
			}
		case <-draining:
			draining = nil
			w.halt.tellReason(run.CauseShutdown)
		case <-anchor:
			w.storeAnchor(ctx)
		case <-w.trial.over:
			w.passTrial(ctx)
		case <-w.log.lease.Lost():
			return tenure.ErrLeaseLost
		case <-w.log.writer.Fenced():
			return eventlog.ErrFenced
		case <-ctx.Done():
			return nil
		}
	}
}

// isReplaced reports whether another claim of the node was stored since. A lease that isn't
// held any more doesn't tell, nor does the log tell a worker that writes nothing.
//
//go:noinline // a copy of the node's state would stay on the stack for as long as the agent works
func (w *watch) isReplaced() bool {
	return w.view.State.Nodes[w.offer.NodeID].Epoch > w.log.writer.Epoch()
}

// hasGotOn reports whether no process has ended at the execution since it got on.
//
//go:noinline // as isReplaced
func (w *watch) hasGotOn() bool { return w.view.State.Nodes[w.offer.NodeID].Trials == 0 }

// stillWanted reports whether the owner still wants the execution.
//
//go:noinline // as isReplaced
func (w *watch) stillWanted() bool {
	s := w.view.State
	n := s.Nodes[w.offer.NodeID]
	return !view.Ended(s.Status) && n.Exec == w.offer.ExecID && n.Open()
}

// nextMessage returns the next message to this execution that has not been passed on,
// nil if there is none.
func (w *watch) nextMessage(passed map[string]bool) *wire.InboxEntry {
	for _, m := range w.view.State.Inbox {
		kind := m.Command.TextAt("type")
		mine := kind == "send" && m.Node == w.offer.NodeID && (m.Exec == "" || m.Exec == w.offer.ExecID)
		if mine && !passed[m.ID] {
			return &m
		}
	}
	if m := w.resumeMessage(passed); m != nil {
		return m
	}
	return w.noticeMessage(passed)
}

// resumeMessage returns the message of a flow:resumed that finds the agent at work:
// it was meant for agents that go on, and this one does.
func (w *watch) resumeMessage(passed map[string]bool) *wire.InboxEntry {
	s := w.view.State
	n := s.Nodes[w.offer.NodeID]
	id := fmt.Sprintf("resume-%d", s.ResumedAt)
	if n.Resume == nil || n.Resume.Message == "" || n.Resume.Hold || s.ResumedAt <= w.claimed || passed[id] {
		return nil
	}
	cmd, err := wire.Marshal(wire.Command{Type: "send", Message: n.Resume.Message})
	if err != nil {
		return nil
	}
	return &wire.InboxEntry{ID: id, Node: w.offer.NodeID, Command: cmd}
}

// passedOn notes that the agent has been given a message. The message of a
// resumption is answered for on record, so that it isn't given again.
func (w *watch) passedOn(ctx context.Context, passed map[string]bool, id string, notice bool) error {
	passed[id] = true
	w.informed = w.informed || notice
	n := w.view.State.Nodes[w.offer.NodeID]
	if n.Resume == nil || id != fmt.Sprintf("resume-%d", w.view.State.ResumedAt) {
		return nil
	}
	e := &wire.Event{Payload: &wire.AgentResumed{Strategy: n.Resume.Strategy}}
	return w.log.enqueueEvent(ctx, e)
}

// anchorTicks ticks when the node is to be anchored; never if events don't age.
func (w *watch) anchorTicks() (<-chan time.Time, func()) {
	if w.cfg.AnchorEvery <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(w.cfg.AnchorEvery)
	return t.C, t.Stop
}

// passTrial ends the trial: the process has lived with the execution. Without a valid lease it may be too late to say so.
func (w *watch) passTrial(ctx context.Context) {
	if !w.log.lease.Valid() {
		w.trial.over = time.After(trialTime)
		return
	}
	w.log.passTrial(ctx, w.trial)
}

// storeAnchor stores a claim of the worker's own. It doesn't wait long: what isn't
// stored yet is when the server is back.
func (w *watch) storeAnchor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := w.log.writer.Anchor(ctx, w.cfg.ID, w.cfg.Process); err != nil && !errors.Is(err, eventlog.ErrAmbiguous) && !tenure.Over(err) {
		w.cfg.Logger.Warn("node not anchored", "run", w.offer.RunID, "node", w.offer.NodeID, "error", err)
	}
}
