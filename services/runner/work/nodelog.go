package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// nodeLog is where an execution puts its events: the part of the log that only the
// worker of its node writes.
type nodeLog struct {
	cfg    *Config
	offer  *wire.NodeOffer
	lease  *lease.Lease
	writer *eventlog.Writer
	away   time.Time     // since when events weren't stored in time; zero: they are
	waited time.Duration // for how long the agent has waited for storage since
	played bool          // the agent repeats what was recorded: nothing begins because of an event, so that only the end waits until all is stored
	whole  bool          // the log is the agent's only memory: it waits up to [moment] for what it is told to be stored, and goes on without while storage is away
}

// stampEvents completes the events of the execution.
func (l *nodeLog) stampEvents(events ...*wire.Event) {
	now := time.Now().UnixMilli()
	for _, e := range events {
		e.ExecID = l.offer.ExecID
		if e.Timestamp == 0 {
			e.Timestamp = now
		}
	}
}

func (l *nodeLog) appendEvents(ctx context.Context, events ...*wire.Event) error {
	l.stampEvents(events...)
	_, err := l.writer.Append(ctx, events...)
	return err
}

// beginEvents puts the beginning of the execution on record, which what it does waits for.
func (l *nodeLog) beginEvents(ctx context.Context, events ...*wire.Event) error {
	if !l.played {
		return l.appendEvents(ctx, events...)
	}
	l.stampEvents(events...)
	return l.enqueueAll(ctx, events)
}

// enqueueEvent puts an event on record and doesn't wait.
func (l *nodeLog) enqueueEvent(ctx context.Context, e *wire.Event) error {
	l.stampEvents(e)
	return l.writer.Enqueue(ctx, e)
}

// recordEvents puts events of the agent on record; of several, the last decides how.
// What is begun because of it waits for an event, for a bounded time; the others
// follow in order. If storage stays away, only the intent of a tool and the session
// stop the agent, and that only if no keeper has stopped it. A worker that has lost its lease records nothing.
func (l *nodeLog) recordEvents(ctx context.Context, events ...*wire.Event) error {
	if l.lease.IsLost() {
		return tenure.ErrLeaseLost
	}
	l.stampEvents(events...)
	e := events[len(events)-1]
	err := l.putEvents(ctx, e, events)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, eventlog.ErrFenced), errors.Is(err, eventlog.ErrClosed):
		return err
	case mustStore(e) && errors.As(err, new(*wire.FieldError)):
		l.setAside(ctx, e, err)
		return &failure{message: fmt.Sprintf("%s can't be stored: %v", e.Type(), err), kind: wire.ErrorException}
	case mustStore(e):
		return fmt.Errorf("%s not stored within %s: %w", e.Type(), l.cfg.PersistTimeout, err)
	case errors.As(err, new(*wire.FieldError)):
		l.setAside(ctx, e, err)
		return nil
	}
	l.cfg.Logger.Warn("event not stored yet", "run", l.offer.RunID, "node", l.offer.NodeID, "type", e.Type(), "error", err)
	return nil
}

// putEvents takes events into the log, and waits for them if the last is one to wait for. While
// storage is away, only what the agent can't go on without is waited for: all waits of an outage
// together are bounded as one.
func (l *nodeLog) putEvents(ctx context.Context, last *wire.Event, events []*wire.Event) error {
	if !l.away.IsZero() && !l.isAway() && l.isStored() {
		if err := l.noteReturn(ctx); err != nil {
			return err
		}
	}
	if l.away.IsZero() && l.isAway() {
		l.away = time.Now()
	}
	if !l.isAwaited(last) || !l.away.IsZero() && !mustStore(last) {
		return l.enqueueAll(ctx, events)
	}
	start, limit := time.Now(), l.cfg.PersistTimeout-l.waited
	if !mustStore(last) { // a server that says nothing is away, too
		limit = min(moment, l.cfg.PersistTimeout/2)
	}
	wait := func(ctx context.Context) error {
		_, err := l.writer.Append(ctx, events...)
		return err
	}
	err := awaitThawed(l.isFrozen, func() (again bool, err error) {
		err = awaitBounded(ctx, limit, wait)
		again = mustStore(last) && errors.Is(err, eventlog.ErrAmbiguous) && ctx.Err() == nil
		if again && l.away.IsZero() {
			l.away = start
		}
		wait, limit = l.writer.Flush, l.cfg.PersistTimeout
		return again, err
	})
	switch {
	case err == nil && !l.away.IsZero():
		return l.noteReturn(ctx)
	case errors.Is(err, eventlog.ErrAmbiguous) && ctx.Err() == nil: // else nothing waits for it any more
		l.waited += time.Since(start)
		if l.away.IsZero() {
			l.away = start
		}
	}
	return err
}

