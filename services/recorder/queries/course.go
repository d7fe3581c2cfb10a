package queries

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"sync"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// maxCourses bounds the courses that are held.
const maxCourses = 256

// maxCourseSize bounds what all courses that are held have, in lines, which have 24 bytes each; the course that was asked for last is
// held, whatever it has.
const maxCourseSize = 2_000_000

// maxTook bounds, in ms, how long a call can have taken: agents tell it, and it is multiplied.
const maxTook = 1 << 40

// course is what pictures of a run are drawn from: when something happened, and in which lane. It is read once; what is derived
// afterwards is read when the next picture is asked for. A question that fails for want of time leaves what it has read to the next one.
type course struct {
	mu    sync.Mutex // held while it is read or drawn
	lanes []courseLane
	byKey map[courseKey]int32 // places in lanes
	kinds nameTable           // of lines
	lines []courseLine        // in the order of their positions
	calls []courseCall        // so, too
	tools nameTable           // of calls
	waits []courseWait

	asked uint64 // when it was asked for last; of its courses
	size  int    // what it has, in lines; of its courses
}

type courseKey struct {
	node   int64
	parent string
}

// courseLane is a node, or a sub-agent of it.
type courseLane struct {
	courseKey

	begin, end int64 // Unix ms
	wait       int   // the place in waits of the one that no line has ended yet, and 1; 0: none
}

type courseLine struct {
	pos  uint64
	ts   int64
	lane int32
	kind int32
}

// courseCall is a call that has ended.
type courseCall struct {
	pos        uint64
	begin, end int64 // equal if it isn't known how long it took
	lane, tool int32
	bad        string // "failed", "denied" or ""
}

// courseWait is a wait for a person: from the line that asks to what the lane says next.
type courseWait struct {
	pos   uint64
	at    int64
	until int64 // 0: not yet
	lane  int32
	text  string
}

// courses are the courses that are held, by run. The zero value holds none.
type courses struct {
	mu     sync.Mutex
	byRun  map[string]*course
	asking uint64 // counts questions
}

// lock returns the course of a run, for one question at a time.
func (c *courses) lock(run string) *course {
	c.mu.Lock()
	k := c.byRun[run]
	if k == nil {
		k = &course{}
		if c.byRun == nil {
			c.byRun = map[string]*course{}
		}
		c.byRun[run] = k
	}
	c.asking++
	k.asked = c.asking
	c.mu.Unlock()
	k.mu.Lock()
	return k
}

// unlock ends a question. Courses that were asked for longest ago are dropped while they have too much.
func (c *courses) unlock(k *course) {
	size := k.sizeNow()
	k.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	k.size = size
	for {
		all, oldest := 0, ""
		for run, k := range c.byRun {
			if all += k.size; oldest == "" || k.asked < c.byRun[oldest].asked {
				oldest = run
			}
		}
		if all <= maxCourseSize && len(c.byRun) <= maxCourses || len(c.byRun) == 1 {
			return
		}
		delete(c.byRun, oldest)
	}
}

// drop drops that of a run, or all.
func (c *courses) drop(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if run == "" {
		clear(c.byRun)
	}
	delete(c.byRun, run)
}

// sizeNow is about how much memory a course takes, in lines.
func (k *course) sizeNow() int {
	bytes := k.kinds.bytes + k.tools.bytes
	for _, l := range k.lanes {
		bytes += laneBytes + len(l.parent)
	}
	for _, w := range k.waits {
		bytes += waitBytes + len(w.text)
	}
	return len(k.lines) + (callBytes*len(k.calls)+bytes)/lineBytes
}

// What parts of a course take beside their texts, in bytes.
const (
	lineBytes = 24
	callBytes = 48
	waitBytes = 48
	laneBytes = 120 // in its maps, too
	nameBytes = 64  // so
)

// advance reads what was derived of the run since. If lines were hidden meanwhile, it reads all again.
func (k *course) advance(ctx context.Context, t *archive.Tx, of request.Target) error {
	for again := false; ; again = true {
		if err := k.readLines(ctx, t, of); err != nil {
			return err
		}
		var want int
		if err := t.Row(ctx, `SELECT lines FROM runs WHERE id = ?1`, of.ID).Scan(&want); err != nil {
			return err
		}
		if want == len(k.lines) || again {
			return k.readCalls(ctx, t, of)
		}
		k.lanes, k.byKey, k.kinds, k.lines, k.calls, k.tools, k.waits = nil, nil, nameTable{}, nil, nil, nameTable{}, nil
	}
}

