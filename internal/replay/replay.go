// Package replay plays a recorded run again, at the speed at which it happened
// or another. It reads the log and executes nothing: it imports no agent and
// nothing that could start one, and the linter keeps it so.
package replay

import (
	"context"
	"iter"
	"time"

	"code.wake.dev/wake/internal/eventlog"
)

// Options say how to play.
type Options struct {
	// Speed is how many seconds of the run pass in a second; 0 is no wait at all.
	Speed float64
	// MaxGap bounds the time of the run between two events, so that a night in
	// which nothing happened is over soon; 0 is no bound.
	MaxGap time.Duration
}

// Play yields the entries at the times at which their events happened, relative
// to the first, as o says. The order is that of the log: an event with
// a timestamp before its predecessor's comes at once. The end of ctx is its
// error.
func Play(ctx context.Context, entries iter.Seq2[eventlog.Entry, error], o Options) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		start := time.Now()
		var due time.Duration // of the next event, since start
		var last int64        // the latest timestamp so far
		for e, err := range entries {
			if err != nil {
				yield(e, err)
				return
			}
			due += o.gapBetween(last, entryMillis(e))
			last = max(last, entryMillis(e))
			if err := waitFor(ctx, time.Until(start.Add(due))); err != nil {
				yield(eventlog.Entry{}, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// entryMillis returns when an entry happened, in Unix milliseconds.
func entryMillis(e eventlog.Entry) int64 {
	if e.Event == nil {
		return e.Time.UnixMilli()
	}
	return e.Event.Timestamp
}

// gapBetween returns the time to wait between two timestamps.
func (o Options) gapBetween(last, next int64) time.Duration {
	if o.Speed == 0 || last == 0 || next <= last {
		return 0
	}
	gap := time.Duration(next-last) * time.Millisecond
	if o.MaxGap > 0 {
		gap = min(gap, o.MaxGap)
	}
	return time.Duration(float64(gap) / o.Speed)
}

func waitFor(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
