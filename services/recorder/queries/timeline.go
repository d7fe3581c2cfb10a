package queries

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Bounds of a picture.
const (
	defaultPx = 1000
	minPx     = 10
	maxPx     = 4000
	maxLanes  = 400
	maxSpans  = 2000 // calls that are shown with their length; the longest ones

	maxTime = 1 << 49 // Unix ms, of what is shown: times are multiplied by px, and writers stamp what they like
)

// Timeline answers a [wire.TimelineRequest] as of now, in at most limit bytes.
func (a *Answers) Timeline(ctx context.Context, q wire.TimelineRequest, now time.Time, limit int) (wire.TimelineResponse, error) {
	r, err := a.drawTimeline(ctx, q, now.UnixMilli(), limit)
	if err != nil {
		return wire.TimelineResponse{}, request.Wrap("timeline", err)
	}
	return r, nil
}

func (a *Answers) drawTimeline(ctx context.Context, q wire.TimelineRequest, now int64, limit int) (r wire.TimelineResponse, err error) {
	q.Px = cmp.Or(q.Px, defaultPx)
	switch {
	case q.Px < minPx || q.Px > maxPx:
		return r, request.Bad("px must be between %d and %d", minPx, maxPx)
	case q.From < 0 || q.To < 0 || q.To > 0 && q.To <= q.From:
		return r, request.Bad("from must be before to, both in Unix ms")
	}
	of, err := a.FindRun(ctx, q.Run)
	if err != nil {
		return r, err
	}
	k := a.courses.lock(of.Run)
	defer a.courses.unlock(k)
	// Not before it is locked: what one question has read, the next one sees.
	return archive.Ask(ctx, a.Archive, func(t *archive.Tx) (r wire.TimelineResponse, err error) {
		if err := k.advance(ctx, t, of); err != nil {
			return r, err
		}
		f, err := figureOf(ctx, t, of, a.views.stateUpTo)
		if err != nil {
			return r, err
		}
		for most := maxLanes; ; {
			p, err := drawPicture(ctx, t, of, q, f, k, most, now)
			switch {
			case err != nil:
				return r, err
			case p.size() <= limit || q.Px == minPx && most == 1:
				return p.TimelineResponse, nil
			case q.Px > minPx:
				q.Px = max(minPx, q.Px/3)
			default:
				most = max(1, most/3)
			}
		}
	})
}

// FindRun finds the run that a request names, in a transaction of its own.
func (a *Answers) FindRun(ctx context.Context, name string) (request.Target, error) {
	return archive.Ask(ctx, a.Archive, func(t *archive.Tx) (request.Target, error) { return request.Resolve(ctx, t, name, "", "") })
}

// picture is a timeline that is being drawn.
type picture struct {
	wire.TimelineResponse

	of    request.Target
	px    int64
	lanes map[laneKey]*wire.TimelineLane // those that are shown
	marks map[markKey]int                // their places in their lanes
}

type laneKey struct{ node, parent string }

// markKey tells apart what is drawn as marks of their own.
type markKey struct {
	lane *wire.TimelineLane
	kind string
	px   int64
}

func drawPicture(ctx context.Context, t *archive.Tx, of request.Target, q wire.TimelineRequest, f figure, k *course, most int, now int64) (*picture, error) {
	p := &picture{of: of, px: int64(q.Px), lanes: map[laneKey]*wire.TimelineLane{}, marks: map[markKey]int{}}
	p.RunID, p.Position, p.Open = of.Run, f.position.Seq, !f.state.Status.Ended()
	if err := t.Row(ctx, `SELECT started_at, last_at FROM runs WHERE id = ?1`, of.ID).Scan(&p.First, &p.Last); err != nil {
		return nil, err
	}
	if p.Open {
		p.Last = max(p.Last, now)
	}
	p.Last = max(p.Last, p.First+1)
	p.From, p.To = cmp.Or(q.From, p.First), cmp.Or(q.To, p.Last)
	p.From = min(max(p.From, -maxTime), maxTime)
	p.To = max(min(p.To, maxTime), p.From+1)
	names := map[int64]string{}
	for _, n := range f.nodes {
		names[n.ID] = n.Node
	}
	keys := make([]laneKey, len(k.lanes)) // of the lanes of the course
	for i, l := range k.lanes {
		keys[i] = laneKey{names[l.node], l.parent}
	}
	p.chooseLanes(k, keys, most)
	p.drawLines(k, keys)
	p.drawCalls(k, keys)
	p.drawWaits(k, keys)
	if err := p.drawAlerts(ctx, t); err != nil {
		return nil, err
	}
	p.drawOpen(f.state)
	for _, n := range f.statusOf("", now).Agents {
		if l := p.lanes[laneKey{node: n.AgentID}]; l != nil {
			l.State = n.State
			if n.State == stateActive || n.State == stateWaiting {
				l.End = p.Last
			}
		}
	}
	return p, nil
}

