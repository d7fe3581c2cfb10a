package recorder

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
)

// Event is a message of the stream as it is kept.
type Event struct {
	Run  string
	Pos  uint64
	Time int64  // Unix ms, when the stream stored it
	Mark string // "", void, bad (no event) or recorder (written by it)
	Note string // why it is marked
	Data []byte // as stored
}

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
func (s *Store) Read(ctx context.Context, q Query) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := s.readAll(ctx, q, func(e Event) bool { return e.Mark != "" && !q.Marked || yield(e, nil) })
		if err != nil {
			yield(Event{}, wrap("read", err))
		}
	}
}

func (s *Store) readAll(ctx context.Context, q Query, yield func(Event) bool) error {
	if q.To == 0 {
		q.To = 1<<63 - 1
	}
	if q.Run == "" {
		return s.readWindows(ctx, q, yield)
	}
	for from, id := q.From, int64(0); ; {
		list, more, err := s.readChunk(ctx, &q, &id, from)
		if err != nil {
			return err
		}
		for i := range list {
			e := &list[i]
			if !yield(Event{q.Run, e.pos, e.time, e.mark, e.note, e.data}) {
				return nil
			}
			from = e.pos + 1
		}
		if !more {
			return nil
		}
	}
}

// readChunk reads some events in a transaction of its own.
func (s *Store) readChunk(ctx context.Context, q *Query, id *int64, from uint64) (list []stored, more bool, err error) {
	t, err := s.view(ctx)
	if err != nil {
		return nil, false, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	if *id == 0 {
		found, err := resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return nil, false, err
		}
		*id, q.Run = found.id, found.run
	}
	return t.chunk(ctx, *id, from, q.To)
}

func (s *Store) readWindows(ctx context.Context, q Query, yield func(Event) bool) error {
	for from := max(q.From, 1); from <= q.To; from += window {
		list, more, err := s.readWindow(ctx, from, min(q.To, from+window-1))
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

func (s *Store) readWindow(ctx context.Context, from, to uint64) (list []Event, more bool, err error) {
	t, err := s.view(ctx)
	if err != nil {
		return nil, false, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	return t.window(ctx, from, to)
}

// events yields what is kept of a run from position from to position to.
func (t *tx) events(ctx context.Context, run int64, from, to uint64) iter.Seq2[*stored, error] {
	return func(yield func(*stored, error) bool) {
		for more := true; more; {
			var list []stored
			var err error
			if list, more, err = t.chunk(ctx, run, from, to); err != nil {
				yield(nil, err)
				return
			}
			for i := range list {
				if !yield(&list[i], nil) {
					return
				}
				from = list[i].pos + 1
			}
		}
	}
}

// chunk returns the events of a run from position from on that are in the same
// segment, or in the tail, and whether there may be more after them.
func (t *tx) chunk(ctx context.Context, run int64, from, to uint64) (list []stored, more bool, err error) {
	from, to = uint64(clamp(from)), uint64(clamp(to))
	var n, first, last uint64
	var codec int
	var data []byte
	err = t.row(ctx, `SELECT n, first_pos, last_pos, codec, data FROM segments WHERE run = ?1 AND last_pos >= ?2 ORDER BY last_pos LIMIT 1`, run, from).
		Scan(&n, &first, &last, &codec, &data)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		list, err = t.tail(ctx, run, from, to)
		return list, false, err
	case err != nil:
		return nil, false, err
	case first > to:
		return nil, false, nil
	}
	if list, err = t.zip.unpack(codec, data); err != nil {
		return nil, false, fmt.Errorf("segment %d, positions %d to %d: %w", n, first, last, err)
	}
	list = slices.DeleteFunc(list, func(s stored) bool { return s.pos < from || s.pos > to })
	return list, len(list) > 0 && last < to, nil
}

func (t *tx) tail(ctx context.Context, run int64, from, to uint64) (list []stored, err error) {
	rows := t.query(ctx, `SELECT pos, time, mark, note, data FROM tail WHERE run = ?1 AND pos >= ?2 AND pos <= ?3 ORDER BY pos`, run, from, to)
	for rows, err := range rows {
		if err != nil {
			return nil, err
		}
		var s stored
		if err := rows.Scan(&s.pos, &s.time, &s.mark, &s.note, &s.data); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// window is the number of positions of all runs that are read at once.
const window = 1024

// window returns the events of all runs from position from to position to, and
// whether there are more after them.
func (t *tx) window(ctx context.Context, from, to uint64) (list []Event, more bool, err error) {
	var end uint64
	if err := t.row(ctx, `SELECT coalesce(max(position), 0) FROM streams`).Scan(&end); err != nil || from > end {
		return nil, false, err
	}
	list, to, err = t.within(ctx, from, to, math.MaxInt)
	return list, to < end, err
}

// within returns the events of all runs from position from to position to, or to
// an earlier one, last, if they are larger than so many bytes. It never holds much
// more than that.
func (t *tx) within(ctx context.Context, from, to uint64, most int) (list []Event, last uint64, err error) {
	from, to = uint64(clamp(from)), uint64(clamp(to))
	size := 0
	add := func(e Event) {
		if e.Pos < from || e.Pos > to {
			return
		}
		e.Data = bytes.Clone(e.Data)
		list = append(list, e)
		if size += len(e.Data); size > most {
			list, size = half(list)
			to = list[len(list)-1].Pos
		}
	}
	segments := t.query(ctx, `SELECT r.run, s.n, s.first_pos, s.codec, s.data FROM segments s JOIN runs r ON r.id = s.run WHERE s.last_pos >= ?1 AND s.first_pos <= ?2`, from, to)
	for rows, err := range segments {
		if err != nil {
			return nil, 0, err
		}
		var run string
		var n, codec int
		var first uint64
		var data sql.RawBytes
		if err := rows.Scan(&run, &n, &first, &codec, &data); err != nil {
			return nil, 0, err
		}
		if first > to {
			continue
		}
		kept, err := t.zip.unpack(codec, data)
		if err != nil {
			return nil, 0, fmt.Errorf("run %s, segment %d: %w", run, n, err)
		}
		for _, s := range kept {
			add(Event{run, s.pos, s.time, s.mark, s.note, s.data})
		}
	}
	tail := t.query(ctx, `SELECT r.run, t.pos, t.time, t.mark, t.note, t.data FROM tail t JOIN runs r ON r.id = t.run WHERE t.pos >= ?1 AND t.pos <= ?2`, from, to)
	for rows, err := range tail {
		if err != nil {
			return nil, 0, err
		}
		var e Event
		var data sql.RawBytes
		if err := rows.Scan(&e.Run, &e.Pos, &e.Time, &e.Mark, &e.Note, &data); err != nil {
			return nil, 0, err
		}
		e.Data = data
		add(e)
	}
	slices.SortFunc(list, byPosition)
	return list, to, nil
}

func byPosition(a, b Event) int { return cmp.Compare(a.Pos, b.Pos) }

// half returns the first ones of events, one at least and about half of their
// bytes, and how many those are.
func half(list []Event) (first []Event, size int) {
	slices.SortFunc(list, byPosition)
	all := 0
	for i := range list {
		all += len(list[i].Data)
	}
	size, n := len(list[0].Data), 1
	for n < len(list)-1 && size+len(list[n].Data) <= all/2 {
		size += len(list[n].Data)
		n++
	}
	clear(list[n:])
	return list[:n], size
}
