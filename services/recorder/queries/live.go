package queries

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/states"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Bounds of what is held in memory of runs that go on.
const (
	maxHeld   = 128 // runs; the one that was asked for longest ago goes first
	liveBytes = 512 // per line that may be held: so much text of a run
)

// live holds the runs that go on and are asked for: how they are doing, and the
// last lines of their logs. A run is read from the store once; what is recorded
// afterwards is added here too, so that asking again needs no query. The zero
// value holds nothing.
type live struct {
	lines int // of a run; 0: nothing is held

	mu     sync.Mutex
	byRun  map[string]*liveRun
	loads  map[string]*load // of runs that are being read
	asking uint64           // counts questions
}

// load is the reading of a run that was begun.
type load struct {
	waiters int
	stale   bool // something of the run was recorded meanwhile
}

// liveRun is a run that goes on.
type liveRun struct {
	figure
	total int64  // lines of the log
	lines []line // the last ones
	size  int    // bytes of their texts
	calls bool   // some of them are of calls, of which there is more to look at than the text
	asked uint64 // when it was asked for last
}

// line is a line of a log.
type line struct {
	pos                uint64
	node, exec, parent string
	ts                 int64
	kind               wire.LineType
	text               []byte // grows in place
}

func (l *line) toLogLine() wire.LogLine {
	return wire.LogLine{TS: l.ts, Type: l.kind, Text: string(l.text), Node: l.node, Exec: l.exec, Parent: l.parent, Pos: l.pos}
}

// HoldLive has the last lines of each run that goes on, so many of them, held in
// memory from its first question on. Only the store's recorder may use it.
func (a *Answers) HoldLive(lines int) { a.live.lines = lines }

// dropAll drops everything.
func (v *live) dropAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.byRun)
	for _, l := range v.loads {
		l.stale = true
	}
}

// dropRun drops a run, of which a load that is under way is of no use either.
func (v *live) dropRun(run string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.byRun, run)
	if l := v.loads[run]; l != nil {
		l.stale = true
	}
}

// fromLive gives f the run that a question names by its id, if it goes on. It reports
// whether f could answer. A question that names it otherwise is for the store.
func (a *Answers) fromLive(ctx context.Context, id string, f func(*liveRun) (bool, error)) (bool, error) {
	v := &a.live
	if v.lines == 0 || id == "" || id == request.Last || id == wire.NoRun {
		return false, nil
	}
	if answered, held, err := v.withRun(id, f); held || err != nil {
		return answered, err
	}
	if err := a.loadLive(ctx, id); err != nil {
		return false, err
	}
	answered, _, err := v.withRun(id, f)
	return answered, err
}

// withRun gives f a run that is held.
func (v *live) withRun(id string, f func(*liveRun) (bool, error)) (answered, held bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.byRun[id]
	if r == nil {
		return false, false, nil
	}
	v.asking++
	r.asked = v.asking
	answered, err = f(r)
	return answered, true, err
}

// loadLive reads a run that goes on from the store. What is recorded meanwhile
// makes it useless; the next question tries again.
func (a *Answers) loadLive(ctx context.Context, id string) error {
	v := &a.live
	l := v.beginLoad(id)
	r, err := a.readLive(ctx, id)
	v.mu.Lock()
	defer v.mu.Unlock()
	if l.waiters--; l.waiters == 0 && v.loads[id] == l {
		delete(v.loads, id)
	}
	if err != nil || r == nil || l.stale || v.byRun[id] != nil {
		return err
	}
	if v.byRun == nil {
		v.byRun = map[string]*liveRun{}
	}
	v.byRun[id] = r
	if len(v.byRun) > maxHeld {
		v.dropOldest(id)
	}
	return nil
}

// beginLoad notes that a run is being read. It must be known before the reading
// begins.
func (v *live) beginLoad(id string) *load {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.loads[id]
	if l == nil || l.stale {
		l = new(load)
		if v.loads == nil {
			v.loads = map[string]*load{}
		}
		v.loads[id] = l
	}
	l.waiters++
	return l
}