// chooseLanes adds the nodes and sub-agents that did something, the run first, sub-agents below their agent, else in the order in
// which they began. Beyond most of them they are left out.
func (p *picture) chooseLanes(k *course, keys []laneKey, most int) {
	begun := map[string]int64{} // by node
	order := make([]int, len(keys))
	for i, key := range keys {
		order[i] = i
		if key.parent == "" {
			begun[key.node] = k.lanes[i].begin
		}
	}
	begunAt := func(node string) int64 {
		if at, ok := begun[node]; ok {
			return at
		}
		return p.First
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := keys[i], keys[j]
		switch {
		case a.node == b.node:
			return cmp.Or(cmp.Compare(min(1, len(a.parent)), min(1, len(b.parent))), cmp.Compare(k.lanes[i].begin, k.lanes[j].begin))
		case a.node == wire.RunNode:
			return -1
		case b.node == wire.RunNode:
			return 1
		}
		return cmp.Or(cmp.Compare(begunAt(a.node), begunAt(b.node)), strings.Compare(a.node, b.node))
	})
	p.Lanes = make([]wire.TimelineLane, min(most, len(order)))
	p.Omitted = len(order) - len(p.Lanes)
	for n := range p.Lanes {
		i := order[n]
		p.Lanes[n] = wire.TimelineLane{Node: keys[i].node, Parent: keys[i].parent, Begin: k.lanes[i].begin, End: k.lanes[i].end, Marks: []wire.TimelineMark{}}
		p.lanes[keys[i]] = &p.Lanes[n]
	}
}

// laneOf returns the lane that something is drawn into, nil if there is none. What must not vanish and has none of its own is drawn into
// that of the node, else into the first one, which is the run's.
func (p *picture) laneOf(key laneKey, heavy bool) *wire.TimelineLane {
	switch l, node := p.lanes[key], p.lanes[laneKey{node: key.node}]; {
	case l != nil || !heavy:
		return l
	case node != nil:
		return node
	case len(p.Lanes) > 0:
		return &p.Lanes[0]
	}
	return nil
}

// addMark adds a mark to a lane, or to the mark of its kind that is in its pixel. It returns the mark's place in the lane.
func (p *picture) addMark(l *wire.TimelineLane, m wire.TimelineMark) int {
	if l == nil {
		return 0
	}
	key := markKey{l, m.Kind, p.pixelOf(m.At)}
	at, there := p.marks[key]
	if !there {
		at = len(l.Marks)
		p.marks[key] = at
		l.Marks = append(l.Marks, m)
		return at
	}
	is := &l.Marks[at]
	is.N += m.N
	is.At, is.End = min(is.At, m.At), max(is.End, m.End)
	return at
}

// pixelOf returns where a time that is seen is drawn.
func (p *picture) pixelOf(at int64) int64 { return (at - p.From) * p.px / (p.To - p.From) }

// beginOf returns the first time that is drawn in a pixel.
func (p *picture) beginOf(pixel int64) int64 {
	return p.From + (pixel*(p.To-p.From)+p.px-1)/p.px
}

// isSeen reports whether a time is within the picture.
func (p *picture) isSeen(at int64) bool { return at >= p.From && at <= p.To }

// drawLines draws what the log says. There may be millions of lines, and the next one of a lane and kind is mostly in the same pixel.
func (p *picture) drawLines(k *course, keys []laneKey) {
	type lastMark struct {
		place      int
		begin, end int64 // of its pixel
	}
	type drawnLane struct {
		lane *wire.TimelineLane
		last []lastMark // by kind
	}
	lanes := make([]drawnLane, len(keys))
	for i, key := range keys {
		if l := p.laneOf(key, false); l != nil {
			lanes[i] = drawnLane{l, make([]lastMark, len(k.kinds.all))}
		}
	}
	for i := range k.lines {
		l := &k.lines[i]
		into := &lanes[l.lane]
		if into.lane == nil || !p.isSeen(l.ts) {
			continue
		}
		last := &into.last[l.kind]
		if l.ts >= last.begin && l.ts < last.end {
			m := &into.lane.Marks[last.place]
			m.N++
			m.At = min(m.At, l.ts)
			continue
		}
		last.place = p.addMark(into.lane, wire.TimelineMark{Kind: k.kinds.all[l.kind], At: l.ts, N: 1, Pos: l.pos})
		pixel := p.pixelOf(l.ts)
		last.begin, last.end = p.beginOf(pixel), p.beginOf(pixel+1)
	}
}

