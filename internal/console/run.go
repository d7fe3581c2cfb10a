package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

// runPage is the page of a run.
type runPage struct {
	Run      string
	Operator bool
	Head     runHead
	Log      runLog
	Inbox    inbox
	Moment   *moment // nil: it shows the present
	First    uint64  // position of the run's first event
	Last     uint64
	Points   []client.Point
}

// runHead is how the run is doing.
type runHead struct {
	wire.StatusResponse

	Graph *graph
	Fold  *wire.State
}

// Parent is the run that has started this one, or from which it was forked.
func (h runHead) Parent() string {
	if h.Fold == nil {
		return ""
	}
	if h.Fold.ParentRun != "" || len(h.Fold.Lineage) == 0 {
		return h.Fold.ParentRun
	}
	return h.Fold.Lineage[0].RunID
}

func (s *Console) showRun(w http.ResponseWriter, r *http.Request) {
	l, run, err := s.findRun(r)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	if run != r.PathValue("run") {
		http.Redirect(w, r, "/runs/"+run, http.StatusFound)
		return
	}
	p := runPage{Run: run, Operator: userOfRequest(r).role == operator}
	at, err := positionOf(r.FormValue("at"))
	if err == nil && at > 0 {
		p.Moment, err = readMoment(r.Context(), l, run, at)
	}
	if err == nil {
		p.Head, err = s.readHead(r.Context(), l, run)
	}
	if err == nil {
		p.Log, err = s.readLog(r, run)
	}
	if err == nil {
		p.Inbox, err = s.readInbox(r, run)
	}
	if err == nil {
		p.First, err = firstPosition(r.Context(), l, run)
	}
	if err != nil {
		s.showError(w, r, err)
		return
	}
	p.Last = p.Head.Position.Seq
	if p.Points, err = l.client.Bookmarks(r.Context(), run); err != nil {
		s.c.Logger.InfoContext(r.Context(), "points of the run can't be read", "run", run, "error", err)
	}
	if len(p.Points) > maxPoints {
		p.Points = p.Points[len(p.Points)-maxPoints:]
	}
	s.showPage(w, r, http.StatusOK, "run", page{Title: cmp.Or(p.Head.AgentID, run), At: "run", Run: run, Data: p})
}

// maxPoints bounds the points that a page offers to fork from; the newest ones.
const maxPoints = 200

// firstPosition is that of the run's first event.
func firstPosition(ctx context.Context, l *link, run string) (uint64, error) {
	q := wire.EventsRequest{Run: run, Limit: 1}
	for e, err := range firstEvents(ctx, l, q) {
		return e, err
	}
	return 0, nil
}

func (s *Console) readHead(ctx context.Context, l *link, run string) (runHead, error) {
	st, err := call[wire.StatusResponse](ctx, s, wire.VerbStatus, wire.StatusRequest{Run: run})
	if err != nil {
		return runHead{}, err
	}
	h := runHead{StatusResponse: st}
	if h.Fold, err = l.client.State(ctx, run); err != nil {
		return h, err
	}
	h.Graph = graphOf(h.Fold)
	return h, nil
}

// showRunPart writes a part of the page of a run.
func (s *Console) showRunPart(w http.ResponseWriter, r *http.Request) {
	l, run, err := s.findRun(r)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	var data any
	part := r.PathValue("part")
	switch part {
	case "head":
		data, err = s.readHead(r.Context(), l, run)
	case "log":
		data, err = s.readLog(r, run)
	case "alerts":
		data, err = readAlerts(r.Context(), l, run)
	case "spend":
		data, err = call[wire.StatsResponse](r.Context(), s, wire.VerbStats, wire.StatsRequest{Run: run})
	case "compared":
		var with string
		if with, err = l.client.Find(r.Context(), r.FormValue("with")); err == nil {
			data, err = readCompared(r, l, run, with)
		}
	case "moment":
		var at uint64
		if at, err = positionOf(r.FormValue("at")); err == nil {
			data, err = readMoment(r.Context(), l, run, at)
		}
	default:
		err = &wire.APIError{Code: wire.CodeNotFound, Message: "there is no such part of the page"}
	}
	s.showPart(w, r, "run-"+part, data, err)
}

// runLog is a page of a run's log.
type runLog struct {
	wire.LogResponse

	Query logQuery
	Older string // address of the part before
	Newer string
}

// logQuery is what a URL says of a log.
type logQuery struct {
	Run, Type, Grep, Node, Offset string
}

// logPage is how many lines are shown at once.
const logPage = 120

func (q logQuery) url() string {
	return "/runs/" + q.Run + "/parts/log?" + encode("type", q.Type, "grep", q.Grep, "node", q.Node, "offset", q.Offset)
}

// Part is the address of the lines alone.
func (q logQuery) Part() string { return q.url() }

