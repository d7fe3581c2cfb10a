package queries

import (
	"context"
	"iter"

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
	for from, id := q.From, int64(0); ; {
		list, more, err := a.readChunk(ctx, &q, &id, from)
		if err != nil {
			return err
		}
		for i := range list {
			e := &list[i]
			if !yield(archive.Event{Run: q.Run, Pos: e.Pos, Time: e.Time, Mark: e.Mark, Note: e.Note, Data: e.Data}) {
				return nil
			}
			from = e.Pos + 1
		}
		if !more {
			return nil
		}
	}
}

// readChunk reads some events in a transaction of its own.
func (a *Answers) readChunk(ctx context.Context, q *Query, id *int64, from uint64) (list []archive.Event, more bool, err error) {
	t, err := a.View(ctx)
	if err != nil {
		return nil, false, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	if *id == 0 {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return nil, false, err
		}
		*id, q.Run = found.ID, found.Run
	}
	return t.Chunk(ctx, *id, from, q.To)
}

func (a *Answers) readWindows(ctx context.Context, q Query, yield func(archive.Event) bool) error {
	for from := max(q.From, 1); from <= q.To; from += archive.Window {
		list, more, err := a.readWindow(ctx, from, min(q.To, from+archive.Window-1))
		if err != nil {
			return err
		}
		for _, e := range list {
			if !yield(e) {
				return nil
			}
		}
		if !more {
			return nil
		}
	}
	return nil
}

func (a *Answers) readWindow(ctx context.Context, from, to uint64) (list []archive.Event, more bool, err error) {
	t, err := a.View(ctx)
	if err != nil {
		return nil, false, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	return t.Window(ctx, from, to)
}
