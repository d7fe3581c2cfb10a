package owner

import (
	"context"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// beginSchedule has the owner called whenever something happens.
func (o *owner) beginSchedule(ctx context.Context) error {
	o.lead = ctx
	o.offered, o.last = nil, nil
	o.anchors = newAnchors(o.written)
	o.quiet, o.quietAt, o.stirred = time.Now(), 0, time.Now()
	o.kids = newChildren(o)
	o.view.OnMore(o.loop.Call)
	o.commands.OnMore(o.loop.Call)
	o.lease.OnLost(o.loop.Call)
	o.writer.OnFenced(o.loop.Call)
	if !o.strays { // else none waited when the run began
		waiting, err := o.waitingCommands(ctx)
		if err != nil {
			return err
		}
		if err := o.obeyAll(ctx, waiting); err != nil {
			return err
		}
	}
	if err := o.kids.abortLeft(ctx); err != nil {
		return err
	}
	return o.kids.takeUp(ctx)
}

// endSchedule is the reverse of beginSchedule.
func (o *owner) endSchedule() {
	if o.lead == nil {
		return
	}
	o.lead, o.wake, o.resting = nil, time.Time{}, nil
	if o.timer != nil {
		o.timer.Stop()
	}
	o.kids.close()
}

// scheduleRun decides as long as something has happened, or it is time to. It fails with errWaits when neither is so, and
// returns nil when the run has ended.
func (o *owner) scheduleRun(ctx context.Context) error {
	for {
		happened, err := o.takeNext(ctx)
		if err != nil {
			return err
		}
		if happened {
			o.stirred, o.resting = time.Now(), nil
		}
		if o.stillRests() {
			o.wake = o.nextLook(o.resting.due)
		}
		if !happened && time.Now().Before(o.wake) {
			o.setTimer()
			return errWaits
		}
		o.news = o.cfg.Purse.News()
		due, err := o.runStep(ctx, o.kids)
		if err != nil {
			return err
		}
		if err := o.passTrial(ctx); err != nil {
			return err
		}
		if o.view.State().Status.Ended() {
			if err := o.obeyAll(ctx, o.commands.Take()); err != nil {
				return err
			}
			if err := o.view.Wait(ctx, o.written); err != nil {
				return err
			}
			if o.view.State().Status.Ended() {
				return o.finishRun(ctx)
			}
			o.wake = time.Now() // one of them lets it go on
			continue
		}
		if err := o.parkWaiting(ctx, o.kids); err != nil {
			return err
		}
		o.wake = o.nextLook(due)
		if err := o.beginRest(ctx, due); err != nil {
			return err
		}
	}
}

// nextLook is when the owner looks again though nothing has happened; due is when something is, Unix ms, or 0.
func (o *owner) nextLook(due int64) time.Time {
	next := time.Now().Add(min(o.cfg.OfferAgain, o.cfg.Leases.TTL()/10))
	if at := time.UnixMilli(due); due != 0 && at.Before(next) {
		return at
	}
	return next
}

// takeNext takes one thing that has happened. It reports false if there is none.
func (o *owner) takeNext(ctx context.Context) (happened bool, err error) {
	switch {
	case o.lease.IsLost():
		return false, tenure.ErrLeaseLost
	case o.writer.IsFenced():
		return false, eventlog.ErrFenced
	case o.cfg.Draining.IsGiven():
		return false, o.giveUp(ctx)
	case ctx.Err() != nil:
		return false, ctx.Err()
	case o.view.HasMore():
		return true, o.view.Follow(ctx)
	case o.commands.HasMore():
		return true, o.obeyAll(ctx, o.commands.Take())
	}
	if o.freed.Swap(false) {
		return true, nil
	}
	select {
	case <-o.kids.news:
	case <-o.news:
	default:
		return false, nil
	}
	return true, nil
}

// setTimer has the owner called when it is time to decide again.
func (o *owner) setTimer() {
	if o.timer == nil {
		o.timer = time.AfterFunc(time.Until(o.wake), o.loop.Take)
	} else {
		o.timer.Reset(time.Until(o.wake))
	}
}

// runStep does what follows from the state: decisions, what they mean for children,
// offers, and claims that keep the run in the log. It returns when to decide
// again (Unix ms), or 0. Without a valid lease it does nothing but look again soon: another owner may
// be about to.
func (o *owner) runStep(ctx context.Context, kids *children) (wake int64, err error) {
	if o.isReplaced() {
		return 0, eventlog.ErrFenced
	}
	if !o.lease.Valid() {
		return o.nextLook(0).UnixMilli(), nil
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
	if o.view.State().Status.Ended() {
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
func (o *owner) isReplaced() bool { return o.view.State().Nodes[wire.RunNode].Epoch > o.epoch }

// decideNext appends decisions until there are none, or one was costly, and returns
// when to decide again (Unix ms), or 0.
func (o *owner) decideNext(ctx context.Context) (wake int64, err error) {
	for {
		if err := o.view.Wait(ctx, o.written); err != nil {
			return 0, err
		}
		if !o.lease.Valid() {
			return o.nextLook(0).UnixMilli(), nil
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
