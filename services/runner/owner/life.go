package owner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/turn"
	"code.wake.dev/wake/services/runner/internal/view"
)

// ownRun owns the run, in turns, until it has ended, ctx ends, or another owner has it. It returns when the first turn has
// ended.
func (o *owner) ownRun(ctx context.Context, live *sync.WaitGroup) error {
	var end error // set by the last turn
	live.Add(1)
	o.pause = tenure.FirstPause
	o.loop = turn.NewBegun(func() bool { // it may be called from when it is added
		var waits bool
		if waits, end = o.takeTurn(ctx); !waits {
			o.cfg.Draining.Remove(o.loop)
			o.cfg.Purse.Loops.Remove(o.loop)
			o.cfg.Owned.Leave(o.runID)
			live.Done()
		}
		return !waits
	})
	o.cfg.Draining.Add(o.loop)
	o.cfg.Purse.Loops.Add(o.loop)
	if over := o.loop.Run(); !over {
		return nil
	}
	return end
}

// takeTurn does what is to be done for the run until it waits. Once
// the run has begun, an owner that fails, be it that the object store was away,
// begins again with what the log says.
func (o *owner) takeTurn(ctx context.Context) (waits bool, err error) {
	for {
		if o.lead == nil {
			err = o.run(ctx)
		} else {
			err = o.scheduleRun(o.lead) //nolint:contextcheck // it is of ctx
		}
		if errors.Is(err, errWaits) {
			o.pause = tenure.FirstPause
			return true, nil
		}
		o.letGo(ctx, err)
		switch {
		case err == nil, ctx.Err() != nil, !o.begun:
			return false, err
		case errors.Is(err, errDrained):
			o.cfg.Queue.HandOver(ctx, o.runID)
			return false, nil
		case errors.Is(err, lease.ErrHeld), errors.Is(err, errParked):
			return false, nil
		}
		if tenure.Over(err) {
			o.cfg.Lost.Inc()
		}
		o.cfg.Logger.Error("run has lost its owner", "run", o.runID, "error", err)
		select {
		case <-time.After(o.pause):
		case <-o.cfg.Draining.Given(): // the runner that sweeps next finds it
			return false, nil
		case <-ctx.Done():
		}
		o.pause = min(2*o.pause, tenure.LastPause)
	}
}

// letGo gives up what the owner has of the run, which it leaves because of err.
func (o *owner) letGo(ctx context.Context, err error) {
	o.endSchedule()
	if o.writer != nil {
		o.leaveRun(ctx, err)
		o.writer = nil
	}
	if o.commands != nil {
		o.commands.Close()
		o.commands = nil
	}
	o.leaveTrial()
	if o.lease != nil {
		o.lease.Release()
		o.lease = nil
	}
	if o.view != nil {
		o.view.Close() // what it has folded is still to be told, see giveBack
	}
}

// run takes the run and does what is to be done for it. It fails with errWaits when nothing is any more.
func (o *owner) run(ctx context.Context) (err error) {
	// Looking before claiming saves a claim for a request that came twice.
	v, err := o.cfg.Runs.Open(ctx, o.runID)
	if err != nil {
		return err
	}
	o.view = v
	reg, registered := o.cfg.Registry.Get(o.runID)
	if view.Over(o.view.State()) && !registered {
		if asked, err := o.isAsked(ctx); err != nil || !asked {
			o.reportBegun()
			return err
		}
	}
	o.fresh = o.first && v.Unknown && !registered
	if o.last = new(eventlog.Message); !v.Unknown {
		if err := o.foldPresent(ctx); err != nil {
			return err
		}
	}
	o.lease, err = o.cfg.Leases.Acquire(ctx, o.leaseKey(wire.RunNode), lastOwner(o.view.State(), &reg))
	if errors.Is(err, lease.ErrHeld) && !o.begun {
		return o.judgeHeld(ctx)
	}
	if err != nil {
		return err
	}
	asked, err := o.isAsked(ctx)
	switch s := o.view.State(); {
	case err != nil:
		return err
	case view.Over(s) && !asked:
		return o.finishRun(ctx)
	case s.Status == wire.RunIdle && !o.canStartRun():
		return ErrNothing
	case s.Status == wire.RunIdle:
		if err := o.cfg.Capacity.RoomForRun(ctx); err != nil {
			return err
		}
	}
	return o.takeRun(ctx)
}

// takeRun claims the run, begins it or goes on with it, and schedules it.
func (o *owner) takeRun(ctx context.Context) error {
	taking, span := o.takeSpan(ctx)
	over, err := o.leadRun(taking)
	tracing.Fail(span, err)
	span.End()
	if err != nil || over {
		return err
	}
	o.reportBegun()
	if err := o.beginSchedule(taking); err != nil {
		return err
	}
	return o.scheduleRun(taking)
}