func (v *live) dropOldest(except string) {
	oldest := ""
	for id, r := range v.byRun {
		if id != except && (oldest == "" || r.asked < v.byRun[oldest].asked) {
			oldest = id
		}
	}
	delete(v.byRun, oldest)
}

// readLive reads a run; nil if there is none of the id that goes on.
func (a *Answers) readLive(ctx context.Context, id string) (*liveRun, error) {
	return archive.Ask(ctx, a.Archive, func(t *archive.Tx) (*liveRun, error) {
		found, r := request.Target{Run: id}, &liveRun{}
		err := t.Row(ctx, `SELECT id, lines FROM runs WHERE run = ?1`, id).Scan(&found.ID, &r.total)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, nil // the store answers
		}
		if err != nil {
			return nil, err
		}
		if r.figure, err = figureOf(ctx, t, found, stateOf); err != nil || r.state.Status.Ended() {
			return nil, err
		}
		return r, r.readLines(ctx, t, found.ID, a.live.lines)
	})
}

// selectLines reads lines into lineFields.
const selectLines = `SELECT pos, (SELECT node FROM nodes WHERE id = lines.node), exec, parent, ts, type, text FROM lines`

// lineFields are what selectLines is read into.
func lineFields(l *wire.LogLine) []any {
	return []any{&l.Pos, &l.Node, &l.Exec, &l.Parent, &l.TS, &l.Type, &l.Text}
}

// readLines reads the last lines of the run.
func (r *liveRun) readLines(ctx context.Context, t *archive.Tx, id int64, most int) error {
	text := selectLines + ` WHERE pos IN (SELECT pos FROM lines WHERE run = ?1 AND hidden = 0 ORDER BY pos DESC LIMIT ?2) ORDER BY pos`
	var l line
	for err := range t.Each(ctx, text, []any{id, most}, &l.pos, &l.node, &l.exec, &l.parent, &l.ts, &l.kind, &l.text) {
		if err != nil {
			return err
		}
		r.lines = append(r.lines, l)
		r.size += len(l.text)
		r.calls = r.calls || l.kind == wire.LineTool
	}
	r.trimLines(most)
	return nil
}

// trimLines drops the first lines that are too many, but never the last one.
func (r *liveRun) trimLines(most int) {
	n := max(0, len(r.lines)-most)
	for i := range n {
		r.size -= len(r.lines[i].text)
	}
	for r.size > most*liveBytes && n < len(r.lines)-1 {
		r.size -= len(r.lines[n].text)
		n++
	}
	r.lines = slices.Delete(r.lines, 0, n)
}

// Change is what a transaction has derived of a run.
type Change struct {
	Run   *table.Run
	Pos   uint64 // up to here
	Hid   bool   // lines were hidden
	State []Folded
	Rest  func() Detail // is only asked of runs that are held
}

// Folded is an event that changes the state of a run.
type Folded struct {
	Pos      uint64
	E, Whole *wire.Event
}

// Detail are the rows that a transaction has written of a run.
type Detail struct {
	Nodes []table.Node
	Lines []LineChange
}

// LineChange is what became of a line.
type LineChange struct {
	Op   timeline.Op
	Line wire.LogLine // of one that isn't new, its position and what is added, or its text
}

// Changed adds what a transaction has derived to what is held.
func (a *Answers) Changed(incarnation string, list []Change) {
	a.live.addChanges(incarnation, list)
	a.roll.note(list) // behind that: a figure of a run stays until the roll has news of it, and is of what is held
}

