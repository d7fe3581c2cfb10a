package console

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/graph"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

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
	Kin      []kin // that were forked from it, or that it has started; the newest ones
	MoreKin  bool
}

// kin is a run that comes from another one.
type kin struct{ RunID, State string }

// runHead is how the run and its nodes are doing.
type runHead struct {
	wire.StatusResponse

	Graph *graph.Picture
	Fold  *wire.State

	Providers map[string]string // by node
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
		redirectBelow(w, r, runAddress(run), http.StatusFound)
		return
	}
	at, err := positionOf(r.FormValue("at"))
	if err != nil {
		s.showError(w, r, err)
		return
	}
	p := runPage{Run: run, Operator: userOfRequest(r).role == operator}
	parts := []func(context.Context) error{ // each waits for an answer
		func(ctx context.Context) (err error) { p.Head, err = s.readHead(ctx, l, run); return err },
		func(context.Context) (err error) { p.Log, err = s.readLog(r, run); return err },
		func(context.Context) (err error) { p.Inbox, err = s.readInbox(r, run); return err },
		func(ctx context.Context) (err error) { p.First, err = firstPosition(ctx, l, run); return err },
		func(ctx context.Context) (err error) {
			if p.Points, _, err = l.client.BookmarksBefore(ctx, run, 0, maxPoints); err != nil {
				s.c.Logger.InfoContext(ctx, "points of the run can't be read", "run", run, "error", err)
			}
			return nil
		},
		func(ctx context.Context) (err error) { return s.readKin(ctx, run, &p) },
	}
	if at > 0 {
		parts = append(parts, func(context.Context) (err error) { p.Moment, err = readMoment(r, l, run, at); return err })
	}
	ctx, errs := r.Context(), make([]error, len(parts))
	var reading sync.WaitGroup
	for i, part := range parts {
		reading.Go(func() { errs[i] = part(ctx) })
	}
	reading.Wait()
	if err := cmp.Or(errs...); err != nil {
		s.showError(w, r, err)
		return
	}
	p.Last = p.Head.Position.Seq
	s.showPage(w, r, http.StatusOK, "run", page{Title: cmp.Or(p.Head.AgentID, run), At: "run", Run: run, Data: p})
}

// maxKin bounds the forks and child runs that a page names.
const maxKin = 12

// readKin reads which runs come from this one.
func (s *Console) readKin(ctx context.Context, run string, p *runPage) error {
	answer, err := callVerb[wire.RunsResponse](ctx, s, wire.VerbRuns, wire.RunsRequest{Ancestor: run, Limit: maxKin})
	p.MoreKin = answer.Cursor != ""
	for _, r := range answer.Runs {
		state := string(r.Status)
		if r.Result == wire.FlowStatusFailed && r.Status == wire.RunComplete {
			state = "failed"
		}
		p.Kin = append(p.Kin, kin{r.RunID, state})
	}
	return err
}

// maxPoints bounds the points that a page offers to fork from; the newest ones.
const maxPoints = 200

func (s *Console) readHead(ctx context.Context, l *link, run string) (runHead, error) {
	st, err := callVerb[wire.StatusResponse](ctx, s, wire.VerbStatus, wire.StatusRequest{Run: run})
	if err != nil {
		return runHead{}, err
	}
	state, err := l.client.State(ctx, run)
	if err != nil {
		return runHead{}, err
	}
	return runHead{StatusResponse: st, Fold: state, Graph: graph.Draw(state), Providers: graph.Providers(state)}, nil
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
		data, err = callVerb[wire.StatusResponse](r.Context(), s, wire.VerbStatus, wire.StatusRequest{Run: run})
	case "nodes":
		data, err = s.readHead(r.Context(), l, run)
	case "log":
		data, err = s.readLog(r, run)
	case "alerts":
		data, err = s.readAlerts(r.Context(), run)
	case "spend":
		data, err = readRunSpend(r.Context(), s, l, run)
	case "compared":
		var with string
		if with, err = l.client.Find(r.Context(), r.FormValue("with")); err == nil {
			data, err = readCompared(r, l, run, with)
		}
	case "moment":
		var at uint64
		if at, err = positionOf(r.FormValue("at")); err == nil {
			data, err = readMoment(r, l, run, at)
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
	return runAddress(q.Run) + "/parts/log?" + encodeQuery("type", q.Type, "grep", q.Grep, "node", q.Node, "offset", q.Offset)
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
	answer, err := callVerb[wire.LogResponse](r.Context(), s, wire.VerbLog, ask)
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

// maxAlerts bounds the alerts that are shown; the newest ones.
const maxAlerts = 100

// readAlerts returns the last alerts of a run, the newest first.
func (s *Console) readAlerts(ctx context.Context, run string) (wire.AlertsResponse, error) {
	return callVerb[wire.AlertsResponse](ctx, s, wire.VerbAlerts, wire.AlertsRequest{Run: run, Limit: maxAlerts})
}

// sendAlerts sends the last alerts of a run, the newest first.
func (s *Console) sendAlerts(w http.ResponseWriter, r *http.Request) {
	answer, err := s.readAlerts(r.Context(), r.PathValue("run"))
	s.sendAnswer(w, r, answer, err)
}

// sendBookmarks sends a page of the points at which a run can be forked, the last ones.
func (s *Console) sendBookmarks(w http.ResponseWriter, r *http.Request) {
	before, err := positionOf(r.FormValue("before"))
	var answer wire.BookmarksResponse
	if err == nil {
		answer, err = callVerb[wire.BookmarksResponse](r.Context(), s, wire.VerbBookmarks, wire.BookmarksRequest{Run: r.PathValue("run"), Before: before})
	}
	s.sendAnswer(w, r, answer, err)
}

// sendTimeline sends the course of the run as a picture.
func (s *Console) sendTimeline(w http.ResponseWriter, r *http.Request) {
	number := func(name string) int64 { n, _ := strconv.ParseInt(r.FormValue(name), 10, 64); return n }
	q := wire.TimelineRequest{Run: r.PathValue("run"), From: number("from"), To: number("to"), Px: int(number("px"))}
	answer, err := callVerb[wire.TimelineResponse](r.Context(), s, wire.VerbTimeline, q)
	s.sendAnswer(w, r, answer, err)
}

// openTools lists the open calls of a state, the oldest first.
func openTools(s *wire.State) []wire.ToolCall {
	return slices.SortedFunc(maps.Values(s.Tools), func(a, b wire.ToolCall) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.CallID, b.CallID))
	})
}