// leadRun makes the owner the run's writer, and begins the run or goes on with it. It reports whether the run is over.
func (o *owner) leadRun(ctx context.Context) (over bool, err error) {
	o.commands = o.cfg.Commands.Subscribe(o.runID)
	registered, err := o.takePlace(ctx)
	if err != nil {
		return false, err
	}
	if over, err := o.runAtOnce(ctx); over || err != nil {
		return over, err
	}
	if begun, err := o.takeLead(ctx, registered); begun || err != nil {
		return false, err
	}
	return o.goOn(ctx)
}

// takeSpan starts the span of taking a run, which ends when it has begun or goes on.
func (o *owner) takeSpan(ctx context.Context) (context.Context, trace.Span) {
	t := o.cfg.Log.Tracer()
	if o.queued {
		names := o.cfg.subjectNames()
		return tracing.Process(ctx, t, tracing.Destination(names.Prefix(), names.QueueRun()), tracing.Run.String(o.runID))
	}
	return t.Start(ctx, tracing.RunTakenOver, trace.WithAttributes(tracing.Run.String(o.runID)))
}

// takeLead makes the owner the writer of the run, and puts the run among the active ones: a new one first, so that it is found
// from then on; one that is there afterwards, since a process that fails to claim it must not take the place of its owner. It reports
// whether the run was begun, too.
func (o *owner) takeLead(ctx context.Context, registered bool) (begun bool, err error) {
	if !registered {
		registered, err = o.addRegistration(ctx)
	}
	if err == nil {
		begun, err = o.beginRun(ctx)
	}
	if err == nil && !begun {
		err = o.claimRun(ctx)
	}
	if err == nil && registered {
		err = o.takeRegistration(ctx)
	}
	return begun, err
}

// takeRegistration registers a run that has been claimed, however long that takes: as long as another process is registered as its
// owner, none would look for it.
func (o *owner) takeRegistration(ctx context.Context) error {
	for {
		err := o.putRegistration(ctx, 0)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(tenure.FirstPause):
		case <-o.writer.Fenced():
			return eventlog.ErrFenced
		case <-o.lease.Lost():
			return tenure.ErrLeaseLost
		case <-ctx.Done():
			return err
		}
	}
}

// leaveRun ends what the owner writes. An owner that fails, and isn't replaced, gives the run back.
func (o *owner) leaveRun(ctx context.Context, err error) {
	o.closeWriter(ctx)
	switch {
	case err == nil, ctx.Err() != nil, tenure.Over(err), errors.Is(err, errParked), errors.Is(err, errDrained):
	default:
		o.giveBack(ctx)
	}
}

// claimRun makes the owner the writer of the run.
func (o *owner) claimRun(ctx context.Context) (err error) {
	if !o.lease.Valid() { // reading took long: don't fence the owner that holds it now
		return tenure.ErrLeaseLost
	}
	before := o.view.State().Nodes[wire.RunNode]
	o.before = before.Epoch
	claim := eventlog.Claim{Runner: o.cfg.ID, Process: o.cfg.Process, MinEpoch: before.Epoch + 1, AtSeq: before.Seq, Last: o.last}
	if o.writer, err = o.cfg.Log.Claim(ctx, o.runID, wire.RunNode, claim); err != nil {
		return err
	}
	o.lease.Claimed(tenure.Proof(o.writer, o.cfg.ID, o.cfg.Process))
	return nil
}

// goOn begins the run, or goes on with it, as soon as it has been folded up to the
// claim. It reports whether the run is over.
func (o *owner) goOn(ctx context.Context) (ended bool, err error) {
	_, o.written = o.writer.Last()
	if err := o.view.Wait(ctx, o.written); err != nil {
		return false, err
	}
	other := o.before != o.epoch
	o.epoch = o.writer.Epoch()
	switch s := o.view.State(); {
	case s.Imported != "":
		return true, o.finishRun(ctx)
	case s.Status.Ended():
		return o.answerEnded(ctx)
	case s.Status == wire.RunIdle:
		return false, o.startRun(ctx)
	default:
		return false, o.takeOver(ctx, other)
	}
}

// startRun begins a new run.
func (o *owner) startRun(ctx context.Context) error {
	if o.asked().Fork != nil {
		return o.startFork(ctx)
	}
	if o.def == nil {
		return ErrNothing
	}
	begin := flow.Start(o.def, *o.asked())
	if problem, err := o.ownSecrets(); err != nil {
		return err
	} else if problem != "" {
		o.cfg.Logger.Error("run not begun: its flow has a secret in it", "run", o.runID)
		return o.appendEvents(ctx, append(begin, &wire.Event{Payload: &wire.FlowComplete{
			FlowName: o.def.Name, Status: wire.FlowStatusFailed, Error: problem,
		}}))
	}
	workspace, err := o.asked().Workspace, error(nil)
	if at := o.asked().WorkspaceAt; at == "" || at == o.cfg.ID {
		workspace, err = o.cfg.newFolders().createFolder(o.runID, workspace)
	}
	if err != nil {
		return o.withoutFolder(ctx, err, begin)
	}
	request := *o.asked()
	request.Workspace = workspace
	events := flow.Start(o.def, request)
	switch unawaited, err := o.isAbandoned(ctx); {
	case err != nil:
		return err
	case unawaited:
		events = append(events, &wire.Event{Payload: &wire.FlowAborted{Reason: "its parent no longer waits for it"}})
	}
	return o.appendEvents(ctx, events)
}

