package queries

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Query says which events are read.
type Query struct {
	Run    string // as in a request: an id, a unique prefix, a label, a session, @last; none: all runs
	From   uint64 // first position
	To     uint64 // last one; 0: the end
	Marked bool   // those too that readers usually don't see
}

// Read yields events in the order of the stream. An error ends it. It holds no
// transaction while the loop is at work, and a segment in memory, or, of all
// runs, some 1000 events.
func (a *Answers) Read(ctx context.Context, q Query) iter.Seq2[archive.Event, error] {
	return func(yield func(archive.Event, error) bool) {
		err := a.readAll(ctx, q, func(e archive.Event) bool { return e.Mark != "" && !q.Marked || yield(e, nil) })
		if err != nil {
			yield(archive.Event{}, request.Wrap("read", err))
		}
	}
}

func (a *Answers) readAll(ctx context.Context, q Query, yield func(archive.Event) bool) error {
	if q.To == 0 {
		q.To = 1<<63 - 1
	}
	if q.Run == "" {
		return a.readWindows(ctx, q, yield)
	}
	of, err := a.FindRun(ctx, q.Run)
	for from, more := q.From, true; more && err == nil; {
		var list []archive.Event
		list, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) (list []archive.Event, err error) {
			list, more, err = t.Chunk(ctx, of.ID, from, q.To)
			return list, err
		})
		for _, e := range list {
			e.Run = of.Run
			if !yield(e) {
				return nil
			}
			from = e.Pos + 1
		}
	}
	return err
}

func (a *Answers) readWindows(ctx context.Context, q Query, yield func(archive.Event) bool) (err error) {
	for from, more := max(q.From, 1), true; more && err == nil && from <= q.To; from += archive.Window {
		var list []archive.Event
		list, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) (list []archive.Event, err error) {
			list, more, err = t.Window(ctx, from, min(q.To, from+archive.Window-1))
			return list, err
		})
		for _, e := range list {
			if !yield(e) {
				return nil
			}
		}
	}
	return err
}

// Entries is [Answers.Read] with the events taken apart, as the log yields them. Those of a whole run know how many follow.
func (a *Answers) Entries(ctx context.Context, q Query) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		behind := int64(0)
		if q.Run != "" && q.From == 0 && q.To == 0 && !q.Marked {
			of, err := a.FindRun(ctx, q.Run)
			if err == nil {
				behind, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) (int64, error) { return countEvents(ctx, t, of.ID) })
			}
			if err != nil {
				yield(eventlog.Entry{}, request.Wrap("read", err))
				return
			}
		}
		for kept, err := range a.Read(ctx, q) {
			behind = max(0, behind-1)
			e := eventlog.Entry{Pos: kept.Pos, Time: time.UnixMilli(kept.Time), RunID: kept.Run, Data: kept.Data, Behind: uint64(behind)}
			if err == nil {
				if e.Event, e.Err = wire.Decode(kept.Data); e.Err == nil {
					e.NodeID, e.Kind = e.Event.NodeID, e.Event.Type().Kind()
				}
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Blob returns a large field by its SHA-256. It fails with
// [eventlog.ErrBlobMissing] if it was missing when it was recorded.
func (a *Answers) Blob(ctx context.Context, sha256 string) ([]byte, error) {
	data, err := archive.Ask(ctx, a.Archive, func(t *archive.Tx) ([]byte, error) { return t.Blob(ctx, sha256) })
	if errors.Is(err, fs.ErrNotExist) {
		err = eventlog.ErrBlobMissing
	}
	if err != nil {
		return nil, fmt.Errorf("recorder: blob %s: %w", sha256, err)
	}
	return data, nil
}

// Find returns the run that ref means: an id, a unique prefix of one, a label, a
// session or @last. It fails with RUN_NOT_FOUND or AMBIGUOUS_ID.
func (a *Answers) Find(ctx context.Context, ref string) (string, error) {
	found, err := a.FindRun(ctx, ref)
	return found.Run, request.Wrap("find", err)
}
