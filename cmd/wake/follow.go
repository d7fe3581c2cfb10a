package main

import (
	"context"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/pkg/wire"
)

// claims tells events of fenced writers from others. It is given the events of
// a run in log order.
type claims eventlog.LastEpochs

// isVoid reports whether e comes from a writer that had been replaced.
func (c claims) isVoid(e *wire.Event) bool { return eventlog.LastEpochs(c).IsVoid(e) }

// areOver reports whether an event ends its run, which hasn't gone on since.
func (c claims) areOver(ctx context.Context, log *feed.Reader, e eventlog.Entry) (bool, error) {
	if c.isVoid(e.Event) || !endsRun(e.Event) {
		return false, nil
	}
	on, err := eventlog.GoesOn(ctx, log, e.RunID, e.Pos, e.Event.Epoch)
	return !on && err == nil, err
}

// followRun shows the events of a run, from a position on, until one ends the run for good, as far as
// the log says; it returns the last event. Of all runs it shows them until ctx ends.
func (a *app) followRun(ctx context.Context, log *feed.Reader, q eventlog.Query, show func(eventlog.Entry) error) (*wire.Event, error) {
	fenced := claims{}
	for entry, err := range log.Follow(ctx, q) {
		if err != nil {
			return nil, err
		}
		if entry.Event == nil {
			a.log.WarnContext(ctx, "event can't be read", "position", entry.Pos, "subject", entry.Subject, "error", entry.Err)
			continue
		}
		if err := show(entry); err != nil {
			return nil, err
		}
		if q.Run == "" {
			continue
		}
		if over, err := fenced.areOver(ctx, log, entry); over || err != nil {
			return entry.Event, err
		}
	}
	return nil, context.Cause(ctx)
}

// wholeEvent returns an event with its large fields, as far as they are there.
func (a *app) wholeEvent(ctx context.Context, log *feed.Reader, e *wire.Event) *wire.Event {
	whole, err := log.Inline(ctx, e)
	if err != nil {
		a.log.WarnContext(ctx, "event is shown without its large fields", "type", e.Type(), "error", err)
		return e
	}
	return whole
}

func endsRun(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.FlowComplete, *wire.FlowAborted:
		return e.NodeID == wire.RunNode
	default:
		return false
	}
}

// outcomeError is the error of a run that ended otherwise than well.
func outcomeError(runID string, last *wire.Event) error {
	switch p := last.Payload.(type) {
	case *wire.FlowAborted:
		return serviceError(codeRunFailed, "", "run %s was aborted: %s", runID, p.Reason)
	case *wire.FlowComplete:
		if p.Status == wire.FlowStatusFailed {
			return serviceError(codeRunFailed, "wake log "+ask.ShellWord(runID)+" --type error", "run %s failed: %s", runID, p.Error)
		}
	}
	return nil
}

// interruptError turns the error of a verb that the user ended into its exit code.
func interruptError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return serviceError(codeInterrupt, "", "interrupted")
}
