package owner

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// parkWaiting lets the run go, which fails with [errParked], if nothing has happened in it for Config.ParkAfter, nothing is at
// work in it, and nothing is to be done before long. What is due is decided here: in its last step an owner with a late lease
// has decided nothing.
//
// From the registration on, which fails if another owner has registered the run since, this owner writes nothing. So as long as
// the run is registered as parked, nothing acts for it. Its next owner registers it anew as soon as it has claimed it, so
// that it isn't looked after as a parked one from then on. See ADR 31.
func (o *owner) parkWaiting(ctx context.Context, kids *children) error {
	if pos := o.view.State().Position.Seq; pos != o.quietAt {
		o.quiet, o.quietAt = time.Now(), pos
	}
	after := o.cfg.ParkAfter
	if after <= 0 || time.Since(o.quiet) < after || !o.onlyWaits(kids) || !o.lease.Valid() {
		return nil
	}
	due, waits, err := o.nextDue(ctx)
	if err != nil || !waits || due != 0 && time.Until(time.UnixMilli(due)) < after {
		return err
	}
	// What the log has may not have come yet.
	if err := o.foldRest(ctx); err != nil || o.view.State().Position.Seq != o.quietAt || !o.lease.Valid() {
		return ctx.Err()
	}
	reg := o.newRegistration(ctx, o.epoch)
	reg.Parked, reg.Due = time.Now().UnixMilli(), due
	if err := o.cfg.Registry.Park(ctx, reg, o.registered); err != nil {
		return err
	}
	o.cfg.Parked.Inc()
	return errParked
}

// nextDue returns when something is to be done about the run next, Unix ms; 0: only if something happens. It reports false if that
// is now.
func (o *owner) nextDue(ctx context.Context) (due int64, waits bool, err error) {
	state, err := o.view.Whole(ctx)
	if err != nil {
		return 0, false, err
	}
	d, err := flow.Decide(o.def, state, time.Now().UnixMilli(), o.stopOf(state))
	if err != nil || len(d.Events) > 0 || d.Costly {
		return 0, false, err
	}
	anchor, err := o.nextAnchor(ctx)
	if due = d.Wake; anchor != 0 && (due == 0 || anchor < due) {
		due = anchor
	}
	return due, err == nil, err
}

// foldRest folds what the log has. The owner has other things to look at while the server is away.
func (o *owner) foldRest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Leases.TTL()/3)
	defer cancel()
	return snapshot.Fold(ctx, o.cfg.Log, o.view.State(), 0)
}

// onlyWaits reports whether nothing is to be done about the run until a time comes or a command. What is done for it otherwise, by
// looking again and again, keeps it: a folder that is away, a shared budget, runs that it has started.
func (o *owner) onlyWaits(kids *children) bool {
	s := o.view.State()
	if o.isTended(kids) || o.cfg.Purse.Covers(s.Labels) {
		return false
	}
	for node, n := range s.Nodes {
		if node != wire.RunNode && n.Open() && !o.nodeWaits(node, n) {
			return false
		}
	}
	return true
}

// isTended reports whether something is done for the run by looking again and again.
func (o *owner) isTended(kids *children) bool {
	s := o.view.State()
	switch {
	case s.Status == wire.RunPaused && (s.Reason == wire.PauseWorkspaceLost || s.Reason == wire.PauseSharedBudget),
		s.Status != wire.RunPaused && s.Status != wire.RunRunning,
		len(kids.kids) > 0, len(kids.called) > 0, o.trial.count > 0:
		return true
	}
	for _, call := range s.Tools {
		if callsRun(s, call) {
			return true
		}
	}
	return false
}

// nodeWaits reports whether nothing is at work, or about to be, on an open node.
func (o *owner) nodeWaits(node string, n wire.NodeState) bool {
	if !o.isFree(node, n) || o.needsWorker(node, n) {
		return false
	}
	def := o.def.Node(node)
	switch {
	case def == nil:
		return false
	case n.Count > 0 && n.Index == nil: // it waits for its items, which are nodes
		return true
	}
	switch def.Type {
	case flow.TypeSleep, flow.TypeAt:
		return n.Due > 0
	case flow.TypeAsk:
		return n.PromptID != ""
	case flow.TypeAgent, flow.TypeExec:
		return o.view.State().Status == wire.RunPaused
	default:
		return false
	}
}