func (l *nodeLog) enqueueAll(ctx context.Context, events []*wire.Event) error {
	for _, e := range events {
		if err := l.writer.Enqueue(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// isAway reports whether nothing can be stored at the moment.
func (l *nodeLog) isAway() bool { return !l.cfg.Log.Conn().IsConnected() || l.cfg.Log.Health() != nil }

// noteReturn notes that storage is back, and puts on record that it was away.
func (l *nodeLog) noteReturn(ctx context.Context) error {
	failed := l.storageFailure()
	l.away, l.waited = time.Time{}, 0
	if failed == nil {
		return nil
	}
	return l.enqueueEvent(ctx, failed)
}

// storageFailure says that storage was away, or still is; nil: it wasn't, or only for a moment.
func (l *nodeLog) storageFailure() *wire.Event {
	still := l.isAway() || !l.isStored()
	if l.away.IsZero() || !still && time.Since(l.away) < moment {
		return nil
	}
	p := &wire.StorageFailure{Message: "storage was away: events were stored late", SinceMs: l.away.UnixMilli()}
	if !still {
		p.UntilMs = time.Now().UnixMilli()
	}
	return &wire.Event{Payload: p}
}

// moment is how long storage may be away without a word, and how long what can go on without an event waits for it.
const moment = 2 * time.Second

// awaitBounded bounds a wait for storage.
func awaitBounded(ctx context.Context, limit time.Duration, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return wait(ctx)
}

// awaitThawed waits, and again if the agent was frozen when a wait began or ended, and the wait says that it may be
// repeated: only a wait of an agent that goes on all the while bounds anything.
func awaitThawed(isFrozen func() bool, wait func() (again bool, err error)) error {
	for {
		frozen := isFrozen()
		if again, err := wait(); !again || !frozen && !isFrozen() {
			return err
		}
	}
}

// isFrozen reports whether the agent is stopped, or is about to be, since the lease wasn't renewed: it
// can't become impatient.
func (l *nodeLog) isFrozen() bool { return l.cfg.Shelf != nil && !l.lease.Valid() }

// setAside moves an event that can't be stored to the dead letters; the agent
// goes on.
func (l *nodeLog) setAside(ctx context.Context, e *wire.Event, reason error) {
	l.cfg.Logger.Error("event refused", "run", l.offer.RunID, "node", l.offer.NodeID, "type", e.Type(), "error", reason)
	subject := l.cfg.subjectNames().Event(l.offer.RunID, l.offer.NodeID, string(e.Type().Kind()))
	entry := eventlog.Entry{Subject: subject, Data: []byte(l.cfg.Log.Redacted(fmt.Sprintf("%+v", e.Payload)))}
	if err := l.cfg.Log.QueueDeadLetter(ctx, "runner", reason.Error(), entry); err != nil {
		l.cfg.Logger.Error("dead letter not stored", "subject", subject, "error", err)
	}
}

// storeHeld has the end of a command's stream stored that waits for what follows, since that was left out. If it can't be,
// the next event tells.
func (l *nodeLog) storeHeld(ctx context.Context, stream string) {
	if err := l.writer.StoreHeld(ctx, stream); err != nil {
		l.cfg.Logger.Debug("end of a text not stored yet", "run", l.offer.RunID, "node", l.offer.NodeID, "error", err)
	}
}

// isStored reports whether the log has all that was taken.
func (l *nodeLog) isStored() bool { return l.writer.Settled() }

// isAwaited reports whether the agent waits until e is stored. It doesn't for a call that changes
// nothing: that may as well be made again.
func (l *nodeLog) isAwaited(e *wire.Event) bool {
	if l.played {
		return false
	}
	switch e.Payload.(type) {
	case *wire.ToolIntent:
		return mustStore(e)
	case *wire.ToolState, *wire.AgentTool, *wire.Checkpoint:
		return l.whole
	}
	return e.Type().Awaited()
}

// mustStore reports whether the agent can't go on without e being stored.
func mustStore(e *wire.Event) bool {
	switch p := e.Payload.(type) {
	case *wire.AgentStart, *wire.SessionBound:
		return true
	case *wire.ToolIntent:
		return !p.Idempotent
	}
	return false
}

// mayBegin waits until no other runner can hold the lease.
func (l *nodeLog) mayBegin(ctx context.Context) error {
	err := l.lease.Await(ctx)
	if errors.Is(err, lease.ErrLost) {
		return tenure.ErrLeaseLost
	}
	return err
}
