package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"wake/internal/eventlog"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// Batch is what is recorded in one transaction.
type Batch struct {
	Incarnation string           // of the stream
	Entries     []eventlog.Entry // in stream order
	// Blobs holds large fields that the entries refer to, by SHA-256. One that is
	// neither here nor in the file is recorded as missing.
	Blobs map[string][]byte
	// Part says that the entries are of some runs only: positions between them are
	// of others, not lost.
	Part bool
	// Later leaves it to [Store.Derive] to derive from the entries what follows from
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
}

// Record stores a batch. Entries at or below the recorded position are passed
// over. It fails with [eventlog.ErrIncarnation] if the file is of another
// incarnation of the stream. A batch that fails leaves no trace.
func (s *Store) Record(ctx context.Context, b Batch) (Report, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	report, err := s.record(ctx, b)
	if err != nil {
		s.unsure()
		return Report{}, fmt.Errorf("recorder: record: %w", err)
	}
	return report, nil
}

// unsure drops what is known of the store: a transaction that failed may have been
// committed.
func (s *Store) unsure() {
	s.folds.forget()
	s.live.forget()
	s.last = 0
}

func (s *Store) record(ctx context.Context, b Batch) (Report, error) {
	begun, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return Report{}, err
	}
	t := &tx{begun, s.d, s.zip}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	w, err := s.fill(ctx, t, b)
	if err != nil {
		return Report{}, err
	}
	if err := t.Commit(); err != nil {
		return Report{}, err
	}
	s.live.recorded(w)
	return w.report, nil
}

// fill records a batch in a transaction.
func (s *Store) fill(ctx context.Context, t *tx, b Batch) (*writer, error) {
	w, err := s.begin(ctx, t, b)
	if err != nil {
		return nil, err
	}
	w.atOnce = !b.Later && w.derived == w.pos
	for i := range b.Entries {
		if err := w.entry(&b.Entries[i]); err != nil {
			return nil, fmt.Errorf("position %d: %w", b.Entries[i].Pos, err)
		}
	}
	return w, w.finish()
}

// writer is one transaction.
type writer struct {
	// ctx doesn't end for SQLite, since the driver would start a goroutine per
	// statement to heed that; the transaction ends with the context it was begun
	// with.
	ctx       context.Context //nolint:containedctx // the writer doesn't outlive the transaction
	s         *Store
	tx        *tx
	stmts     [statementCount]*sql.Stmt // as they are in the transaction
	rows      map[statement]*bulk
	spendings map[spendKey]*spending
	spent     []*spending // the same, in the order in which they came
	batch     Batch
	stream    int64
	pos       uint64 // last position seen
	derived   uint64 // up to here what follows from the events is derived
	was       uint64 // the same when the transaction began
	atOnce    bool   // what follows from an event is derived with it
	runs      map[string]*runRow
	order     []*runRow // in the order of their first event, for rows that are the same in every rebuild
	lines     map[uint64]*pendingLine
	growing   map[int64]uint64 // of the nodes of the batch: the line that isn't finished, 0: none
	queue     []*pendingLine   // in the order of their positions
	written   []*pendingLine   // what the queue was in the end
	said      []*pendingMessage
	report    Report
}

func (s *Store) begin(ctx context.Context, t *tx, b Batch) (*writer, error) {
	w := &writer{ctx: ctx, s: s, tx: t, batch: b, runs: map[string]*runRow{}, lines: map[uint64]*pendingLine{}}
	if !s.d.interrupt {
		w.ctx = context.WithoutCancel(ctx)
	}
	if s.d.lock != "" {
		if _, err := t.exec(ctx, s.d.lock); err != nil {
			return nil, err
		}
	}
	var incarnation string
	err := t.row(ctx, `SELECT id, incarnation, position, derived FROM streams`).Scan(&w.stream, &incarnation, &w.pos, &w.derived)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		w.stream = 1
		_, err = t.exec(ctx, `INSERT INTO streams (id, incarnation, position) VALUES (1, ?1, 0)`, b.Incarnation)
		if err == nil && b.Part { // what isn't here was never here
			_, err = t.exec(ctx, `INSERT INTO retired (run, at, events, head) VALUES (?1, 0, 0, ?2)`, otherRuns, []byte{})
		}
	case err == nil && incarnation != b.Incarnation:
		err = eventlog.ErrIncarnation
	case err == nil && w.pos < s.last && !s.scratch:
		err = fmt.Errorf("the store went back from position %d to %d: start again", s.last, w.pos)
	case err == nil && (w.pos > s.last || w.derived != s.derived) && !s.scratch:
		s.folds.forget() // somebody else has recorded
		s.live.forget()
	}
	w.was = w.derived
	return w, err
}

// otherRuns stands in the table retired for the runs that a store of some runs
// doesn't have. No run has this id.
const otherRuns = "_others"

func (w *writer) entry(e *eventlog.Entry) error {
	if e.Pos <= w.pos {
		return nil
	}
	if e.Pos > w.pos+1 && !w.batch.Part {
		if err := w.lost(e); err != nil {
			return err
		}
	}
	w.pos = e.Pos
	w.report.Events++
	if e.Err != nil {
		return w.bad(e)
	}
	if len(e.RunID) > maxKey || len(e.Event.NodeID) > maxKey || len(e.Event.Node()) > maxKey {
		odd := *e
		odd.Err = errKey
		return w.bad(&odd)
	}
	return w.event(e)
}

