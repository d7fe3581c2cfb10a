package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"code.wake.dev/wake/internal/chain"
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
	if w.holds {
		x.held.holdBatch(w.later, w.began, w.pos, w.derived)
	}
	w.publishChanges()
	w.keepKnown()
	return w.report, nil
}

// writeBatch records a batch in a transaction.
func (x *Index) writeBatch(ctx context.Context, t *archive.Tx, b Batch) (*writer, error) {
	w, err := x.beginWriter(ctx, t, b)
	if err != nil {
		return nil, err
	}
	w.atOnce = !b.Later && w.derived == w.pos
	if w.holds = !w.atOnce && x.held.takes(w.pos, w.derived); w.holds {
		w.later = make([]decoded, 0, len(b.Entries))
	}
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
	if !database.IsKey(e.RunID) || !database.IsKey(e.Event.NodeID) || !database.IsKey(e.Event.Node()) || max(e.Event.Seq, e.Event.Epoch) > math.MaxInt64 {
		odd := *e
		odd.Err = errKey
		return w.keepBadEntry(&odd)
	}
	return w.recordEvent(e)
}

var errKey = errors.New("its ids are longer, or its numbers larger, than any may be")

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
	if s.Link = w.link; s.Link == (chain.Link{}) {
		s.Link = w.x.chain.Next(r.head, s.Pos, s.Time, s.Mark, s.Note, s.Data)
	}
	r.head = s.Link
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
		if w.holds {
			w.later = append(w.later, decoded{e.Pos, e.Event, e.Data})
		}
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

// Batch is what is recorded in one transaction.
type Batch struct {
	Incarnation string           // of the stream
	Entries     []eventlog.Entry // in stream order
	// Blobs holds large fields that the entries refer to, by SHA-256. One that is
	// neither here nor in the file is recorded as missing.
	Blobs map[string][]byte
	// Part says that the entries are of some runs only: positions between them belong
	// to other runs, they aren't lost.
	Part bool
	// Later leaves it to [Index.Derive] to derive from the entries what follows from
	// them. That is so in any case while something is left to it already.
	Later bool
}

// Report says what a batch came to.
type Report struct {
	Position wire.Position // up to here everything is recorded
	Derived  uint64        // up to here what follows from the events is derived
	Events   int           // recorded now
	Void     int           // of those: by fenced writers, or in a place that was taken
	Bad      int           // of those: no events
	Refused  int           // of what was derived now: not allowed by the run's history
	Late     int           // of those: of runs that were deleted, which are not kept
	Gaps     int64         // events missing in a node's sequence
	Lost     int64         // positions that the stream had dropped
	Defects  []Defect      // of those that were refused: the recorder's own fault
}

// Defect is an event from which the recorder couldn't derive all that follows from it.
type Defect struct {
	Entry  eventlog.Entry
	Reason string
}

// storeFields copies the large fields of an event into the file: the object store may
// forget them, the record doesn't.
func (w *writer) storeFields(run *runRow, e *wire.Event) error {
	for _, b := range e.Blobs {
		data, ok := w.batch.Blobs[b.SHA256]
		kept := table.Blob{SHA256: b.SHA256, Size: b.Size}
		if ok {
			kept.Data = &data
		}
		if err := w.putRow(addBlob, &kept); err != nil {
			return err
		}
		if err := w.putRow(addUse, &table.BlobUse{SHA256: b.SHA256, Run: run.ID}); err != nil {
			return err
		}
	}
	return nil
}

// inlineFields returns the entry's event with its large fields.
func (w *writer) inlineFields(e *eventlog.Entry) (*wire.Event, error) {
	return archive.Inline(e.Event, e.Data, func(sha string) ([]byte, error) {
		field, err := w.tx.Blob(w.ctx, sha)
		w.inlined += len(field)
		return field, err
	})
}

func (x *Index) beginWriter(ctx context.Context, t *archive.Tx, b Batch) (*writer, error) {
	w := &writer{ctx: ctx, x: x, tx: t, batch: b, runs: map[string]*runRow{}, lines: map[uint64]*pendingLine{}}
	if !x.D.Interrupt {
		w.ctx = context.WithoutCancel(ctx)
	}
	for s := range statementCount {
		x.dropRows(s) // of one that failed
	}
	if err := t.Lock(ctx); err != nil {
		return nil, err
	}
	var incarnation string
	err := w.scanRow(findStream, nil, &w.stream, &incarnation, &w.pos, &w.derived)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		w.stream = 1
		err = t.Put(ctx, "streams", &table.Stream{ID: w.stream, Incarnation: b.Incarnation}, "")
		if err == nil && b.Part { // what isn't here was never here
			err = t.Put(ctx, "retired", &table.Retired{Run: archive.OtherRuns, Head: []byte{}}, "")
		}
	case err == nil && incarnation != b.Incarnation:
		err = eventlog.ErrIncarnation
	case err == nil && w.pos < x.last && !x.scratch:
		err = fmt.Errorf("the store went back from position %d to %d: start again", x.last, w.pos)
	case err == nil && (w.pos > x.last || w.derived != x.derived) && !x.scratch:
		x.folds.dropAll() // another recorder has written
		x.held, x.known = held{}, known{number: x.known.number}
		x.answers.ForgetLive()
	}
	w.was, w.began = w.derived, w.pos
	if err == nil {
		err = w.useKnown()
	}
	return w, err
}