// readLines reads the lines behind the last one.
func (k *course) readLines(ctx context.Context, t *archive.Tx, of request.Target) error {
	var after uint64
	if n := len(k.lines); n > 0 {
		after = k.lines[n-1].pos
	}
	text := `SELECT pos, node, parent, ts, CASE WHEN type <> 'system' THEN type WHEN text LIKE ?6 THEN 'retry' WHEN text LIKE ?7 OR text LIKE ?8 OR text LIKE ?9 THEN 'compaction'
		WHEN text LIKE ?10 OR text LIKE ?11 THEN 'resumed' ELSE type END, CASE WHEN type = 'system' AND (text LIKE ?3 OR text LIKE ?4 OR text LIKE ?5 AND text NOT LIKE '%(info)') THEN substr(text, 1, 200) ELSE '' END
		FROM lines WHERE run = ?1 AND hidden = 0 AND pos > ?2 ORDER BY pos`
	args := []any{
		of.ID, after, timeline.AsksPermission + "%", timeline.AsksQuestion + "%", timeline.AsksMessage + "%", timeline.TriesAgain + "%",
		timeline.CompactsItself + "%", timeline.Compacts + "%", timeline.FailsToCompact + "%", timeline.ResumesRun + "%", timeline.ResumesAgent + "%",
	}
	var l courseLine
	var node int64
	var parent, kind, asks sql.RawBytes
	for err := range t.Each(ctx, text, args, &l.pos, &node, &parent, &l.ts, &kind, &asks) {
		if err != nil {
			return err
		}
		l.lane, l.kind = k.laneOf(node, parent, l.ts), k.kinds.numberOf(kind)
		k.lines = append(k.lines, l)
		lane := &k.lanes[l.lane]
		lane.begin, lane.end = min(lane.begin, l.ts), max(lane.end, l.ts)
		if lane.wait > 0 {
			k.waits[lane.wait-1].until, lane.wait = max(1, l.ts), 0
		}
		if len(asks) > 0 {
			k.waits = append(k.waits, courseWait{pos: l.pos, at: l.ts, lane: l.lane, text: timeline.Line(string(asks), 120)})
			lane.wait = len(k.waits)
		}
	}
	return nil
}

// readCalls reads the calls behind the last one. Each has a line.
func (k *course) readCalls(ctx context.Context, t *archive.Tx, of request.Target) error {
	var after uint64
	if n := len(k.calls); n > 0 {
		after = k.calls[n-1].pos
	}
	text := `SELECT c.pos, c.ts, coalesce(c.duration_ms, 0), c.outcome, c.tool FROM lines l CROSS JOIN tool_calls c
		WHERE l.run = ?1 AND l.hidden = 0 AND l.type = 'tool' AND l.pos > ?2 AND c.pos = l.pos ORDER BY l.pos`
	var pos uint64
	var end, took int64
	var outcome, tool sql.RawBytes
	for err := range t.Each(ctx, text, []any{of.ID, after}, &pos, &end, &took, &outcome, &tool) {
		if err != nil {
			return err
		}
		c := courseCall{pos: pos, end: end}
		at, found := slices.BinarySearchFunc(k.lines, c.pos, func(l courseLine, pos uint64) int { return cmp.Compare(l.pos, pos) })
		if !found {
			continue // its line is behind those that were read
		}
		c.begin, c.lane, c.tool = c.end-min(max(0, took), maxTook), k.lines[at].lane, k.tools.numberOf(tool)
		switch string(outcome) {
		case "ok":
		case "denied":
			c.bad = "denied"
		default:
			c.bad = "failed"
		}
		k.calls = append(k.calls, c)
	}
	return nil
}

func (k *course) laneOf(node int64, parent []byte, ts int64) int32 {
	if n, ok := k.byKey[courseKey{node, string(parent)}]; ok {
		return n
	}
	if k.byKey == nil {
		k.byKey = map[courseKey]int32{}
	}
	key, n := courseKey{node, string(parent)}, int32(len(k.lanes)) // of lines in memory
	k.byKey[key] = n
	k.lanes = append(k.lanes, courseLane{courseKey: key, begin: ts, end: ts})
	return n
}

// nameTable are texts by their numbers. Agents choose names of tools: there may be as many as calls. The zero value has none.
type nameTable struct {
	all    []string
	number map[string]int32
	bytes  int // about what they take
}

// numberOf returns the number of a name, which is added if it is new.
func (n *nameTable) numberOf(name []byte) int32 {
	if at, ok := n.number[string(name)]; ok {
		return at
	}
	if n.number == nil {
		n.number = map[string]int32{}
	}
	text, at := string(name), int32(len(n.all)) // of lines in memory
	n.all, n.number[text] = append(n.all, text), at
	n.bytes += nameBytes + len(text)
	return at
}
