package owner

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// parkWaiting lets the run go, which fails with [errParked], if nothing has happened in it for Config.ParkAfter, nothing is at
// work in it, and nothing is to be done before wake (Unix ms; 0: only if something happens).
//
// From the registration on, which fails if another owner has registered the run since, this owner writes nothing. So as long as
// the run is registered as parked, nothing acts for it. Whoever wakes it registers it anew first, so
// that it isn't looked after as a parked one from then on. See ADR 31.
func (o *owner) parkWaiting(ctx context.Context, kids *children, wake int64) error {
	if pos := o.view.State.Position.Seq; pos != o.quietAt {
		o.quiet, o.quietAt = time.Now(), pos
	}
	after := o.cfg.ParkAfter
	if after <= 0 || time.Since(o.quiet) < after || !o.onlyWaits(kids) {
		return nil
	}
	anchor, err := o.nextAnchor(ctx)
	if err != nil {
		return err
	}
	due := wake
	if anchor != 0 && (due == 0 || anchor < due) {
		due = anchor
	}
	if due != 0 && time.Until(time.UnixMilli(due)) < after {
		return nil
	}
	// What the log has may not have come yet.
	if err := snapshot.Fold(ctx, o.cfg.Log, o.view.State, 0); err != nil {
		return err
	}
	if o.view.State.Position.Seq != o.quietAt {
		return nil
	}
	if !o.lease.Valid() {
		return tenure.ErrLeaseLost
	}
	reg := o.newRegistration(ctx, o.epoch)
	reg.Parked, reg.Due = time.Now().UnixMilli(), due
	if err := o.cfg.Registry.Park(ctx, reg, o.registered); err != nil {
		return err
	}
	o.cfg.Parked.Inc()
	return errParked
}

// onlyWaits reports whether nothing is to be done about the run until a time comes or a command. What is done for it otherwise, by
// looking again and again, keeps it: a folder that is away, a shared budget, runs that it has started.
func (o *owner) onlyWaits(kids *children) bool {
	s := o.view.State
	switch {
	case s.Status == wire.RunPaused && (s.Reason == wire.PauseWorkspaceLost || s.Reason == wire.PauseSharedBudget),
		s.Status != wire.RunPaused && s.Status != wire.RunRunning,
		len(kids.kids) > 0, len(kids.called) > 0, o.trial.count > 0, o.cfg.Purse.Covers(s.Labels):
		return false
	}
	for _, call := range s.Tools {
		if callsRun(s, call) {
			return false
		}
	}
	for node, n := range s.Nodes {
		if node != wire.RunNode && n.Open() && !o.nodeWaits(node, n) {
			return false
		}
	}
	return true
}

// nodeWaits reports whether nothing is at work, or about to be, on an open node.
func (o *owner) nodeWaits(node string, n wire.NodeState) bool {
	key := o.cfg.subjectNames().LeaseKey(o.runID, node)
	if _, held := o.cfg.Leases.Of(key); held || o.needsWorker(node, n) {
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
		return o.view.State.Status == wire.RunPaused && (n.Started == 0 || o.cfg.Leases.Free(key, n.Runner))
	default:
		return false
	}
}
