package queries

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/states"
)

// Bounds of a picture.
const (
	defaultPx = 1000
	minPx     = 10
	maxPx     = 4000
	maxLanes  = 400
	maxSpans  = 2000 // calls, and as many waits, that are shown with their length; the longest ones
)

// Timeline answers a [wire.TimelineRequest] as of now, in at most limit bytes.
func (a *Answers) Timeline(ctx context.Context, q wire.TimelineRequest, now time.Time, limit int) (wire.TimelineResponse, error) {
	t, err := a.View(ctx)
	if err != nil {
		return wire.TimelineResponse{}, fmt.Errorf("recorder: timeline: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	for q.Px = cmp.Or(q.Px, defaultPx); ; q.Px = max(minPx, q.Px/3) {
		r, err := a.drawTimeline(ctx, t, q, now.UnixMilli())
		if err != nil {
			return wire.TimelineResponse{}, request.Wrap("timeline", err)
		}
		if r.fitsInto(limit, q.Px > minPx) {
			return r.TimelineResponse, nil
		}
	}
}

// picture is a timeline that is being drawn.
type picture struct {
	wire.TimelineResponse

	t     *archive.Tx
	of    request.Target
	px    int64
	names map[int64]string // of nodes
	lanes map[laneKey]*wire.TimelineLane
	order []laneKey
	lines []lineMark // nil: not read yet
}

type laneKey struct{ node, parent string }

func (a *Answers) drawTimeline(ctx context.Context, t *archive.Tx, q wire.TimelineRequest, now int64) (*picture, error) {
	p := &picture{t: t, px: int64(q.Px), names: map[int64]string{}, lanes: map[laneKey]*wire.TimelineLane{}}
	var err error
	switch {
	case p.px < minPx || p.px > maxPx:
		return nil, request.Bad("px must be between %d and %d", minPx, maxPx)
	case q.From < 0 || q.To < 0 || q.To > 0 && q.To <= q.From:
		return nil, request.Bad("from must be before to, both in Unix ms")
	}
	if p.of, err = request.Resolve(ctx, t, q.Run, "", ""); err != nil {
		return nil, err
	}
	f, err := figureOf(ctx, t, p.of, a.views.stateUpTo)
	if err != nil {
		return nil, err
	}
	p.Lanes = []wire.TimelineLane{}
	p.RunID, p.Position, p.Open = p.of.Run, f.position.Seq, !states.Ended(f.state)
	if err := t.Row(ctx, `SELECT started_at, last_at FROM runs WHERE id = ?1`, p.of.ID).Scan(&p.First, &p.Last); err != nil {
		return nil, err
	}
	if p.Open {
		p.Last = max(p.Last, now)
	}
	p.Last = max(p.Last, p.First+1)
	p.From, p.To = cmp.Or(q.From, p.First), cmp.Or(q.To, p.Last)
	p.To = max(p.To, p.From+1)
	for _, draw := range []func(context.Context) error{p.drawLanes, p.drawLines, p.drawCalls, p.drawWaits, p.drawAlerts} {
		if err := draw(ctx); err != nil {
			return nil, err
		}
	}
	p.drawOpen(f.state)
	st := f.statusOf("", now)
	for _, n := range st.Agents {
		if l := p.lanes[laneKey{node: n.AgentID}]; l != nil {
			l.State = n.State
			if n.State == stateActive || n.State == stateWaiting {
				l.End = p.Last
			}
		}
	}
	for _, k := range p.order {
		p.Lanes = append(p.Lanes, *p.lanes[k])
	}
	return p, nil
}

// drawLanes finds the nodes and sub-agents that did something, in the order in which they began.
func (p *picture) drawLanes(ctx context.Context) error {
	nodes, err := nodesOf(ctx, p.t, p.of.ID)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		p.names[n.ID] = n.Node
	}
	if p.From <= p.First && p.To >= p.Last { // the lines tell it, too
		if err := p.readLines(ctx); err != nil {
			return err
		}
		for _, m := range p.lines {
			p.widenLane(m)
		}
		p.orderLanes()
		return nil
	}
	for rows, err := range p.t.Rows(ctx, `SELECT node, parent, min(ts), max(ts) FROM lines WHERE run = ?1 AND hidden = 0 GROUP BY node, parent ORDER BY min(pos)`, p.of.ID) {
		if err != nil {
			return err
		}
		var m lineMark
		if err := rows.Scan(&m.node, &m.parent, &m.At, &m.last); err != nil {
			return err
		}
		p.widenLane(m)
	}
	p.orderLanes()
	return nil
}

