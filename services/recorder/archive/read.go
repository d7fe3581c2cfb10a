package archive

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

	"code.wake.dev/wake/services/recorder/internal/database"
)

// Events yields what is kept of a run from position from to position to.
func (t *Tx) Events(ctx context.Context, run int64, from, to uint64) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		for more := true; more; {
			var list []Event
			var err error
			if list, more, err = t.Chunk(ctx, run, from, to); err != nil {
				yield(nil, err)
				return
			}
			for i := range list {
				if !yield(&list[i], nil) {
					return
				}
				from = list[i].Pos + 1
			}
		}
	}
}

// Chunk returns the events of a run from position from on that are in the same
// segment, or in the tail, and whether there may be more after them.
func (t *Tx) Chunk(ctx context.Context, run int64, from, to uint64) (list []Event, more bool, err error) {
	from, to = uint64(database.Clamp(from)), uint64(database.Clamp(to))
	var n, first, last uint64
	var codec int
	var data []byte
	err = t.Row(ctx, `SELECT n, first_pos, last_pos, codec, data FROM segments WHERE run = ?1 AND last_pos >= ?2 ORDER BY last_pos LIMIT 1`, run, from).
		Scan(&n, &first, &last, &codec, &data)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		list, err = t.Tail(ctx, run, from, to)
		return list, false, err
	case err != nil:
		return nil, false, err
	case first > to:
		return nil, false, nil
	}
	if list, err = t.Codec.Unpack(nil, codec, data); err != nil {
		return nil, false, fmt.Errorf("segment %d, positions %d to %d: %w", n, first, last, err)
	}
	list = dropOutside(list, from, to)
	return list, len(list) > 0 && last < to, nil
}

// Tail returns the events of a run that aren't sealed, from position from to position to.
func (t *Tx) Tail(ctx context.Context, run int64, from, to uint64) (list []Event, err error) {
	var first uint64
	var hash, data sql.RawBytes
	text := `SELECT first_pos, hash, data FROM tail WHERE run = ?1 AND last_pos >= ?2 AND first_pos <= ?3 ORDER BY first_pos`
	for err := range t.Each(ctx, text, []any{run, from, to}, &first, &hash, &data) {
		before := len(list)
		if err == nil {
			list, err = t.Codec.Unpack(list, Loose, data)
		}
		if err != nil {
			return nil, fmt.Errorf("tail, from position %d: %w", first, err)
		}
		if len(list) > before {
			copy(list[len(list)-1].Link[:], hash)
		}
	}
	return dropOutside(list, from, to), nil
}

// dropOutside drops the events of a run that aren't from position from to position to.
func dropOutside(list []Event, from, to uint64) []Event {
	return slices.DeleteFunc(list, func(e Event) bool { return e.Pos < from || e.Pos > to })
}

// Window is the number of positions of all runs that are read at once.
const Window = 1024

// Window returns the events of all runs from position from to position to, and
// whether there are more after them.
func (t *Tx) Window(ctx context.Context, from, to uint64) (list []Event, more bool, err error) {
	var end uint64
	if err := t.Row(ctx, `SELECT coalesce(max(position), 0) FROM streams`).Scan(&end); err != nil || from > end {
		return nil, false, err
	}
	list, to, err = t.Within(ctx, from, to, math.MaxInt)
	return list, to < end, err
}

// Within returns the events of all runs from position from to position to, or to
// an earlier one, last, if they are larger than so many bytes. It never holds much
// more than that.
func (t *Tx) Within(ctx context.Context, from, to uint64, most int) (list []Event, last uint64, err error) {
	w := within{from: uint64(database.Clamp(from)), to: uint64(database.Clamp(to)), most: most}
	var run, part string
	var codec int
	var first uint64
	var data sql.RawBytes
	parts := `SELECT r.run, 'segment ' || s.n, s.first_pos, s.codec, s.data FROM segments s JOIN runs r ON r.id = s.run WHERE s.last_pos >= ?1 AND s.first_pos <= ?2
		UNION ALL SELECT r.run, 'tail', t.first_pos, ?3, t.data FROM tail t JOIN runs r ON r.id = t.run WHERE t.last_pos >= ?1 AND t.first_pos <= ?2`
	for err := range t.Each(ctx, parts, []any{w.from, w.to, Loose}, &run, &part, &first, &codec, &data) {
		if err != nil {
			return nil, 0, err
		}
		if first > w.to {
			continue
		}
		if w.list == nil { // room for all of them, at once: growing would copy them again and again
			w.list = make([]Event, 0, min(w.to-w.from+1, maxWindow))
		}
		before := len(w.list)
		if w.list, err = t.Codec.Unpack(w.list, codec, data); err != nil {
			return nil, 0, fmt.Errorf("run %s, %s: %w", run, part, err)
		}
		w.keepFrom(before, run)
	}
	sortDense(w.list)
	return w.list, w.to, nil
}