// drawCalls draws the longest calls that have a length, and those that failed or were denied, all of them.
func (p *picture) drawCalls(k *course, keys []laneKey) {
	var long []*courseCall
	for i := range k.calls {
		if c := &k.calls[i]; c.end >= p.From && c.begin <= p.To && (c.end-c.begin)*p.px >= p.To-p.From {
			long = append(long, c)
		}
	}
	slices.SortStableFunc(long, func(a, b *courseCall) int { return cmp.Compare(b.end-b.begin, a.end-a.begin) })
	for _, c := range long[:min(maxSpans, len(long))] {
		if l := p.laneOf(keys[c.lane], false); l != nil {
			l.Marks = append(l.Marks, wire.TimelineMark{Kind: "call", At: c.begin, End: c.end, N: 1, Pos: c.pos, Text: timeline.Line(k.tools.all[c.tool], 80)})
		}
	}
	for i := range k.calls {
		if c := &k.calls[i]; c.bad != "" && p.isSeen(c.end) {
			p.addMark(p.laneOf(keys[c.lane], true), wire.TimelineMark{Kind: c.bad, At: c.end, N: 1, Pos: c.pos, Text: timeline.Line(k.tools.all[c.tool], 80)})
		}
	}
}

// drawWaits draws the waits for people that are over.
func (p *picture) drawWaits(k *course, keys []laneKey) {
	for _, w := range k.waits {
		switch {
		case w.at > p.To, w.until == 0 && p.Open, w.until != 0 && w.until < p.From:
			continue // what waits now is told by the state
		case w.until == 0:
			w.until = p.Last
		}
		p.addMark(p.laneOf(keys[w.lane], true), wire.TimelineMark{Kind: "wait", At: w.at, End: w.until, N: 1, Pos: w.pos, Text: w.text})
	}
}

// drawAlerts draws all alerts.
func (p *picture) drawAlerts(ctx context.Context, t *archive.Tx) error {
	text := `SELECT node, kind, (ts - ?2) * ?3 / ?4 AS px, min(ts), count(*), min(event), min(text) FROM alerts
		WHERE run = (SELECT run FROM runs WHERE id = ?1) AND ts >= ?2 AND ts <= ?2 + ?4 GROUP BY node, kind, px`
	var px int64
	var node, kind string
	m := wire.TimelineMark{Kind: "alert"}
	for err := range t.Each(ctx, text, []any{p.of.ID, p.From, p.px, p.To - p.From}, &node, &kind, &px, &m.At, &m.N, &m.Pos, &m.Text) {
		if err != nil {
			return err
		}
		m.Text = timeline.Line(kind+": "+m.Text, 160)
		if l := p.laneOf(laneKey{node: node}, true); l != nil {
			l.Marks = append(l.Marks, m)
		}
	}
	return nil
}

// drawOpen draws what hasn't ended: calls, and what waits for a person.
func (p *picture) drawOpen(s *wire.State) {
	if !p.Open {
		return
	}
	draw := func(key laneKey, m wire.TimelineMark) {
		if l := p.laneOf(key, true); l != nil {
			m.End, m.N, m.Open = p.Last, 1, true
			l.Marks = append(l.Marks, m)
		}
	}
	for _, c := range s.Tools {
		draw(laneKey{c.Node, c.Parent}, wire.TimelineMark{Kind: "call", At: c.Since, Text: timeline.Line(c.Tool, 80)})
	}
	for _, w := range ask.Pending(s) {
		draw(laneKey{node: w.NodeID}, wire.TimelineMark{Kind: "wait", At: w.Since, Text: timeline.Line(waitsFor(w), 120)})
	}
}

// size is about how many bytes the answer has.
func (p *picture) size() int {
	size := 1 << 10
	for _, l := range p.Lanes {
		size += 200 + 2*len(l.Node) + 2*len(l.Parent)
		for _, m := range l.Marks {
			size += 80 + 2*len(m.Text)
		}
	}
	return size
}
