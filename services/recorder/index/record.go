package index

import (
	"context"
	"errors"
	"fmt"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Record stores a batch. Entries at or below the recorded position are passed
// over. It fails with [eventlog.ErrIncarnation] if the file is of another
// incarnation of the stream. A batch that fails leaves no trace.
func (x *Index) Record(ctx context.Context, b Batch) (Report, error) {
	x.turn.Lock()
	defer x.turn.Unlock()
	report, err := x.recordBatch(ctx, b)
	if err != nil {
		x.dropCaches()
		return Report{}, fmt.Errorf("recorder: record: %w", err)
	}
	return report, nil
}

func (x *Index) recordBatch(ctx context.Context, b Batch) (Report, error) {
	t, err := x.Begin(ctx)
	if err != nil {
		return Report{}, err
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	w, err := x.writeBatch(ctx, t, b)
	if err != nil {
		return Report{}, err
	}
	if err := t.Commit(); err != nil {
		return Report{}, err
	}
	w.publishChanges()
	return w.report, nil
}

// writeBatch records a batch in a transaction.
func (x *Index) writeBatch(ctx context.Context, t *archive.Tx, b Batch) (*writer, error) {
	w, err := x.beginWriter(ctx, t, b)
	if err != nil {
		return nil, err
	}
	w.atOnce = !b.Later && w.derived == w.pos
	for i := range b.Entries {
		if err := w.recordEntry(&b.Entries[i]); err != nil {
			return nil, fmt.Errorf("position %d: %w", b.Entries[i].Pos, err)
		}
	}
	return w, w.finishBatch()
}

func (w *writer) recordEntry(e *eventlog.Entry) error {
	if e.Pos <= w.pos {
		return nil
	}
	if e.Pos > w.pos+1 && !w.batch.Part {
		if err := w.recordLoss(e); err != nil {
			return err
		}
	}
	w.pos = e.Pos
	w.report.Events++
	if e.Err != nil {
		return w.keepBadEntry(e)
	}
	if len(e.RunID) > table.MaxKey || len(e.Event.NodeID) > table.MaxKey || len(e.Event.Node()) > table.MaxKey {
		odd := *e
		odd.Err = errKey
		return w.keepBadEntry(&odd)
	}
	return w.recordEvent(e)
}

var errKey = errors.New("its ids are longer than any may be")

// recordLoss leaves a mark for positions that the stream dropped before they were
// recorded. It stands at the last of them.
func (w *writer) recordLoss(next *eventlog.Entry) error {
	lost := next.Pos - 1 - w.pos
	e := &wire.Event{
		RunID: wire.NoRun, NodeID: wire.RunNode, Seq: w.pos + 1, Epoch: 1, Timestamp: next.Time.UnixMilli(),
		Payload: &wire.LogTruncated{AtSeq: w.pos, Lost: lost, Reason: "the stream had dropped them before they were recorded"},
	}
	data, err := wire.Encode(e)
	if err != nil {
		return err
	}
	w.report.Lost += int64(lost)
	return w.keepAside(archive.Event{
		Pos: next.Pos - 1, Time: next.Time.UnixMilli(), Mark: archive.Recorder, Note: fmt.Sprintf("positions from %d", w.pos+1), Data: data,
	})
}

// keepBadEntry keeps what isn't an event.
func (w *writer) keepBadEntry(e *eventlog.Entry) error {
	w.report.Bad++
	note := e.Err.Error()
	if e.Subject != "" {
		note = e.Subject + ": " + note
	}
	note = database.PostgresText(note) // whatever the database is, since it is hashed
	return w.keepAside(archive.Event{Pos: e.Pos, Time: e.Time.UnixMilli(), Mark: archive.Bad, Note: note, Data: e.Data})
}

// keepAside keeps what is no event of a run, in the run that is none.
func (w *writer) keepAside(s archive.Event) error {
	run, err := w.loadRun(wire.NoRun, s.Pos)
	if err != nil {
		return err
	}
	w.keepEvent(run, s)
	return nil
}

// keepEvent adds what was stored to its run.
func (w *writer) keepEvent(r *runRow, s archive.Event) {
	r.head = w.x.chain.Next(r.head, &s)
	s.Link = r.head
	r.fresh = append(r.fresh, s)
	r.freshBytes += len(s.Data)
	r.Events++
	r.LastPos = s.Pos
}

// recordEvent records an event and what follows from it.
func (w *writer) recordEvent(e *eventlog.Entry) error {
	run, err := w.loadRun(e.RunID, e.Pos)
	if err != nil {
		return err
	}
	if run.gone {
		run.late++
		w.report.Late++
		return nil
	}
	node, err := w.loadNode(run, e.Event.NodeID)
	if err != nil {
		return err
	}
	kept := archive.Event{Pos: e.Pos, Time: e.Time.UnixMilli(), Note: voidReason(node, e.Event), Data: e.Data}
	if kept.Note != "" {
		kept.Mark = archive.Void
		run.VoidEvents++
		w.report.Void++
	}
	w.keepEvent(run, kept)
	if kept.Mark != "" {
		return nil
	}
	w.advanceNode(run, node, e.Event)
	about := node
	if id := e.Event.Node(); id != e.Event.NodeID {
		if about, err = w.loadNode(run, id); err != nil {
			return err
		}
	}
	if err := w.storeFields(run, e.Event); err != nil {
		return err
	}
	if !w.atOnce && e.Pos > w.derived {
		return nil
	}
	return w.deriveEvent(run, node, about, e)
}

// voidReason says why an event doesn't count, or "".
func voidReason(n *nodeRow, e *wire.Event) string {
	switch {
	case e.Epoch < n.Epoch:
		return fmt.Sprintf("epoch %d was fenced by epoch %d", e.Epoch, n.Epoch)
	case e.Epoch > n.Epoch && n.Epoch > 0 && !e.Claims():
		return fmt.Sprintf("epoch %d was never claimed", e.Epoch)
	case e.Seq <= n.Seq:
		return fmt.Sprintf("seq %d comes after seq %d", e.Seq, n.Seq)
	}
	return ""
}

// advanceNode moves the node on and counts what is missing before the event.
func (w *writer) advanceNode(run *runRow, n *nodeRow, e *wire.Event) {
	if missing := int64(e.Seq - n.Seq - 1); missing > 0 {
		run.Gaps += missing
		w.report.Gaps += missing
	}
	n.Seq = e.Seq
	if e.Claims() {
		n.Epoch = e.Epoch
	}
}
