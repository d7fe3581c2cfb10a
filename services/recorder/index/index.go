// Package index derives what follows from recorded events: the rows of runs, nodes,
// sessions, lines and conversations, states, the full text. The same deriver does that
// while events are recorded, when a recorder catches up, when everything is derived
// again, and for `wake verify` to compare with.
package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
	"code.wake.dev/wake/services/recorder/queries"
)

// Derivation is the version of what the rows are that follow from events: a release in which some come out otherwise, such
// as in other words, has a higher one than the release before it.
const Derivation = 1

// Index records events in an archive and derives from them. One goroutine may record,
// and one derive.
type Index struct {
	*archive.Archive

	answers *queries.Answers // are told what is derived
	stmts   *statements
	folds   *folds
	held    held
	known   known
	chain   chain.Linker
	spare   spare
	rows    [statementCount][]any // that wait to be inserted, see queueRow
	args    []any                 // of the last statement that has written rows
	list    database.List         // the same

	turn    sync.Mutex // held to record or to derive
	last    uint64     // position after the last transaction; 0: unknown
	derived uint64     // up to where what follows from the events was derived then

	scratch bool // events aren't kept, only what is derived from them
}

// New returns the index of an archive. It tells answers what is new. The caller closes
// the archive.
func New(ctx context.Context, kept *archive.Archive, answers *queries.Answers) (*Index, error) {
	x := &Index{Archive: kept, answers: answers, folds: newFolds()}
	var err error
	if x.stmts, err = prepareStatements(ctx, x.D, x.Writer); err != nil {
		return nil, fmt.Errorf("recorder: open %s: %w", x.Name, err)
	}
	return x, nil
}

// Scratch returns an empty index in a file of its own, which is its to close. Nothing in
// it is ever committed.
func Scratch(ctx context.Context, path string) (*Index, error) {
	db, err := database.Scratch(ctx, path)
	if err != nil {
		return nil, err
	}
	kept, err := archive.New(db)
	if err != nil {
		return nil, err
	}
	x, err := New(ctx, kept, queries.New(kept))
	if err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	x.scratch = true
	return x, nil
}

// Close gives back what the index has of its archive.
func (x *Index) Close() error { return x.stmts.close() }

// dropCaches drops what is known of the store: a transaction that failed may have been
// committed.
func (x *Index) dropCaches() {
	x.folds.dropAll()
	x.held, x.known = held{}, known{number: x.known.number}
	x.answers.ForgetLive()
	x.last = 0
}

// ForgetStates drops the states that are held, so that runs of the same id may follow.
func (x *Index) ForgetStates() { x.folds.dropAll() }

// folds are the states of the runs that were last recorded.
type folds struct {
	byRun  map[int64]*runFold
	passed map[int64]int // events of any kind since the state in the file, as far as they were seen
}

type runFold struct {
	state *wire.State
	saved uint64 // events that the state in the file is of
}

func newFolds() *folds { return &folds{byRun: map[int64]*runFold{}, passed: map[int64]int{}} }

// dropAll drops what may be ahead of the file.
func (f *folds) dropAll() {
	clear(f.byRun)
	clear(f.passed)
}

// known are the rows of runs and their nodes as the last transactions have written them: the next batch is mostly of the same runs.
type known struct {
	runs       map[string]*knownRun
	size       int              // of all of them
	hasVersion bool             // else the version is none
	version    database.Version // of the file that has them
	number     uint64           // of the last transaction
}

type knownRun struct {
	table.Run

	head  chain.Link
	nodes map[string]*nodeRow
	size  int // about the bytes that they take
}

// Bounds of what is known, in bytes.
const (
	maxKnownSize = 16 << 20
	nodeSize     = 2 << 10 // about what a node takes besides what may grow
)

// useKnown drops what is known if anything else has changed the file since.
func (w *writer) useKnown() error {
	k := &w.x.known
	k.number++
	w.number = k.number
	if w.x.Path == "" || w.x.scratch { // PostgreSQL tells no version
		return nil
	}
	version, err := w.x.VersionIn(w.ctx, w.tx.Tx)
	if k.hasVersion = err == nil; k.hasVersion && version != k.version {
		*k = known{hasVersion: true, version: version, number: k.number}
	}
	return err
}