// lineMark is what lines of a kind in a pixel of a lane are drawn as.
type lineMark struct {
	wire.TimelineMark

	node   int64
	parent string
	last   int64 // Unix ms: of the last of them
}

// widenLane has the lane of a mark, which it adds if there is none, reach from the mark's first line to its last.
func (p *picture) widenLane(m lineMark) {
	k := laneKey{p.names[m.node], m.parent}
	l := p.lanes[k]
	if l == nil {
		l = &wire.TimelineLane{Node: k.node, Parent: k.parent, Begin: m.At, End: m.last, Marks: []wire.TimelineMark{}}
		p.lanes[k] = l
		p.order = append(p.order, k)
	}
	l.Begin, l.End = min(l.Begin, m.At), max(l.End, m.last)
}

// orderLanes sorts the lanes, sub-agents below their agent.
func (p *picture) orderLanes() {
	begun := func(a, b laneKey) int { return cmp.Compare(p.lanes[a].Begin, p.lanes[b].Begin) }
	slices.SortStableFunc(p.order, func(a, b laneKey) int {
		switch {
		case a.node == b.node:
			return cmp.Or(cmp.Compare(min(1, len(a.parent)), min(1, len(b.parent))), begun(a, b))
		case a.node == wire.RunNode:
			return -1
		case b.node == wire.RunNode:
			return 1
		}
		return cmp.Or(cmp.Compare(p.begunAt(a.node), p.begunAt(b.node)), strings.Compare(a.node, b.node))
	})
	if len(p.order) > maxLanes {
		p.Omitted, p.order = len(p.order)-maxLanes, p.order[:maxLanes]
	}
}

func (p *picture) begunAt(node string) int64 {
	if l := p.lanes[laneKey{node: node}]; l != nil {
		return l.Begin
	}
	return p.First
}

// addMark adds a mark to its lane; if that is unknown, to the lane of the node, or of the run.
func (p *picture) addMark(node, parent string, m wire.TimelineMark) {
	for _, k := range []laneKey{{node, parent}, {node: node}, {node: wire.RunNode}} {
		if l := p.lanes[k]; l != nil {
			l.Marks = append(l.Marks, m)
			return
		}
	}
}

// pixel is the text of the pixel that a time falls into; its parameters are ?2 to ?4.
const pixel = `(%[1]s - ?2) * ?3 / ?4`

func (p *picture) span() []any { return []any{p.of.ID, p.From, p.px, p.To - p.From} }

// drawLines draws what the log says: of each kind one mark for a pixel.
func (p *picture) drawLines(ctx context.Context) error {
	if err := p.readLines(ctx); err != nil {
		return err
	}
	for _, m := range p.lines {
		p.addMark(p.names[m.node], m.parent, m.TimelineMark)
	}
	return nil
}

// readLines reads the marks of lines, once, in the order of their first lines.
func (p *picture) readLines(ctx context.Context) error {
	if p.lines != nil {
		return nil
	}
	p.lines = []lineMark{}
	text := `SELECT node, parent, type, ` + fmt.Sprintf(pixel, "ts") + ` AS px, min(ts), max(ts), count(*), min(pos) FROM lines
		WHERE run = ?1 AND hidden = 0 AND ts >= ?2 AND ts <= ?2 + ?4 GROUP BY node, parent, type, px ORDER BY min(pos)`
	for rows, err := range p.t.Rows(ctx, text, p.span()...) {
		if err != nil {
			return err
		}
		var px int64
		var m lineMark
		if err := rows.Scan(&m.node, &m.parent, &m.Kind, &px, &m.At, &m.last, &m.N, &m.Pos); err != nil {
			return err
		}
		p.lines = append(p.lines, m)
	}
	return nil
}

// drawCalls draws calls that failed or were denied, all of them, and calls that have a length.
func (p *picture) drawCalls(ctx context.Context) error {
	from := ` FROM tool_calls c LEFT JOIN lines l ON l.pos = c.pos WHERE c.run = ?1 AND c.ts >= ?2 AND `
	kind := `CASE c.outcome WHEN 'denied' THEN 'denied' ELSE 'failed' END`
	failed := `SELECT c.node, coalesce(l.parent, ''), ` + kind + ` AS kind, ` + fmt.Sprintf(pixel, "c.ts") + ` AS px, min(c.ts), 0, count(*), min(c.pos), min(c.tool)` +
		from + `c.ts <= ?2 + ?4 AND c.outcome <> 'ok' GROUP BY c.node, coalesce(l.parent, ''), ` + kind + `, px`
	long := `SELECT c.node, coalesce(l.parent, ''), 'call', 0, c.ts - c.duration_ms, c.ts, 1, c.pos, c.tool` +
		from + `c.ts - c.duration_ms <= ?2 + ?4 AND c.duration_ms * ?3 >= ?4 ORDER BY c.duration_ms DESC LIMIT ` + fmt.Sprint(maxSpans)
	for _, text := range []string{long, failed} {
		for rows, err := range p.t.Rows(ctx, text, p.span()...) {
			if err != nil {
				return err
			}
			var node, px int64
			var parent string
			var m wire.TimelineMark
			if err := rows.Scan(&node, &parent, &m.Kind, &px, &m.At, &m.End, &m.N, &m.Pos, &m.Text); err != nil {
				return err
			}
			m.Text = timeline.Line(m.Text, 80)
			p.addMark(p.names[node], parent, m)
		}
	}
	return nil
}

