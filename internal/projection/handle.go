package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// handleEntries folds entries. It returns an error only when ctx has ended.
func (p *Projection[V]) handleEntries(ctx context.Context, entries []eventlog.Entry, begun time.Time) error {
	ctx, span := p.log.Traced(ctx, p.c.Service, entries, begun)
	defer span.End()
	p.behind = len(entries) >= p.c.Batch
	for _, e := range entries {
		if err := p.handleEntry(ctx, e); err != nil {
			tracing.Fail(span, err)
			return err
		}
		p.handled = e.Pos
		p.events.Inc()
	}
	return p.flush(ctx)
}

// flush lets a [Batcher] do what it has left to the end of the batch. It returns an error only when ctx has ended.
func (p *Projection[V]) flush(ctx context.Context) error {
	b, is := p.service.(Batcher)
	if !is {
		return nil
	}
	return p.retryUntilDone(ctx, "flush", func() error { return b.Flush(ctx) })
}

func (p *Projection[V]) handleEntry(ctx context.Context, e eventlog.Entry) error {
	if e.Err != nil {
		return p.setAside(ctx, e, e.Err)
	}
	if e.RunID == subjects.NoRun {
		return nil // what belongs to no run has no value
	}
	t := p.runs[e.RunID]
	if t == nil {
		var err error
		if t, err = p.loadValue(ctx, e.RunID, e.Pos-1, beginsRun(e)); err != nil {
			return err
		}
	}
	if e.Pos <= t.pos {
		return nil
	}
	err := p.foldEntry(ctx, t, e)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return p.setAside(ctx, e, refusal.Err)
	}
	return err
}

// foldEntry accounts for an entry, after the ticks that are due before it. It returns
// a [*Refusal], or an error when ctx has ended.
func (p *Projection[V]) foldEntry(ctx context.Context, t *trackedValue[V], e eventlog.Entry) error {
	if err := p.ticksUntil(ctx, t, e); err != nil {
		return err
	}
	effect := Unchanged
	err := p.retryUntilDone(ctx, "fold", func() (err error) {
		defer refusePanic(&err)
		effect, err = p.service.Fold(ctx, t.v, e)
		return err
	})
	if _, refused := errors.AsType[*Refusal](err); err == nil || refused {
		t.pos = e.Pos
		p.markDirty(t, effect, e.Pos)
		t.trace = cmp.Or(e.Trace, t.trace)
	}
	return err
}

// refusePanic makes a refusal of a panic: what an event does to one service must not end its process, again at
// each start.
func refusePanic(err *error) {
	if p := recover(); p != nil {
		*err = &Refusal{fmt.Errorf("defect in the service: %v", p)}
	}
}

// markDirty notes that a value has to be saved because of the entry at pos.
func (p *Projection[V]) markDirty(t *trackedValue[V], effect Effect, pos uint64) {
	if p.timed != nil {
		p.awaitTick(t, p.timed.Deadline(t.v))
	}
	if effect == Unchanged {
		return
	}
	if t.unsaved == 0 {
		t.unsaved, t.since = pos, time.Now()
		p.dirty[t.run] = t
	}
	t.urgent = t.urgent || effect == Urgent
}

// setAside stores an entry that can't be used where people find it. The position
// is committed at once then, so that this happens once.
func (p *Projection[V]) setAside(ctx context.Context, e eventlog.Entry, cause error) error {
	reason := cause.Error()
	p.logger.WarnContext(ctx, "event refused", "subject", e.Subject, "position", e.Pos, "reason", reason)
	p.refused.Inc()
	p.force = true
	return p.retryUntilDone(ctx, "dead letter", func() error {
		return p.log.DeadLetter(ctx, p.c.Service, reason, e)
	})
}

// beginsRun reports whether nothing of its run comes before an entry that a value would account for: what does, a
// stranger's, is accounted for before it by whichever process is handed it.
func beginsRun(e eventlog.Entry) bool {
	return e.Event != nil && e.NodeID == wire.RunNode && e.Event.Seq == 1
}

