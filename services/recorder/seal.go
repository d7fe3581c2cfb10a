package recorder

import (
	"database/sql"
	"errors"
	"fmt"
)

// When the tail of a run is sealed: when it has a segment's worth, when the run
// is over, or when a batch alone brings enough, as it does where there is much to
// catch up with. The hash chain is the same in any case.
const (
	segmentEvents = 1000
	segmentBytes  = 512 << 10
	directEvents  = 128
	directBytes   = 64 << 10
)

// writeEvents writes the batch's events of a run.
func (w *writer) writeEvents(r *runRow) error {
	defer w.s.spare.put(r)
	over := r.changed && ended(r.state)
	if w.s.scratch || len(r.fresh) == 0 && (!over || r.tailEvents == 0) {
		return nil
	}
	events, size := r.tailEvents+int64(len(r.fresh)), r.tailBytes+int64(r.freshBytes)
	full := events >= segmentEvents || size >= segmentBytes || len(r.fresh) >= directEvents || r.freshBytes >= directBytes
	if full || over {
		return w.seal(r)
	}
	for i := range r.fresh {
		s := &r.fresh[i]
		if err := w.exec(addTail, s.pos, r.id, s.time, s.mark, s.note, s.link[:], s.data); err != nil {
			return err
		}
	}
	r.tailEvents, r.tailBytes = events, size
	return nil
}

// spare are slices that were a run's events of a batch: the next batch takes them.
type spare [][]stored

// Bounds of what is kept for the next batch.
const (
	maxSpare     = 64   // slices
	maxSpareSize = 4096 // events of one
)

func (s *spare) put(r *runRow) {
	if c := cap(r.fresh); c > 0 && c <= maxSpareSize && len(*s) < maxSpare {
		clear(r.fresh)
		*s = append(*s, r.fresh[:0])
	}
	r.fresh = nil
}

func (s *spare) take() []stored {
	last := len(*s) - 1
	if last < 0 {
		return nil
	}
	list := (*s)[last]
	*s = (*s)[:last]
	return list
}

// seal writes the tail of a run and the batch's events as segments.
func (w *writer) seal(r *runRow) error {
	prev, err := w.sealed(r)
	if err != nil {
		return err
	}
	list, err := w.tail(r)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		list = r.fresh
	} else {
		list = append(list, r.fresh...)
	}
	for len(list) > 0 {
		n, size := 0, 0
		for n < len(list) && n < segmentEvents && size < segmentBytes {
			size += len(list[n].data)
			n++
		}
		if err := w.segment(r, prev, list[:n]); err != nil {
			return err
		}
		prev, list = list[n-1].link, list[n:]
	}
	if r.tailEvents == 0 {
		return nil
	}
	r.tailEvents, r.tailBytes = 0, 0
	return w.exec(dropTail, r.id)
}

// segment writes one segment.
func (w *writer) segment(r *runRow, prev link, list []stored) error {
	first, last := &list[0], &list[len(list)-1]
	r.segments++
	return w.exec(addSegment, r.id, r.segments, first.pos, last.pos, first.time, last.time, len(list), prev[:], last.link[:], codecZstd, w.s.zip.pack(list))
}

// sealed returns the link after the last sealed event of a run.
func (w *writer) sealed(r *runRow) (l link, err error) {
	if r.segments == 0 {
		return firstLink(w.batch.Incarnation, r.run), nil
	}
	var hash []byte
	err = w.scan(lastSegment, []any{r.id, r.segments}, &hash)
	if errors.Is(err, sql.ErrNoRows) || err == nil && len(hash) != len(l) {
		err = fmt.Errorf("run %q: segment %d is missing: the file is damaged", r.run, r.segments)
	}
	copy(l[:], hash)
	return l, err
}

// tail reads the tail of a run.
func (w *writer) tail(r *runRow) (list []stored, err error) {
	if r.tailEvents == 0 {
		return nil, nil
	}
	stmt, err := w.stmt(sealedTail)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(w.ctx, r.id)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // what is wrong with the rows, Err tells
	for rows.Next() {
		var s stored
		var hash []byte
		if err := rows.Scan(&s.pos, &s.time, &s.mark, &s.note, &hash, &s.data); err != nil {
			return nil, err
		}
		copy(s.link[:], hash)
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if int64(len(list)) != r.tailEvents {
		return nil, fmt.Errorf("run %q: the tail has %d events instead of %d: the file is damaged", r.run, len(list), r.tailEvents)
	}
	return list, nil
}