func (s *Console) readLog(r *http.Request, run string) (runLog, error) {
	q := logQuery{Run: run, Type: r.FormValue("type"), Grep: r.FormValue("grep"), Node: r.FormValue("node"), Offset: r.FormValue("offset")}
	limit := logPage
	ask := wire.LogRequest{Run: run, Type: wire.LineType(q.Type), Grep: q.Grep, Node: q.Node, Limit: &limit, Details: true}
	if q.Offset != "" {
		n, err := strconv.ParseInt(q.Offset, 10, 64)
		if err != nil {
			return runLog{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "offset is no number"}
		}
		ask.Offset = &n
	}
	answer, err := call[wire.LogResponse](r.Context(), s, wire.VerbLog, ask)
	g := runLog{LogResponse: answer, Query: q}
	page := func(offset int64) string {
		q := q
		q.Offset = strconv.FormatInt(max(0, offset), 10)
		return q.url()
	}
	if answer.Offset > 0 {
		g.Older = page(answer.Offset - logPage)
	}
	if end := answer.Offset + int64(answer.ReturnedLines); end < answer.TotalLines {
		g.Newer = page(end)
	}
	return g, err
}

// readAlerts returns the last alerts of a run, the newest first.
func readAlerts(ctx context.Context, l *link, run string) ([]wire.Alert, error) {
	const most = 100
	var all []wire.Alert
	for m, err := range l.reader.Alerts(ctx, run, 1, false) {
		if err != nil {
			return nil, err
		}
		data, err := l.reader.Unseal(m.Subject, m.Data)
		var a wire.Alert
		if err != nil || wire.Unmarshal(data, &a) != nil {
			continue
		}
		if all = append(all, a); len(all) > most {
			all = all[1:]
		}
	}
	slices.Reverse(all)
	return all, nil
}

// sendTimeline sends the course of the run as a picture.
func (s *Console) sendTimeline(w http.ResponseWriter, r *http.Request) {
	number := func(name string) int64 { n, _ := strconv.ParseInt(r.FormValue(name), 10, 64); return n }
	q := wire.TimelineRequest{Run: r.PathValue("run"), From: number("from"), To: number("to"), Px: int(number("px"))}
	t, err := call[wire.TimelineResponse](r.Context(), s, wire.VerbTimeline, q)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	s.writeJSON(w, http.StatusOK, t)
}

// graph is the flow as a picture, with how far the run is.
type graph struct {
	W, H  int
	Nodes []graphNode
	Edges []graphEdge
}

type graphNode struct {
	ID, Type, State string
	X, Y, W, H      int
}

type graphEdge struct {
	X1, Y1, X2, Y2 int
	State          string
	Back           bool
}

// The picture's measures.
const (
	boxW, boxH   = 132, 40
	gapX, gapY   = 44, 16
	maxGraphSize = 200 // nodes
)

// graphOf draws the flow of a run: each node right of those that it follows. There is none of a single
// node, nor of a definition that can't be read.
func graphOf(s *wire.State) *graph {
	def, err := flow.FromRaw(s.Definition)
	if err != nil || len(def.Nodes) < 2 || len(def.Nodes) > maxGraphSize {
		return nil
	}
	column := columnsOf(def)
	rows := map[int]int{}
	g := &graph{}
	at := map[string]*graphNode{}
	g.Nodes = make([]graphNode, len(def.Nodes))
	for i, n := range def.Nodes {
		c := column[n.ID]
		g.Nodes[i] = graphNode{
			ID: n.ID, Type: string(n.Type), State: nodeWord(s, n.ID),
			X: 8 + c*(boxW+gapX), Y: 8 + rows[c]*(boxH+gapY), W: boxW, H: boxH,
		}
		rows[c]++
		at[n.ID] = &g.Nodes[i]
		g.W, g.H = max(g.W, g.Nodes[i].X+boxW+8), max(g.H, g.Nodes[i].Y+boxH+8)
	}
	for _, e := range def.Edges {
		a, b := at[e.From], at[e.To]
		if a == nil || b == nil {
			continue
		}
		x := graphEdge{X1: a.X + boxW, Y1: a.Y + boxH/2, X2: b.X, Y2: b.Y + boxH/2, State: string(s.EdgeStatus[e.Key()])}
		if b.X <= a.X {
			x = graphEdge{X1: a.X + boxW/2, Y1: a.Y + boxH, X2: b.X + boxW/2, Y2: b.Y + boxH, State: x.State, Back: true}
			g.H = max(g.H, max(x.Y1, x.Y2)+28)
		}
		g.Edges = append(g.Edges, x)
	}
	return g
}

// columnsOf puts each node behind those that lead to it; an edge that leads back doesn't count.
func columnsOf(def *flow.Definition) map[string]int {
	column, order := map[string]int{}, map[string]int{}
	for i, n := range def.Nodes {
		order[n.ID] = i
	}
	for range def.Nodes {
		moved := false
		for _, e := range def.Edges {
			if order[e.To] > order[e.From] && column[e.To] <= column[e.From] {
				column[e.To], moved = column[e.From]+1, true
			}
		}
		if !moved {
			break
		}
	}
	return column
}

// nodeWord is how a node is doing, in a word.
func nodeWord(s *wire.State, id string) string {
	n := s.Nodes[id]
	switch {
	case n.Skipped:
		return "skipped"
	case slices.ContainsFunc(openTools(s), func(c wire.ToolCall) bool { return c.Node == id && c.State == wire.ToolApprovalRequired }), n.PromptID != "" && n.Open():
		return "waiting"
	}
	return cmp.Or(string(s.NodeStatus[id]), "pending")
}

// openTools lists the open calls of a state, the oldest first.
func openTools(s *wire.State) []wire.ToolCall {
	all := make([]wire.ToolCall, 0, len(s.Tools))
	for _, c := range s.Tools {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b wire.ToolCall) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.CallID, b.CallID))
	})
	return all
}
