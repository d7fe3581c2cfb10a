package owner

import (
	"context"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/view"
)

// scheduleRun decides whenever something has happened, until the run has ended.
func (o *owner) scheduleRun(ctx context.Context) error {
	o.offered = map[string]offerState{}
	o.anchors = newAnchors(o.written)
	o.quiet, o.quietAt = time.Now(), 0
	tick := time.NewTicker(min(o.cfg.OfferAgain, o.cfg.Leases.TTL()/10))
	defer tick.Stop()
	if !o.strays { // else none waited when the run began
		waiting, err := o.waitingCommands(ctx)
		if err != nil {
			return err
		}
		if err := o.obeyAll(ctx, waiting); err != nil {
			return err
		}
	}
	kids := newChildren(o)
	defer kids.close()
	if err := kids.abortLeft(ctx); err != nil {
		return err
	}
	for {
		news := o.cfg.Purse.News()
		wake, err := o.runStep(ctx, kids)
		if err != nil {
			return err
		}
		if err := o.passTrial(ctx); err != nil {
			return err
		}
		if view.Ended(o.view.State.Status) {
			if err := o.obeyAll(ctx, o.commands.Take()); err != nil {
				return err
			}
			if err := o.view.Wait(ctx, o.written); err != nil {
				return err
			}
			if !view.Ended(o.view.State.Status) { // one of them lets it go on
				continue
			}
			return o.finishRun(ctx)
		}
		if err := o.parkWaiting(ctx, kids); err != nil {
			return err
		}
		timer := time.NewTimer(max(0, time.Until(time.UnixMilli(wake))))
		if wake == 0 {
			timer.Stop()
		}
		select {
		case <-o.view.More():
			err = o.view.Follow(ctx)
		case <-news:
		case <-kids.news:
		case <-o.commands.More():
			err = o.obeyAll(ctx, o.commands.Take())
		case <-timer.C:
		case <-tick.C:
		case <-o.lease.Lost():
			err = tenure.ErrLeaseLost
		case <-o.writer.Fenced():
			err = eventlog.ErrFenced
		case <-o.cfg.Draining:
			err = o.giveUp(ctx)
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// runStep does what follows from the state: decisions, what they mean for children,
// offers, and claims that keep the run in the log. It returns when to decide
// again (Unix ms), or 0. Without a valid lease it does nothing: another owner may
// be about to.
func (o *owner) runStep(ctx context.Context, kids *children) (wake int64, err error) {
	if o.isReplaced() {
		return 0, eventlog.ErrFenced
	}
	if !o.lease.Valid() {
		return 0, nil
	}
	if err := o.goOnSpending(ctx); err != nil {
		return 0, err
	}
	if wake, err = o.decideNext(ctx); err != nil {
		return 0, err
	}
	if err := o.keepFolder(ctx); err != nil {
		return 0, err
	}
	if err := kids.updateChildren(ctx); err != nil {
		return 0, err
	}
	if view.Ended(o.view.State.Status) {
		return 0, nil
	}
	if err := o.judgeSuspects(ctx); err != nil {
		return 0, err
	}
	o.offerAll(ctx)
	return wake, o.anchorRun(ctx)
}

// isReplaced reports whether another claim of the run was stored since. The log tells that only to an owner that writes.
//
//go:noinline // a copy of the node's state would stay on the stack for as long as the run is owned
func (o *owner) isReplaced() bool { return o.view.State.Nodes[wire.RunNode].Epoch > o.epoch }

// decideNext appends decisions until there are none, or one was costly, and returns
// when to decide again (Unix ms), or 0.
func (o *owner) decideNext(ctx context.Context) (wake int64, err error) {
	for {
		if err := o.view.Wait(ctx, o.written); err != nil {
			return 0, err
		}
		if !o.lease.Valid() {
			return 0, nil
		}
		state, err := o.view.Whole(ctx)
		if err != nil {
			return 0, err
		}
		now := time.Now().UnixMilli()
		d, err := flow.Decide(o.def, state, now, o.stopOf(state))
		if err != nil {
			return 0, fmt.Errorf("decide: %w", err)
		}
		if len(d.Events) == 0 {
			return d.Wake, nil
		}
		for _, e := range d.Events {
			o.placeNode(e)
		}
		if err := o.appendDecision(ctx, d.Events); err != nil {
			return 0, err
		}
		if d.Costly {
			return now, nil
		}
	}
}