// takeOver goes on with a run that has begun. One that was running is resumed on
// record, unless it is this owner itself that begins again. Agents that are at
// work with other runners go on undisturbed; the others are told by it how.
func (o *owner) takeOver(ctx context.Context, other bool) (err error) {
	s := o.view.State()
	if o.def, err = o.cfg.Runs.Definition(s.Definition); err != nil {
		return fmt.Errorf("definition of run %s: %w", o.runID, err)
	}
	if other && o.before == o.parked && o.parked != 0 { // it only waited: nothing was interrupted
		o.cfg.Logger.Debug("parked run woken", "run", o.runID, "status", s.Status)
		o.cfg.Woken.Inc()
		return nil
	}
	o.cfg.Logger.Info("run taken over", "run", o.runID, "status", s.Status)
	if other {
		o.cfg.TakenOver.Inc()
	}
	if !other || s.Status != wire.RunRunning {
		return nil
	}
	events := []*wire.Event{{Payload: &wire.FlowResumed{Strategy: command.StrategyCrash}}}
	if o.trial.hasFailed(o.cfg.MaxTrials) {
		events = append(events, o.setAside())
	}
	return o.appendEvents(ctx, events)
}

// finishRun leaves nothing behind of a run that has ended: unwanted children
// are told, and runners don't look for the run any more.
func (o *owner) finishRun(ctx context.Context) error {
	kids := newChildren(o)
	defer kids.close()
	if err := kids.abortLeft(ctx); err != nil {
		return err
	}
	if err := o.deregisterRun(ctx); err != nil {
		return err
	}
	o.reportBegun()
	return nil
}

// giveUp says that the owner doesn't act any more, since the runner ends.
func (o *owner) giveUp(ctx context.Context) error {
	o.giveBack(ctx)
	return errDrained
}

// giveBack says that the owner doesn't act any more, for other runners. Where that fails, they have the run when the session of
// this process is over.
func (o *owner) giveBack(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, tenure.GiveBack)
	defer cancel()
	if o.cfg.Log.Conn().IsConnected() {
		if err := o.putRegistration(wait, o.writer.Epoch()); err != nil {
			o.cfg.Logger.Warn("run not given back", "run", o.runID, "error", err)
		}
	}
}

// judgeHeld looks whether a request for a run that has an owner is needless. It isn't
// before the run has begun: then its owner may still fail to.
func (o *owner) judgeHeld(ctx context.Context) error {
	v, err := o.cfg.Runs.Open(ctx, o.runID)
	if err != nil {
		return err
	}
	v.Close()
	_, registered := o.cfg.Registry.Get(o.runID)
	switch {
	case v.State().Status == wire.RunIdle && o.canStartRun(),
		v.State().Status != wire.RunIdle && !view.Over(v.State()) && !registered: // no other runner would find it
		return lease.ErrHeld
	}
	o.reportBegun()
	return nil
}

// reportBegun says once that the log has what the request asked for.
func (o *owner) reportBegun() {
	if !o.begun {
		o.begun = true
		o.onBegin()
		o.onBegin, o.request, o.workspaceAt = nil, nil, o.request.WorkspaceAt // the log has the rest
	}
}

// canStartRun reports whether the request says what a new run is to do.
func (o *owner) canStartRun() bool { return o.def != nil || o.asked().Fork != nil }

// lastOwner is the process that may still act for a run, by the log and by what its
// last owner left. An end says nothing of its owner: as long as that has something to do about it, it is registered.
//
//go:noinline // a copy of the node's state would stay on the stack for as long as the run is owned
func lastOwner(s *wire.State, reg *registry.Registration) lease.Claimant {
	n := s.Nodes[wire.RunNode]
	switch {
	case s.Status == wire.RunIdle, n.Epoch == reg.Released: // a claim alone begins nothing
		return lease.Claimant{}
	case view.Over(s):
		return lease.Claimant{Runner: reg.Runner, Process: reg.Process}
	}
	return lease.Claimant{Runner: n.Runner, Process: n.Holder}
}

// foldPresent folds what the former owner wrote up to the moment, and notes the last of it.
func (o *owner) foldPresent(ctx context.Context) error {
	last, found, err := o.cfg.Log.LastMessage(ctx, o.runID, wire.RunNode)
	o.last = &last
	if err != nil || !found {
		return err
	}
	return o.view.CatchUp(ctx, last.Pos)
}

func (o *owner) closeWriter(ctx context.Context) {
	ctx, cancel := tenure.Rest(ctx)
	defer cancel()
	if err := o.writer.Close(ctx); err != nil && !errors.Is(err, eventlog.ErrFenced) {
		o.cfg.Logger.Warn("events of the run not flushed", "run", o.runID, "error", err)
	}
}