// loadValue brings the value of a run into memory and folds what the log has of it up
// to position to, which is nothing if that is where the run begins and no value is stored. It returns an error only
// when ctx has ended.
func (p *Projection[V]) loadValue(ctx context.Context, runID string, to uint64, begins bool) (*trackedValue[V], error) {
	var t *trackedValue[V]
	err := p.retryUntilDone(ctx, "load", func() (err error) {
		stored := Loaded[V]{}
		if begins && to >= max(p.end, p.renewal.until) {
			stored.Value = p.service.New(runID) // if another process was faster, saving tells
		} else if stored, err = p.service.Load(ctx, runID); err != nil {
			return err
		}
		if err := p.checkLoaded(ctx, runID, &stored, to); err != nil {
			return err
		}
		end, err := p.renewValue(ctx, runID, &stored, to)
		if err != nil {
			return err
		}
		if begins && stored.Position.Seq == 0 && end == to {
			end = 0
		}
		if r, ok := p.service.(Renewer[V]); ok && stored.Size == 0 && end > 0 && !p.renewal.made[runID] {
			r.Renew(stored.Value, p.commit.position.Seq) // nothing is stored of a run of which nothing was to come
		}
		t = &trackedValue[V]{run: runID, v: stored.Value, pos: stored.Position.Seq, size: max(stored.Size, minSize)}
		p.markDirty(t, Unchanged, 0)
		return p.catchUp(ctx, t, end)
	})
	if err != nil {
		return nil, err
	}
	p.replaceValue(t)
	return t, nil
}

// replaceValue has t take the place of the run's value in memory.
func (p *Projection[V]) replaceValue(t *trackedValue[V]) {
	p.removeValue(t.run)
	p.runs[t.run] = t
	p.size += t.size
	if t.unsaved > 0 {
		p.dirty[t.run] = t
	}
	p.awaitTick(t, t.deadline)
}

// removeValue forgets the run's value in memory.
func (p *Projection[V]) removeValue(runID string) {
	if t := p.runs[runID]; t != nil {
		p.size -= t.size
	}
	delete(p.runs, runID)
	delete(p.dirty, runID)
	delete(p.waiting, runID)
}

// checkLoaded resets a value that isn't of this log. The end of the log is only asked
// for if the value knows more than has been read.
func (p *Projection[V]) checkLoaded(ctx context.Context, runID string, stored *Loaded[V], to uint64) error {
	pos := stored.Position
	if pos.Seq == 0 {
		return nil
	}
	reason := ""
	if pos.Incarnation != p.log.Incarnation() {
		reason = "it is of another incarnation of the log"
	} else if pos.Seq > max(to, p.handled) {
		_, last, err := p.log.Bounds(ctx)
		if err != nil {
			return err
		}
		if pos.Seq > last {
			reason = "it is of a position beyond the end of the log"
		}
	}
	if reason != "" {
		p.Rebuild(runID, errors.New(reason))
		p.service.Reset(stored.Value)
		stored.Position = wire.Position{}
	}
	return nil
}

// Rebuild counts and logs that what is stored of a run can't be used and is
// built again. It is for the service's Load.
func (p *Projection[V]) Rebuild(runID string, reason error) {
	p.logger.Warn("stored value is built again", "run", runID, "reason", reason)
	p.unusable.Inc()
}

// catchUp folds what the log has of a run up to position to. What is refused was
// set aside when it came.
func (p *Projection[V]) catchUp(ctx context.Context, t *trackedValue[V], to uint64) error {
	if t.pos >= to {
		return nil
	}
	query := eventlog.Query{Run: t.run, Kinds: p.c.Kinds, From: t.pos + 1, To: to}
	for e, err := range p.log.Read(ctx, query) {
		if err != nil {
			return err
		}
		if e.Err != nil || e.Pos <= t.pos || p.c.Trial.IsAside(e.Pos) {
			continue
		}
		err := p.foldEntry(ctx, t, e)
		if _, refused := errors.AsType[*Refusal](err); err != nil && !refused {
			return err
		}
	}
	return nil
}

// How long to wait before trying again.
const (
	firstPause = 50 * time.Millisecond
	longPause  = 2 * time.Second
)

// retryUntilDone repeats f while it fails with an error that may go away. It returns a
// [*Refusal], or an error when ctx has ended.
func (p *Projection[V]) retryUntilDone(ctx context.Context, what string, f func() error) error {
	part := p.c.Service + ": " + what
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := f()
		if _, refused := errors.AsType[*Refusal](err); err == nil || refused {
			if pause > firstPause {
				p.c.Health.Set(part, nil)
			}
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		p.c.Trial.Waits()
		if pause == longPause {
			p.c.Health.Set(part, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