// WholeTo returns the last position up to another one at which a segment ends, or that one if none does: what [Tx.Within] reads up
// to there is the whole of segments that were written together, each of which is unpacked once.
func (t *Tx) WholeTo(ctx context.Context, from, to uint64) (last uint64, err error) {
	const query = `SELECT coalesce(max(last_pos), ?2) FROM segments WHERE last_pos BETWEEN ?1 AND ?2`
	err = t.Row(ctx, query, database.Clamp(from), database.Clamp(to)).Scan(&last)
	return last, err
}

// maxWindow bounds the events for which there is room before they are read.
const maxWindow = 16 << 10

// within gathers events from a position to another one.
type within struct {
	from, to   uint64
	list       []Event
	size, most int // bytes of the events
}

// keepFrom takes the events of a run that were appended to the list, as far as they are wanted.
func (w *within) keepFrom(before int, run string) {
	fresh := w.list[before:]
	part := len(fresh) > 0 && (fresh[0].Pos < w.from || fresh[len(fresh)-1].Pos > w.to)
	if part {
		fresh = dropOutside(fresh, w.from, w.to)
	}
	for i := range fresh {
		fresh[i].Run = run
		if part { // the rest of the segment isn't to stay in memory
			fresh[i].Data = bytes.Clone(fresh[i].Data)
		}
		w.size += len(fresh[i].Data)
	}
	w.list = w.list[:before+len(fresh)]
	for w.size > w.most && len(w.list) > 1 {
		w.list, w.size = firstHalf(w.list)
		w.to = w.list[len(w.list)-1].Pos
	}
}

// sortDense sorts events by their positions, of which few are missing between them as a rule. It is faster then.
func sortDense(list []Event) {
	first, last := uint64(math.MaxUint64), uint64(0)
	for i := range list {
		first, last = min(first, list[i].Pos), max(last, list[i].Pos)
	}
	if len(list) == 0 || last-first >= uint64(4*len(list)) {
		slices.SortFunc(list, byPosition)
		return
	}
	place := make([]int32, last-first+1) // by position: the place in the list, from 1
	for i := range list {
		if place[list[i].Pos-first] > 0 { // a store that is damaged has a position twice
			slices.SortFunc(list, byPosition)
			return
		}
		place[list[i].Pos-first] = 1
	}
	next := int32(0)
	for i := range place {
		next += place[i]
		place[i] = next
	}
	for i := range list { // each swap brings one to its place
		for to := int(place[list[i].Pos-first]) - 1; to != i; to = int(place[list[i].Pos-first]) - 1 {
			list[i], list[to] = list[to], list[i]
		}
	}
}

func byPosition(a, b Event) int { return cmp.Compare(a.Pos, b.Pos) }

// firstHalf returns the first ones of events, one at least and about half of their
// bytes, and how many those are.
func firstHalf(list []Event) (first []Event, size int) {
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

// Newest returns the last event that is kept as the stream had it; its position is 0
// if there is none.
func (a *Archive) Newest(ctx context.Context) (Event, error) {
	list, err := Ask(ctx, a, func(t *Tx) (list []Event, err error) {
		var pos uint64
		const query = `SELECT coalesce(max(pos), 0) FROM (SELECT max(last_pos) AS pos FROM segments UNION ALL SELECT max(last_pos) FROM tail) AS kept`
		if err = t.Row(ctx, query).Scan(&pos); err == nil {
			list, _, err = t.Window(ctx, pos, pos)
		}
		return list, err
	})
	if err != nil {
		return Event{}, fmt.Errorf("recorder: newest: %w", err)
	}
	if len(list) == 0 || list[0].Mark == Recorder {
		return Event{}, nil
	}
	return list[0], nil
}