// drawWaits draws the waits for people that are over: from the line that asks to what the agent's log
// says next.
func (p *picture) drawWaits(ctx context.Context) error {
	text := `SELECT w.node, w.parent, w.ts, w.pos, substr(w.text, 1, 200),
			(SELECT n.ts FROM lines n WHERE n.run = ?1 AND n.hidden = 0 AND n.pos > w.pos AND n.node = w.node AND n.parent = w.parent ORDER BY n.pos LIMIT 1) AS until
		FROM lines w WHERE w.run = ?1 AND w.hidden = 0 AND w.type = 'system' AND (w.text LIKE ?5 OR w.text LIKE ?6 OR w.text LIKE ?7 AND w.text NOT LIKE '%(info)') AND w.ts - ?2 <= ?4 AND ?3 > 0
		ORDER BY w.pos DESC LIMIT ` + fmt.Sprint(maxSpans)
	args := append(p.span(), timeline.AsksPermission+"%", timeline.AsksQuestion+"%", timeline.AsksMessage+"%")
	for rows, err := range p.t.Rows(ctx, text, args...) {
		if err != nil {
			return err
		}
		var node int64
		var parent string
		var until *int64
		m := wire.TimelineMark{Kind: "wait", N: 1}
		if err := rows.Scan(&node, &parent, &m.At, &m.Pos, &m.Text, &until); err != nil {
			return err
		}
		switch {
		case until == nil && p.Open, until != nil && *until < p.From:
			continue // what waits now is told by the state
		case until == nil:
			until = &p.Last
		}
		m.End, m.Text = *until, timeline.Line(m.Text, 120)
		p.addMark(p.names[node], parent, m)
	}
	return nil
}

// drawAlerts draws all alerts.
func (p *picture) drawAlerts(ctx context.Context) error {
	text := `SELECT node, kind, ` + fmt.Sprintf(pixel, "ts") + ` AS px, min(ts), count(*), min(event), min(text) FROM alerts
		WHERE run = (SELECT run FROM runs WHERE id = ?1) AND ts >= ?2 AND ts <= ?2 + ?4 GROUP BY node, kind, px`
	for rows, err := range p.t.Rows(ctx, text, p.span()...) {
		if err != nil {
			return err
		}
		var px int64
		var node, kind string
		m := wire.TimelineMark{Kind: "alert"}
		if err := rows.Scan(&node, &kind, &px, &m.At, &m.N, &m.Pos, &m.Text); err != nil {
			return err
		}
		m.Text = timeline.Line(kind+": "+m.Text, 160)
		p.addMark(node, "", m)
	}
	return nil
}

// drawOpen draws what hasn't ended: calls, and what waits for a person.
func (p *picture) drawOpen(s *wire.State) {
	if !p.Open {
		return
	}
	for _, c := range s.Tools {
		p.addMark(c.Node, c.Parent, wire.TimelineMark{Kind: "call", At: c.Since, End: p.Last, N: 1, Open: true, Text: timeline.Line(c.Tool, 80)})
	}
	for _, w := range ask.Pending(s) {
		p.addMark(w.NodeID, "", wire.TimelineMark{Kind: "wait", At: w.Since, End: p.Last, N: 1, Open: true, Text: timeline.Line(waitsFor(w), 120)})
	}
}

// fitsInto reports whether the answer is small enough. What can't be drawn coarser loses its last lanes.
func (p *picture) fitsInto(limit int, coarser bool) bool {
	size := 1 << 10
	for i, l := range p.Lanes {
		size += 200 + 2*len(l.Node) + 2*len(l.Parent)
		for _, m := range l.Marks {
			size += 80 + 2*len(m.Text)
		}
		switch {
		case size <= limit:
		case coarser:
			return false
		case i > 0:
			p.Omitted += len(p.Lanes) - i
			p.Lanes = p.Lanes[:i]
			return true
		}
	}
	return true
}
