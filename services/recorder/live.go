package recorder

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"

	"wake/internal/eventlog"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

// Bounds of what is held in memory of runs that go on.
const (
	maxHeld   = 128 // runs; the one that nobody has asked for longest goes first
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

func (l *line) log() wire.LogLine {
	return wire.LogLine{TS: l.ts, Type: l.kind, Text: string(l.text), Node: l.node, Exec: l.exec, Parent: l.parent, Pos: l.pos}
}

// HoldLive has the last lines of each run that goes on, so many of them, held in
// memory from its first question on. Only who records into the store may use it.
func (s *Store) HoldLive(lines int) { s.live.lines = lines }

// forget drops everything.
func (v *live) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.byRun)
	for _, l := range v.loads {
		l.stale = true
	}
}

// fromLive gives f the run that a question names by its id, if it goes on. It reports
// whether f could answer. A question that names it otherwise is for the store.
func (s *Store) fromLive(ctx context.Context, id string, f func(*liveRun) (bool, error)) (bool, error) {
	v := &s.live
	if v.lines == 0 || id == "" || id == last || id == wire.NoRun {
		return false, nil
	}
	if answered, held, err := v.ask(id, f); held || err != nil {
		return answered, err
	}
	if err := s.loadLive(ctx, id); err != nil {
		return false, err
	}
	answered, _, err := v.ask(id, f)
	return answered, err
}

