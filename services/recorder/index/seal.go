package index

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// When the tail of a run is sealed: when it has a segment's worth, when the run
// is over, or when a batch alone brings enough, as it does where there is much to
// catch up with. The hash chain is the same in any case.
const (
	segmentBytes = 512 << 10
	directEvents = 128
	directBytes  = 64 << 10
)

// writeEvents writes the batch's events of a run.
func (w *writer) writeEvents(r *runRow) error {
	over := r.changed && r.state.Status.Ended()
	if w.x.scratch || len(r.fresh) == 0 && (!over || r.TailEvents == 0) {
		return nil
	}
	if over || len(r.fresh) >= directEvents || r.freshBytes >= directBytes {
		return w.sealTail(r, r.fresh)
	}
	if r.TailEvents+int64(len(r.fresh)) > r.segmentEvents() || r.TailBytes+int64(r.freshBytes) >= segmentBytes {
		if err := w.sealTail(r, nil); err != nil {
			return err
		}
	}
	first, last := &r.fresh[0], &r.fresh[len(r.fresh)-1]
	w.queueRow(addTail, &table.Tail{
		Run: r.ID, FirstPos: first.Pos, LastPos: last.Pos, LastTime: last.Time, Events: int64(len(r.fresh)), Hash: last.Link[:],
		Data: bytes.Clone(w.x.Codec.PackLoose(r.fresh)),
	})
	r.TailEvents += int64(len(r.fresh))
	r.TailBytes += int64(r.freshBytes)
	return nil
}

// segmentEvents returns how many events the tail of a run has at most. It differs from run to run for the first segment, so that
// runs that go on at the same pace aren't all sealed at once: 64 of them took half a second, for which all else waited.
func (r *runRow) segmentEvents() int64 {
	const least, step = archive.SegmentEvents / 4, 619 // a step of the golden section spreads runs evenly that begin together
	if r.Segments > 0 {
		return archive.SegmentEvents
	}
	return least + r.ID*step%(archive.SegmentEvents-least)
}

// sealTail writes the tail of a run, and events behind it, as segments.
func (w *writer) sealTail(r *runRow, fresh []archive.Event) error {
	prev, err := w.sealedLink(r)
	if err != nil {
		return err
	}
	list := fresh
	if r.TailEvents > 0 {
		if list, err = w.readTail(r); err != nil {
			return err
		}
		list = append(list, fresh...)
	}
	for len(list) > 0 { // the tail is in the first one: it is smaller
		n, size := 0, 0
		for n < len(list) && n < archive.SegmentEvents && size < segmentBytes {
			size += len(list[n].Data)
			n++
		}
		if err := w.writeSegment(r, prev, list[:n]); err != nil {
			return err
		}
		prev, list = list[n-1].Link, list[n:]
	}
	if r.TailEvents == 0 {
		return nil
	}
	r.TailEvents, r.TailBytes = 0, 0
	return w.exec(dropTail, r.ID)
}

// writeSegment writes one segment.
func (w *writer) writeSegment(r *runRow, prev chain.Link, list []archive.Event) error {
	first, last := &list[0], &list[len(list)-1]
	r.Segments++
	return w.putRow(addSegment, &table.Segment{
		Run: r.ID, N: r.Segments, FirstPos: first.Pos, LastPos: last.Pos, FirstTime: first.Time, LastTime: last.Time,
		Events: int64(len(list)), Prev: prev[:], Hash: last.Link[:], Codec: archive.Columns, Data: w.x.Codec.Pack(list),
	})
}

// sealedLink returns the link after the last sealed event of a run.
func (w *writer) sealedLink(r *runRow) (l chain.Link, err error) {
	if r.Segments == 0 {
		return chain.FirstLink(w.batch.Incarnation, r.RunID), nil
	}
	var hash []byte
	err = w.scanRow(lastSegment, []any{r.ID, r.Segments}, &hash)
	if errors.Is(err, sql.ErrNoRows) || err == nil && len(hash) != len(l) {
		err = fmt.Errorf("run %q: segment %d is missing: the file is damaged", r.RunID, r.Segments)
	}
	copy(l[:], hash)
	return l, err
}

// readTail reads the tail of a run.
func (w *writer) readTail(r *runRow) ([]archive.Event, error) {
	list, err := w.tx.Tail(w.ctx, r.ID, 0, math.MaxInt64)
	if err == nil && int64(len(list)) != r.TailEvents {
		err = fmt.Errorf("the tail has %d events instead of %d: the file is damaged", len(list), r.TailEvents)
	}
	if err != nil {
		return nil, fmt.Errorf("run %q: %w", r.RunID, err)
	}
	return list, nil
}