// keepKnown keeps the rows that a transaction has written, once it is committed.
func (w *writer) keepKnown() {
	k := &w.x.known
	if !k.hasVersion {
		return
	}
	if k.runs == nil {
		k.runs = map[string]*knownRun{}
	}
	for _, r := range w.order {
		of := &knownRun{Run: r.Run, head: r.head, nodes: r.nodes}
		of.Head = nil // which is the batch's
		if old := k.runs[r.RunID]; old != nil {
			of.size = old.size
			k.size -= old.size
		}
		for _, n := range r.order {
			n.talk.Said.DropInputs()
			size := nodeSize + len(n.Timeline) + len(n.Talk)
			of.size, n.size = of.size+size-n.size, size
		}
		k.runs[r.RunID] = of
		k.size += of.size
	}
	for id, r := range k.runs {
		if k.size <= maxKnownSize {
			return
		}
		k.size -= r.size
		delete(k.runs, id)
	}
}

// spare are slices that were a run's events of a batch: the next batch takes them.
type spare [][]archive.Event

// Bounds of what is kept for the next batch.
const (
	maxSpare     = 64   // slices
	maxSpareSize = 4096 // events of one
)

func (s *spare) putSlice(r *runRow) {
	if c := cap(r.fresh); c > 0 && c <= maxSpareSize && len(*s) < maxSpare {
		clear(r.fresh)
		*s = append(*s, r.fresh[:0])
	}
	r.fresh = nil
}

func (s *spare) takeSlice() []archive.Event {
	last := len(*s) - 1
	if last < 0 {
		return nil
	}
	list := (*s)[last]
	*s = (*s)[:last]
	return list
}

// writer is one transaction.
type writer struct {
	// ctx doesn't end for SQLite, since the driver would start a goroutine per
	// statement to heed that; the transaction ends with the context it was begun
	// with.
	ctx       context.Context //nolint:containedctx // the writer doesn't outlive the transaction
	x         *Index
	tx        *archive.Tx
	stmts     [statementCount]*sql.Stmt // as they are in the transaction
	spendings map[spendKey]*table.Spend
	spent     []*table.Spend // the same, in the order in which they came
	batch     Batch
	stream    int64
	pos       uint64     // last position seen
	link      chain.Link // of the event that is replayed, if it is known
	derived   uint64     // up to here what follows from the events is derived
	inlined   int        // bytes of large fields that were put back
	was       uint64     // the same when the transaction began
	began     uint64     // the last position then
	later     []decoded  // of which something is to be derived later
	holds     bool       // they are to be held
	atOnce    bool       // what follows from an event is derived with it
	runs      map[string]*runRow
	number    uint64    // of the transaction
	order     []*runRow // in the order of their first event, for rows that are the same in every rebuild
	lines     map[uint64]*pendingLine
	growing   map[int64]uint64 // of the nodes of the batch: the line that isn't finished, 0: none
	queue     []*pendingLine   // in the order of their positions
	written   []*pendingLine   // what the queue was in the end
	said      []*pendingMessage
	report    Report
}

// runRow is a run while a batch is recorded.
type runRow struct {
	table.Run

	state   *wire.State // nil until it is needed
	nodes   map[string]*nodeRow
	order   []*nodeRow
	changed bool // the state

	derived    uint64 // position of the last event of which this batch has derived something
	passed     int    // such events
	head       chain.Link
	gone       bool // it was deleted: what comes late isn't kept
	late       int64
	fresh      []archive.Event  // of this batch
	heard      []queries.Folded // of this batch
	hid        bool             // this batch has hidden lines
	freshBytes int
}

// nodeRow is a node while a batch is recorded.
type nodeRow struct {
	table.Node

	timeline timeline.Timeline
	shown    uint64 // no line of it that is shown has a higher seq
	talk     talk
	silent   string // a session that surely has no message yet
	batch    uint64 // number of the last transaction that has changed it
	size     int    // as it counts in what is known
}

