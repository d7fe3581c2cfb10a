package owner

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// beginning is what begins a run of which the log has nothing, and what is decided at once.
type beginning struct {
	events   []*wire.Event
	together bool // or not at all
	whole    bool // the run is over with them
}

// runAtOnce begins a new run that is over with its first append, and reports whether it has. Such a run is never registered: if
// this process ends in between, the queue has the request for it, and gives it out again. Commands to it are found by the runner
// that looks after those to runs that have ended.
func (o *owner) runAtOnce(ctx context.Context) (over bool, err error) {
	if !o.fresh {
		return false, nil
	}
	if o.plan, err = o.planBeginning(ctx); err != nil || o.plan == nil || !o.plan.whole {
		return false, err
	}
	if over, err = o.beginRun(ctx); over {
		o.reportBegun()
	}
	return over, err
}

// beginRun begins a run of which the log has nothing: its claim, its beginning and what is decided at once are one append. It
// reports false, and has stored nothing, where something else comes first, such as a command that waits, or where another
// owner may have to do better: then the run is claimed, begun and decided for step by step.
func (o *owner) beginRun(ctx context.Context) (bool, error) {
	plan, err := o.plan, error(nil)
	if !o.fresh { // it is registered by now: that counts what its decisions may do to the process
		plan, err = o.planBeginning(ctx)
	}
	if o.plan = nil; err != nil || plan == nil {
		return false, err
	}
	if !o.lease.Valid() {
		return false, tenure.ErrLeaseLost
	}
	return o.storeBeginning(ctx, plan)
}

// planBeginning returns what begins the run; nil: it begins step by step.
func (o *owner) planBeginning(ctx context.Context) (*beginning, error) {
	o.strays = false
	s := o.view.State()
	isNew := s.Position.Seq == 0 && o.last.Pos == 0 && o.trial.count == 0
	if !isNew || o.def == nil || o.asked().Fork != nil || o.asked().ParentCall != "" {
		return nil, nil
	}
	waiting, err := o.cfg.Commands.Read(ctx, o.runID, 0)
	if err != nil || len(waiting) > 0 {
		return nil, err
	}
	request, folders := *o.asked(), o.cfg.newFolders()
	isHere := request.WorkspaceAt == "" || request.WorkspaceAt == o.cfg.ID
	if isHere {
		request.Workspace = folders.pathOf(o.runID, request.Workspace)
	}
	begin := flow.Start(o.def, request)
	if secret, err := o.hasSecret(begin); err != nil || secret {
		return nil, err
	}
	decided, err := o.decideAhead(begin)
	if err != nil {
		return nil, nil //nolint:nilerr // it begins, and its next decision fails
	}
	plan := &beginning{events: append(begin, decided...), together: len(begin) > 1}
	end, whole := plan.events[len(plan.events)-1].Payload.(*wire.FlowComplete)
	plan.whole = whole
	isNeedless := whole && end.Status == wire.FlowStatusComplete && o.asked().Workspace == "" // nothing works in its folder
	if isHere && !isNeedless {
		if _, err := folders.createFolder(o.runID, request.Workspace); err != nil {
			return nil, nil //nolint:nilerr // the claim that follows counts the attempt
		}
	}
	return plan, nil
}

// hasSecret reports whether the log would take a secret out of events: what is decided follows from what is stored.
func (o *owner) hasSecret(events []*wire.Event) (bool, error) {
	for _, e := range events {
		if places, err := o.cfg.Log.Secrets(e.Payload); err != nil || len(places) > 0 {
			return true, err
		}
	}
	return false, nil
}

// decideAhead returns what follows from the events that begin the run, before they are stored.
func (o *owner) decideAhead(begin []*wire.Event) ([]*wire.Event, error) {
	state := run.New(o.runID)
	claim := &wire.Event{Payload: &wire.RunClaimed{Runner: o.cfg.ID}}
	now := time.Now().UnixMilli()
	for i, e := range append([]*wire.Event{claim}, begin...) {
		e.Timestamp = now
		stamped := *e
		stamped.RunID, stamped.NodeID, stamped.Epoch, stamped.Seq = o.runID, wire.RunNode, 1, uint64(i+1)
		if err := run.Apply(state, wire.Position{Incarnation: o.cfg.Log.Incarnation(), Seq: uint64(i + 1)}, &stamped); err != nil {
			return nil, err
		}
	}
	d, err := flow.Decide(o.def, state, now, o.stopOf(state))
	for _, e := range d.Events {
		o.placeNode(e)
	}
	return d.Events, err
}

// storeBeginning claims the run and stores what begins it. It reports false if the log has something of the run meanwhile.
func (o *owner) storeBeginning(ctx context.Context, plan *beginning) (bool, error) {
	claim := eventlog.Claim{Runner: o.cfg.ID, Process: o.cfg.Process}
	w, err := o.cfg.Log.Begin(ctx, o.runID, claim, plan.events, plan.together)
	if errors.Is(err, eventlog.ErrFenced) {
		return false, o.foldPresent(ctx)
	}
	if err != nil {
		return false, err
	}
	o.lease.Claimed(tenure.Proof(w, o.cfg.ID, o.cfg.Process))
	o.before, o.writer, o.epoch, o.strays = 0, w, w.Epoch(), true
	_, o.written = w.Last()
	return true, nil
}