// finishBatch writes what the transaction has gathered.
func (w *writer) finishBatch() error {
	if err := w.writeLines(); err != nil {
		return err
	}
	if err := errors.Join(w.insertRows(addCall), w.insertRows(addSeen)); err != nil {
		return err
	}
	if err := w.writeSpend(); err != nil {
		return err
	}
	if err := w.writeMessages(); err != nil {
		return err
	}
	for _, run := range w.order {
		if err := w.writeRun(run); err != nil {
			return err
		}
	}
	if err := w.insertRows(addTail); err != nil {
		return err
	}
	for id, run := range w.runs {
		w.x.spare.putSlice(run)
		if run.late == 0 {
			continue
		}
		if err := w.exec(countLate, run.late, id); err != nil {
			return err
		}
	}
	if w.atOnce {
		w.derived = w.pos
	}
	w.report.Position, w.report.Derived = wire.Position{Incarnation: w.batch.Incarnation, Seq: w.pos}, w.derived
	w.x.last, w.x.derived = w.pos, w.derived
	return w.exec(moveOn, w.pos, w.derived, w.report.Bad, w.report.Lost, w.stream)
}

// Derive derives, in one transaction, what follows from events that were recorded
// with Later, of at most so many positions. It is done when the report's Derived is
// its Position's. Like [Index.Record] it fails without a trace.
func (x *Index) Derive(ctx context.Context, most int) (Report, error) {
	x.turn.Lock()
	defer x.turn.Unlock()
	report, err := x.deriveSome(ctx, uint64(most))
	if err != nil {
		x.dropCaches()
		return Report{}, fmt.Errorf("recorder: derive: %w", err)
	}
	return report, nil
}

func (x *Index) deriveSome(ctx context.Context, most uint64) (Report, error) {
	t, err := x.Begin(ctx)
	if err != nil {
		return Report{}, err
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if err := t.Lock(ctx); err != nil {
		return Report{}, err
	}
	at, derived, err := t.Reached(ctx)
	if err != nil || derived == at.Seq {
		return Report{Position: at, Derived: derived}, err
	}
	w, err := x.beginWriter(ctx, t, Batch{Incarnation: at.Incarnation})
	if err != nil {
		return Report{}, err
	}
	if err := w.deriveTo(min(at.Seq, derived+most)); err != nil {
		return Report{}, err
	}
	if err := t.Commit(); err != nil {
		return Report{}, err
	}
	x.held.dropTo(w.derived)
	w.publishChanges()
	w.keepKnown()
	return w.report, nil
}

// deriveTo derives what follows from the recorded events up to a position, or up to
// an earlier one if they are large, with their large fields, or held only so far.
func (w *writer) deriveTo(to uint64) error {
	list, last := w.x.held.firstTo(w.derived, to)
	if last == w.derived {
		var err error
		if list, last, err = w.readEvents(to); err != nil {
			return err
		}
	}
	for i := range list {
		if err := w.deriveLater(&list[i]); err != nil {
			return fmt.Errorf("position %d: %w", list[i].pos, err)
		}
		if w.inlined > maxInlined && i+1 < len(list) {
			last = list[i].pos
			break
		}
	}
	w.derived = last
	return w.finishBatch()
}

// readEvents reads the recorded events that count, as [writer.deriveTo] needs them.
func (w *writer) readEvents(to uint64) (list []decoded, last uint64, err error) {
	if to, err = w.tx.WholeTo(w.ctx, w.derived+1, to); err != nil {
		return nil, 0, err
	}
	kept, last, err := w.tx.Within(w.ctx, w.derived+1, to, deriveBytes)
	list = make([]decoded, 0, len(kept))
	for i := range kept {
		if kept[i].Mark != "" {
			continue
		}
		event, err := wire.Decode(kept[i].Data)
		if err != nil {
			return nil, 0, fmt.Errorf("position %d: %w", kept[i].Pos, err)
		}
		list = append(list, decoded{kept[i].Pos, event, kept[i].Data})
	}
	return list, last, err
}

// deriveLater derives what follows from an event that was recorded before.
func (w *writer) deriveLater(d *decoded) error {
	run, err := w.loadRun(d.event.RunID, d.pos)
	if err != nil || run.gone {
		return err
	}
	writer, err := w.loadNode(run, d.event.NodeID)
	if err != nil {
		return err
	}
	about, err := w.loadNode(run, d.event.Node())
	if err != nil {
		return err
	}
	return w.deriveEvent(run, writer, about, &eventlog.Entry{
		Pos: d.pos, RunID: d.event.RunID, NodeID: d.event.NodeID, Kind: d.event.Type().Kind(), Data: d.data, Event: d.event,
	})
}

// deriveBytes bounds the events that are read for that, and maxInlined their large fields, which stay in memory until all is written.
const (
	deriveBytes = 16 << 20
	maxInlined  = 32 << 20
)