// addChanges adds what a transaction has derived to the runs that are held.
func (v *live) addChanges(incarnation string, list []Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range list {
		c := &list[i]
		if l := v.loads[c.Run.RunID]; l != nil {
			l.stale = true
		}
		r := v.byRun[c.Run.RunID]
		if r == nil || c.Pos <= r.position.Seq {
			continue
		}
		r.applyChange(c, wire.Position{Incarnation: incarnation, Seq: c.Pos})
		if c.Hid || r.state.Status.Ended() {
			delete(v.byRun, c.Run.RunID)
		} else {
			r.trimLines(v.lines)
		}
	}
}

// applyChange takes what has become of the run, its nodes and its lines.
func (r *liveRun) applyChange(c *Change, pos wire.Position) {
	for _, h := range c.State {
		_ = states.Apply(r.state, wire.Position{Incarnation: pos.Incarnation, Seq: h.Pos}, h.E, h.Whole) // refused as it was for the store
	}
	r.position = pos
	r.activity, r.activityAt, r.total = c.Run.LastActivity, c.Run.ActivityAt, c.Run.Lines
	rest := c.Rest()
	for i := range rest.Nodes {
		known := &rest.Nodes[i]
		known.Timeline, known.Talk = nil, nil
		at, found := slices.BinarySearchFunc(r.nodes, known.ID, func(n *table.Node, id int64) int { return int(n.ID - id) })
		if found {
			r.nodes[at] = known
		} else {
			r.nodes = slices.Insert(r.nodes, at, known)
		}
	}
	for i := range rest.Lines {
		r.applyLineChange(&rest.Lines[i])
	}
}

// applyLineChange does to the lines what the transaction did to them. A line that isn't
// held any more stays away.
func (r *liveRun) applyLineChange(c *LineChange) {
	l := c.Line
	if c.Op == timeline.Add {
		r.lines = append(r.lines, line{l.Pos, l.Node, l.Exec, l.Parent, l.TS, l.Type, []byte(l.Text)})
		r.size += len(l.Text)
		r.calls = r.calls || l.Type == wire.LineTool
		return
	}
	i, found := slices.BinarySearchFunc(r.lines, l.Pos, func(l line, pos uint64) int { return cmp.Compare(l.pos, pos) })
	if !found {
		return
	}
	held := &r.lines[i]
	r.size -= len(held.text)
	if c.Op == timeline.Replace {
		held.text = held.text[:0]
	}
	held.text = append(held.text, l.Text...)
	r.size += len(held.text)
}

// hasNode reports whether the run has a node, or items of it.
func (r *liveRun) hasNode(node string) bool {
	return node == "" || slices.ContainsFunc(r.nodes, func(n *table.Node) bool { return archive.IsOf(n.Node, node) })
}

// figure is what a status is made of.
type figure struct {
	run        string
	position   wire.Position
	activity   string
	feeds      string
	activityAt int64
	state      *wire.State
	nodes      []*table.Node // in the order of their ids
}

// figureOf reads a run from the store.
func figureOf(ctx context.Context, tx *archive.Tx, t request.Target, load stateLoader) (figure, error) {
	f := figure{run: t.Run}
	var changed uint64
	row := tx.Row(ctx, `SELECT activity, activity_at, feeds, CASE WHEN last_pos < derived THEN last_pos ELSE derived END, state_pos, incarnation FROM runs, streams WHERE runs.id = ?1`, t.ID)
	err := row.Scan(&f.activity, &f.activityAt, &f.feeds, &f.position.Seq, &changed, &f.position.Incarnation)
	if err != nil {
		return f, err
	}
	if f.state, err = load(ctx, tx, t, changed, f.position.Seq); err != nil {
		return f, err
	}
	f.nodes, err = nodesOf(ctx, tx, t.ID)
	return f, err
}

// nodesOf reads the nodes of a run.
func nodesOf(ctx context.Context, q *archive.Tx, run int64) ([]*table.Node, error) {
	var nodes []*table.Node
	var n table.Node
	for err := range q.Each(ctx, q.Whole("nodes")+` WHERE run = ?1 ORDER BY id`, []any{run}, table.Fields(&n)...) {
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, new(n))
	}
	return nodes, nil
}