// talk is where the conversation of a node's agent stands, and what is on record of it.
type talk struct {
	Said     conversation.Conversation `json:"said"`
	Account  ledger.Ledger             `json:"account,omitzero"`
	Session  string                    `json:"session,omitempty"`
	Provider string                    `json:"provider,omitempty"`
	Model    string                    `json:"model,omitempty"`   // of the session, as far as it is known
	Marked   int                       `json:"marked,omitempty"`  // last turn that has a checkpoint
	Own      bool                      `json:"own,omitempty"`     // the agent records checkpoints itself
	Last     uint64                    `json:"last,omitempty"`    // last message of the session
	Asked    string                    `json:"asked,omitempty"`   // hash of the last message, if the user wrote it
	Context  string                    `json:"context,omitempty"` // of the last error of the turn
	Tries    int                       `json:"tries,omitempty"`   // errors of this context
}

// pendingLine is a line that the batch adds or changes.
type pendingLine struct {
	row   table.Line  // of a line that is in the file already: whose it is
	op    timeline.Op // what to do to the file
	text  strings.Builder
	event *wire.Event // its first, of this batch
}

// pendingMessage is a message that the batch adds, or one to which it adds calls.
type pendingMessage struct {
	pos     uint64
	row     *table.ChatMessage // nil: it is in the store
	content *string            // nil: as it is
	args    []string           // calls as JSON
}

// spendKey names a row of spend.
type spendKey struct {
	node, day int64
	model     string
}

// stmtInTx returns a statement as it is in the transaction.
func (w *writer) stmtInTx(s statement) *sql.Stmt {
	if w.stmts[s] == nil {
		w.stmts[s] = w.tx.StmtContext(w.ctx, w.x.stmts.one[s])
	}
	return w.stmts[s]
}

// exec runs a statement.
func (w *writer) exec(s statement, args ...any) error {
	_, err := w.stmtInTx(s).ExecContext(w.ctx, args...)
	return err
}

// putRow runs a statement with a row as its parameters.
func (w *writer) putRow(s statement, row any) error {
	w.x.args = table.AppendValues(w.x.args[:0], row)
	return w.execValues(w.stmtInTx(s), w.x.args)
}

// putNumbered runs a statement that writes a row which the database has numbered.
func (w *writer) putNumbered(s statement, row any, id int64) error {
	w.x.args = append(table.AppendValues(w.x.args[:0], row), id)
	return w.execValues(w.stmtInTx(s), w.x.args)
}

// execValues runs a statement with values of rows, of which it keeps none.
func (w *writer) execValues(s *sql.Stmt, values []any) error {
	given := values
	if w.tx.D.Lists {
		w.x.list.Set(values)
		defer w.x.list.Clear()
		given = []any{&w.x.list}
	}
	_, err := s.ExecContext(w.ctx, given...)
	clear(values)
	return err
}

// scanRow runs a statement that returns one row.
func (w *writer) scanRow(s statement, args []any, into ...any) error {
	return w.stmtInTx(s).QueryRowContext(w.ctx, args...).Scan(into...)
}

// queueRow notes a row that a statement of [bulkStatements] is to insert.
func (w *writer) queueRow(s statement, row any) { w.x.rows[s] = append(w.x.rows[s], row) }

// dropRows drops the rows that were noted for a statement, but not the memory for as many.
func (x *Index) dropRows(s statement) {
	clear(x.rows[s])
	x.rows[s] = x.rows[s][:0]
}

// insertRows inserts the rows that were noted for a statement, in their order.
func (w *writer) insertRows(s statement) error {
	rows := w.x.rows[s]
	var many *sql.Stmt
	for ; len(rows) >= bulkRows; rows = rows[bulkRows:] {
		if many == nil {
			many = w.tx.StmtContext(w.ctx, w.x.stmts.many[s])
		}
		w.x.args = table.AppendValues(w.x.args[:0], rows[:bulkRows]...)
		if err := w.execValues(many, w.x.args); err != nil {
			return err
		}
	}
	for _, row := range rows {
		if err := w.putRow(s, row); err != nil {
			return err
		}
	}
	w.x.dropRows(s)
	return nil
}