// maxKey bounds the bytes of what is found by an index. Ids that may be chosen are
// a quarter of that at most.
const maxKey = 4 * subjects.MaxID

var errKey = errors.New("its ids are longer than any may be")

// lost leaves a mark for positions that the stream dropped before they were
// recorded. It stands at the last of them.
func (w *writer) lost(next *eventlog.Entry) error {
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
	return w.aside(stored{
		pos: next.Pos - 1, time: next.Time.UnixMilli(), mark: markRecorder, note: fmt.Sprintf("positions from %d", w.pos+1), data: data,
	})
}

// bad keeps what isn't an event.
func (w *writer) bad(e *eventlog.Entry) error {
	w.report.Bad++
	note := e.Err.Error()
	if e.Subject != "" {
		note = e.Subject + ": " + note
	}
	note = postgresText(note) // whatever the database is, since it is hashed
	return w.aside(stored{pos: e.Pos, time: e.Time.UnixMilli(), mark: markBad, note: note, data: e.Data})
}

// aside keeps what is no event of a run, in the run that is none.
func (w *writer) aside(s stored) error {
	run, err := w.run(wire.NoRun, s.pos)
	if err != nil {
		return err
	}
	w.keep(run, s)
	return nil
}

// keep adds what was stored to its run.
func (w *writer) keep(r *runRow, s stored) {
	r.head = w.s.chain.next(r.head, &s)
	s.link = r.head
	r.fresh = append(r.fresh, s)
	r.freshBytes += len(s.data)
	r.events++
	r.lastPos = s.pos
}

// The marks of events that readers don't see.
const (
	markVoid     = "void"
	markBad      = "bad"
	markRecorder = "recorder"
)

// event records an event and what follows from it.
func (w *writer) event(e *eventlog.Entry) error {
	run, err := w.run(e.RunID, e.Pos)
	if err != nil {
		return err
	}
	if run.gone {
		run.late++
		w.report.Late++
		return nil
	}
	node, err := w.node(run, e.Event.NodeID)
	if err != nil {
		return err
	}
	kept := stored{pos: e.Pos, time: e.Time.UnixMilli(), note: voidReason(node, e.Event), data: e.Data}
	if kept.note != "" {
		kept.mark = markVoid
		run.void++
		w.report.Void++
	}
	w.keep(run, kept)
	if kept.mark != "" {
		return nil
	}
	w.sequence(run, node, e.Event)
	about := node
	if id := e.Event.Node(); id != e.Event.NodeID {
		if about, err = w.node(run, id); err != nil {
			return err
		}
	}
	if err := w.fields(run, e.Event); err != nil {
		return err
	}
	if !w.atOnce && e.Pos > w.derived {
		return nil
	}
	return w.derive(run, node, about, e)
}

// voidReason says why an event doesn't count, or "".
func voidReason(n *nodeRow, e *wire.Event) string {
	switch {
	case e.Epoch < n.epoch:
		return fmt.Sprintf("epoch %d was fenced by epoch %d", e.Epoch, n.epoch)
	case e.Seq <= n.seq:
		return fmt.Sprintf("seq %d comes after seq %d", e.Seq, n.seq)
	}
	return ""
}

// sequence moves the node on and counts what is missing before the event.
func (w *writer) sequence(run *runRow, n *nodeRow, e *wire.Event) {
	if missing := int64(e.Seq - n.seq - 1); missing > 0 {
		run.gaps += missing
		w.report.Gaps += missing
	}
	n.seq = e.Seq
	switch e.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		n.epoch = e.Epoch
	}
}

// derive updates everything that can be derived from an event, which a node has
// written and another one may be meant by.
func (w *writer) derive(run *runRow, writer, about *nodeRow, e *eventlog.Entry) error {
	run.derived = e.Pos
	run.passed++
	whole, err := w.inline(e)
	if err != nil {
		return err
	}
	if err := w.fold(run, e, whole); err != nil {
		return err
	}
	w.hear(run, e, whole)
	about.count(run, whole)
	if err := w.session(run, about, e.Pos, whole); err != nil {
		return err
	}
	if err := w.converse(run, about, e.Pos, whole); err != nil {
		return err
	}
	return w.line(run, writer, about, e.Pos, whole)
}

// finish writes what the transaction has gathered.
func (w *writer) finish() error {
	w.written = slices.Clone(w.queue)
	if err := w.writeLines(); err != nil {
		return err
	}
	if err := w.insert(addCall); err != nil {
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
	for id, run := range w.runs {
		var events int64
		if run.late == 0 {
			continue
		}
		if err := w.scan(countLate, []any{run.late, id}, &events); err != nil {
			return err
		}
	}
	if w.atOnce {
		w.derived = w.pos
	}
	w.report.Position, w.report.Derived = wire.Position{Incarnation: w.batch.Incarnation, Seq: w.pos}, w.derived
	w.s.last, w.s.derived = w.pos, w.derived
	return w.exec(moveOn, w.pos, w.derived, w.report.Bad, w.report.Lost, w.stream)
}
