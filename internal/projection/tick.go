package projection

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/eventlog"
)

// Timed is a service with values that also change when nothing happens. Its time is
// that of the log, in Unix milliseconds: while there are events to read, a
// deadline has come when an event of the run is later; when all are read, the
// wall clock tells.
type Timed[V any] interface {
	// Deadline returns when a value wants a tick, or 0.
	Deadline(v V) int64
	// Tick tells a value that it is at, its deadline. The deadline is a later one
	// afterwards, or 0.
	Tick(ctx context.Context, v V, at int64) (Effect, error)
	// Runs returns the runs of which something is stored.
	Runs(ctx context.Context) ([]string, error)
}

// awaitTick notes when a value wants its next tick.
func (p *Projection[V]) awaitTick(t *trackedValue[V], deadline int64) {
	t.deadline = deadline
	if deadline > 0 {
		p.waiting[t.run] = t
	} else {
		delete(p.waiting, t.run)
	}
}

// loadTimed loads the runs that wait for a deadline: maybe nothing else will
// ever touch them.
func (p *Projection[V]) loadTimed(ctx context.Context) error {
	if p.timed == nil {
		return nil
	}
	var runs []string
	err := p.retryUntilDone(ctx, "list", func() (err error) {
		runs, err = p.timed.Runs(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range runs {
		t, err := p.loadValue(ctx, id, p.handled, false)
		if err != nil {
			return err
		}
		if t.deadline == 0 && t.unsaved == 0 {
			p.removeValue(id)
		}
	}
	return nil
}

// ticksUntil gives a value the ticks that are due before an entry.
func (p *Projection[V]) ticksUntil(ctx context.Context, t *trackedValue[V], e eventlog.Entry) error {
	for t.deadline > 0 && t.deadline <= e.Time.UnixMilli() {
		if err := p.tickValue(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func (p *Projection[V]) tickValue(ctx context.Context, t *trackedValue[V]) error {
	at := t.deadline
	effect := Unchanged
	err := p.retryUntilDone(ctx, "tick", func() (err error) {
		effect, err = p.timed.Tick(ctx, t.v, at)
		return err
	})
	if err != nil {
		return err
	}
	p.markDirty(t, effect, max(t.pos, 1))
	if t.deadline <= at { // a service that breaks its promise for a run must not stop the other runs
		p.awaitTick(t, 0)
	}
	return nil
}

// postponement is how long a tick waits that the log contradicts.
const postponement = time.Second

// tickAll gives the ticks that are due by the wall clock. It holds only for a
// run of which nothing is left to read: the server may have been away, or the
// consumer may be slow.
func (p *Projection[V]) tickAll(ctx context.Context, now time.Time) {
	if p.timed == nil || p.behind {
		return
	}
	ticked := false
	for _, t := range p.waiting {
		if now.UnixMilli() < t.deadline || now.Before(t.postpone) {
			continue
		}
		if !p.isQuiet(ctx, t.run) {
			t.postpone = now.Add(postponement)
			continue
		}
		if p.tickValue(ctx, t) != nil {
			return
		}
		ticked = true
	}
	if ticked {
		_ = p.flush(ctx) // fails when ctx has ended, and then saving does it
	}
}

// isQuiet reports whether the log has no events of the run but those handled.
func (p *Projection[V]) isQuiet(ctx context.Context, runID string) bool {
	wait, cancel := context.WithTimeout(ctx, postponement)
	defer cancel()
	for _, err := range p.log.Read(wait, eventlog.Query{Run: runID, Kinds: p.c.Kinds, From: p.handled + 1}) {
		_ = err // not to know isn't quiet either
		return false
	}
	return true
}
