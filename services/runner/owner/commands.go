package owner

import (
	"context"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// waitingCommands returns the commands to the run that wait for its owner. From here on
// no runner rejects one of those that there are: one that is about to, since there was
// no such run a moment ago, is fenced, and looks again; see recordStrays of package intake.
func (o *owner) waitingCommands(ctx context.Context) ([]eventlog.Entry, error) {
	entries, err := o.cfg.Commands.Read(ctx, o.runID, o.view.State().CommandPos)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	return entries, o.fenceStrays(ctx, entries[0].Pos)
}

// fenceStrays learns which commands to the run, of which the oldest has a position, are on record for none, and that no more of them will be.
func (o *owner) fenceStrays(ctx context.Context, oldest uint64) (err error) {
	if err := o.cfg.Commands.FenceNone(ctx, o.cfg.ID); err != nil {
		return err
	}
	o.rejected, err = o.cfg.Commands.Unobeyed(ctx, oldest)
	o.strays = err != nil
	return err
}

// obeyAll obeys the commands that it hasn't obeyed before. It folds first what the
// log has: the sender of a command may have seen all of that, such as the question that
// it answers, and events come to this view a little later.
func (o *owner) obeyAll(ctx context.Context, entries []eventlog.Entry) error {
	if len(entries) > 0 {
		if o.strays {
			if err := o.fenceStrays(ctx, entries[0].Pos); err != nil {
				return err
			}
		}
		if err := snapshot.Fold(ctx, o.cfg.Log, o.view.State(), 0); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := o.view.Wait(ctx, o.written); err != nil {
			return err
		}
		if e.Pos <= o.view.State().CommandPos || o.rejected.Has(e.Pos) {
			continue
		}
		if err := o.obeyCommand(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// obeyCommand records a command and, if it is accepted, what follows from it at once.
// The rest follows from the state.
func (o *owner) obeyCommand(ctx context.Context, e eventlog.Entry) error {
	names := o.cfg.subjectNames()
	ctx, span := tracing.Obey(ctx, o.cfg.Log.Tracer(), e.Trace,
		tracing.Destination(names.Prefix(), names.Command(o.runID)), tracing.Run.String(o.runID), tracing.Position.Int64(int64(e.Pos)))
	defer span.End()
	events, err := o.answerCommand(ctx, e)
	if err == nil {
		err = o.appendEvents(ctx, events)
	}
	if err != nil {
		tracing.Fail(span, err)
		return err
	}
	if p, ok := events[0].Payload.(*wire.CommandReceived); ok {
		span.SetAttributes(tracing.Accepted.Bool(p.Accepted))
		if kind := p.Command.TextAt("type"); p.Accepted {
			span.SetAttributes(tracing.Command.String(kind)) // it is a known one
		}
	}
	return nil
}

// answerCommand returns the record of a command, and behind it what follows from it at
// once.
func (o *owner) answerCommand(ctx context.Context, e eventlog.Entry) ([]*wire.Event, error) {
	record, cmd, err := command.Record(e)
	var effects []*wire.Event
	if err == nil {
		j := judge{runs: o.cfg.Runs, forks: o.cfg.newForks(), state: o.view.State(), cmd: cmd, id: record.CommandID, stop: o.stopOf(o.view.State()), fields: map[string]any{}}
		if effects, err = j.verdict(ctx); err != nil && !command.Rejected(err) {
			return nil, err
		}
		if err == nil {
			err = o.checkResumption(cmd)
		}
		if err == nil {
			record.Command, err = j.recordedCommand(record.Command)
		}
	}
	record.Accepted = err == nil
	if err != nil {
		record.Reason, effects = err.Error(), nil
	}
	return append([]*wire.Event{{Payload: record, ExecID: cmd.ExecID}}, effects...), nil
}

// A run that has ended has no owner. What is said to it gives it one again, which claims it, answers, and
// leaves, or goes on with it. It is registered before it is claimed, so a runner that finds a run that has ended
// and is registered looks whether a command waits, as this owner may have died before it answered.

// isAsked reports whether a command waits for an answer of a run that has ended.
func (o *owner) isAsked(ctx context.Context) (bool, error) {
	s := o.view.State()
	if !s.Status.Ended() || s.Imported != "" {
		return false, nil
	}
	waiting, err := o.cfg.Commands.Read(ctx, o.runID, s.CommandPos)
	if err != nil || len(waiting) == 0 {
		return false, err
	}
	recorded, err := o.cfg.Commands.Unobeyed(ctx, waiting[0].Pos) // which former versions kept there
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(waiting, func(e eventlog.Entry) bool { return !recorded.Has(e.Pos) }), nil
}

// answerEnded obeys the commands that wait for a run that has ended. It reports whether the run is
// over all the same. What its former owner may not have come to end is ended first: it isn't on
// record any more once the run goes on.
func (o *owner) answerEnded(ctx context.Context) (over bool, err error) {
	if o.def, err = o.cfg.Runs.Definition(o.view.State().Definition); err != nil {
		return false, fmt.Errorf("definition of run %s: %w", o.runID, err)
	}
	kids := newChildren(o)
	defer kids.close()
	if err := kids.abortLeft(ctx); err != nil {
		return false, err
	}
	waiting, err := o.waitingCommands(ctx)
	if err != nil {
		return false, err
	}
	if err := o.obeyAll(ctx, waiting); err != nil {
		return false, err
	}
	if err := o.view.Wait(ctx, o.written); err != nil {
		return false, err
	}
	if o.view.State().Status.Ended() {
		return true, o.finishRun(ctx)
	}
	o.cfg.Logger.Info("run goes on that had failed", "run", o.runID)
	return false, nil
}