// ask gives f a run that is held.
func (v *live) ask(id string, f func(*liveRun) (bool, error)) (answered, held bool, err error) {
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
func (s *Store) loadLive(ctx context.Context, id string) error {
	v := &s.live
	l := v.begin(id)
	r, err := s.readLive(ctx, id)
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

// begin notes that a run is being read. It must be known before the reading
// begins.
func (v *live) begin(id string) *load {
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
func (s *Store) readLive(ctx context.Context, id string) (*liveRun, error) {
	t, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	found := target{run: id}
	err = t.row(ctx, `SELECT id FROM runs WHERE run = ?1`, id).Scan(&found.id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // the store answers
	}
	if err != nil {
		return nil, err
	}
	r := &liveRun{}
	if r.figure, err = figureOf(ctx, t, found, stateOf); err != nil || ended(r.state) {
		return nil, err
	}
	if err := t.row(ctx, `SELECT lines FROM runs WHERE id = ?1`, found.id).Scan(&r.total); err != nil {
		return nil, err
	}
	return r, r.read(ctx, t, found.id, s.live.lines)
}

// read reads the last lines of the run.
func (r *liveRun) read(ctx context.Context, t *tx, id int64, most int) error {
	text := selectLines + ` WHERE pos IN (SELECT pos FROM lines WHERE run = ?1 AND hidden = 0 ORDER BY pos DESC LIMIT ?2) ORDER BY pos`
	for rows, err := range t.query(ctx, text, id, most) {
		if err != nil {
			return err
		}
		var l line
		if err := rows.Scan(&l.pos, &l.node, &l.exec, &l.parent, &l.ts, &l.kind, &l.text); err != nil {
			return err
		}
		r.lines = append(r.lines, l)
		r.size += len(l.text)
	}
	r.trim(most)
	return nil
}

// trim drops the first lines that are too many, but never the last one.
func (r *liveRun) trim(most int) {
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

// heard is an event that a batch has recorded.
type heard struct {
	pos      uint64
	e, whole *wire.Event
}

// hear notes an event for the runs that are held.
func (w *writer) hear(r *runRow, e *eventlog.Entry, whole *wire.Event) {
	if w.s.live.lines == 0 {
		return
	}
	if p, ok := e.Event.Payload.(*wire.LogTruncated); ok && p.Lost == 0 {
		r.hid = true
	}
	if k := e.Kind; k != wire.KindText && k != wire.KindDelta {
		r.heard = append(r.heard, heard{e.Pos, e.Event, whole})
	}
}

// recorded adds what a transaction has recorded to the runs that are held.
func (v *live) recorded(w *writer) {
	if v.lines == 0 || w.derived == w.was {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := map[int64]*liveRun{}
	for _, row := range w.order {
		if l := v.loads[row.run]; l != nil {
			l.stale = true
		}
		if r, pos := v.byRun[row.run], min(row.lastPos, w.derived); r != nil && pos > r.position.Seq {
			r.add(row, wire.Position{Incarnation: w.batch.Incarnation, Seq: pos})
			changed[row.id] = r
		}
	}
	for _, l := range w.written {
		if r := changed[l.run]; r != nil {
			r.write(l, w.tx.d.storable)
		}
	}
	for _, row := range w.order {
		r := changed[row.id]
		switch {
		case r == nil:
		case row.hid || ended(r.state):
			delete(v.byRun, row.run)
		default:
			r.trim(v.lines)
		}
	}
}

// add takes what has become of the run and its nodes.
func (r *liveRun) add(row *runRow, pos wire.Position) {
	for _, h := range row.heard {
		_ = apply(r.state, wire.Position{Incarnation: pos.Incarnation, Seq: h.pos}, h.e, h.whole) // refused as it was for the store
	}
	r.position = pos
	r.activity, r.activityAt, r.total = row.activity, row.activityAt, row.lines
	for _, n := range row.order {
		known := *n
		known.timeline, known.talk = timeline.Timeline{}, talk{}
		i, found := slices.BinarySearchFunc(r.nodes, n.id, func(n *nodeRow, id int64) int { return int(n.id - id) })
		if found {
			r.nodes[i] = &known
		} else {
			r.nodes = slices.Insert(r.nodes, i, &known)
		}
	}
}

// write does to the lines what the transaction did to them. A line that isn't
// held any more stays away.
func (r *liveRun) write(l *pendingLine, storable func(string) string) {
	text := l.text.String()
	if storable != nil {
		text = storable(text)
	}
	if l.op == timeline.Add {
		e := l.event
		r.lines = append(r.lines, line{l.pos, e.Node(), e.ExecID, e.Parent, e.Timestamp, l.kind, []byte(text)})
		r.size += len(text)
		return
	}
	i, found := slices.BinarySearchFunc(r.lines, l.pos, func(l line, pos uint64) int {
		switch {
		case l.pos < pos:
			return -1
		case l.pos > pos:
			return 1
		}
		return 0
	})
	if !found {
		return
	}
	held := &r.lines[i]
	r.size -= len(held.text)
	if l.op == timeline.Replace {
		held.text = held.text[:0]
	}
	held.text = append(held.text, text...)
	r.size += len(held.text)
}

// answer is how the run, or a node of it, is doing, and whether that is known
// here.
func (r *liveRun) answer(node string, now int64) (wire.StatusResponse, bool) {
	return r.status(node, now), r.has(node)
}

// live answers a request for lines, if the run's lines that are held are enough
// for it.
func (l *logQuery) live(r *liveRun, node string) (wire.LogResponse, bool) {
	a := wire.LogResponse{BufferLines: r.total, Position: r.position.Seq, Lines: []wire.LogLine{}}
	whole := int64(len(r.lines)) == r.total
	var passed []*line
	first := r.total - int64(len(r.lines)) // number of passed[0]
	plain := node == "" && l.q.Type == "" && l.q.Since <= 0 && l.grep == nil
	switch {
	case l.q.Summary, !plain && !whole:
		return a, false
	case !plain:
		first = 0
	}
	for i := range r.lines {
		if x := &r.lines[i]; plain || l.passes(x, node) {
			passed = append(passed, x)
		}
	}
	a.TotalLines, a.Offset = first+int64(len(passed)), l.offset
	if l.tail {
		a.Offset = max(0, a.TotalLines-l.limit)
	}
	if a.Offset < first {
		return a, false
	}
	from := min(a.Offset-first, int64(len(passed)))
	passed = passed[from:]
	for _, x := range passed[:min(l.limit, int64(len(passed)))] {
		a.Lines = append(a.Lines, l.shown(x.log()))
	}
	a.ReturnedLines = len(a.Lines)
	if !l.q.Details {
		a.Position = 0
	}
	return a, true
}

// passes reports whether a line passes the filters.
func (l *logQuery) passes(x *line, node string) bool {
	switch {
	case node != "" && x.node != node && !strings.HasPrefix(x.node, node+"/"):
		return false
	case l.q.Type != "" && x.kind != l.q.Type, l.q.Since > 0 && x.ts < l.since:
		return false
	}
	return l.grep == nil || l.grep.tools && x.kind == wire.LineTool || l.grep.matches(string(x.text))
}

// named takes a request's names apart: the id that the run may have, and the node.
func named(run, agent, node string) (id, of string) {
	if run != "" && agent != "" && run != agent {
		return "", ""
	}
	if run == "" {
		run = agent
		if before, after, ok := strings.Cut(agent, "/"); ok && node == "" {
			return before, after
		}
	}
	return run, node
}

// has reports whether the run has a node, or items of it.
func (r *liveRun) has(node string) bool {
	return node == "" || slices.ContainsFunc(r.nodes, func(n *nodeRow) bool { return n.node == node || strings.HasPrefix(n.node, node+"/") })
}
