package recorder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/queries"
)

// newService answers the verbs.
func (r *Recorder) newService() api.Service {
	return api.Service{
		Names: r.log.Names(), Name: name, Logger: r.logger, Tracer: r.log.Tracer(),
		Endpoints: slices.Concat(r.runEndpoints(), r.logEndpoints(), r.fleetEndpoints(), r.deleteEndpoints()),
		Away:      r.awayStore,
	}
}

// awayStore says whether the store is why there is no answer: it says so itself, or it doesn't answer and recording waits for it, too.
func (r *Recorder) awayStore(err error) string {
	troubled := func(t health.Trouble) bool { return t.Part == recording || t.Part == opening }
	late := errors.Is(err, context.DeadlineExceeded)
	if !late && goesAway(err) || late && slices.ContainsFunc(r.c.Health.Troubles(), troubled) {
		return "its store is away"
	}
	return ""
}

// handleDerived answers a verb from what is derived: it catches up before, and the answer says what it lacks. run is what a question calls the
// run that it is about; nil: it is about all.
func handleDerived[Q, A any, P interface {
	*A
	SetLag(wire.Lag)
}](r *Recorder, verb, action string, run func(Q) string, ask func(ctx context.Context, q Q, now time.Time, limit int) (A, error)) api.Endpoint {
	return api.Handle(verb, action, func(ctx context.Context, q Q, f api.Form) (A, error) {
		id := ""
		if run != nil {
			id = run(q)
		}
		lag := r.catchUp(ctx, &r.derived, id)
		answer, err := ask(ctx, q, time.Now(), f.Limit)
		P(&answer).SetLag(lag)
		return answer, withLagHint(err, lag)
	})
}

// namedRun is what a question calls its run.
func namedRun(run, agent string) string {
	id, _ := request.Named(run, agent, "")
	return id
}

// runEndpoints answers what is asked about one run.
func (r *Recorder) runEndpoints() []api.Endpoint {
	s := r.store
	return []api.Endpoint{
		handleDerived(r, wire.VerbLog, "get_log", func(q wire.LogRequest) string { return namedRun(q.Run, q.AgentID) }, s.Answers.Log).OfRun(),
		handleDerived(r, wire.VerbStatus, "", func(q wire.StatusRequest) string { return namedRun(q.Run, q.AgentID) }, func(ctx context.Context, q wire.StatusRequest, now time.Time, limit int) (wire.StatusResponse, error) {
			status, err := s.Answers.Status(ctx, q, now, limit)
			if err == nil {
				err = errors.Join(s.Answers.FillAlerts(ctx, &status), s.Answers.FillWaits(ctx, &status, now, limit))
				status.AgentStatus = queries.Asked(q, status)
			}
			return status, err
		}).OfRun(),
		handleDerived(r, wire.VerbTimeline, "", func(q wire.TimelineRequest) string { return q.Run }, s.Answers.Timeline).OfRun(),
		api.Handle(wire.VerbEvents, "", func(ctx context.Context, q wire.EventsRequest, f api.Form) (wire.EventsResponse, error) {
			lag := r.catchUp(ctx, &r.recorded, q.Run)
			events, err := s.Answers.Events(ctx, q, f.JSON, f.Limit)
			return events, withLagHint(err, lag)
		}).OfRun(),
		api.Handle(wire.VerbState, "", func(ctx context.Context, q wire.StateRequest, _ api.Form) (wire.StateResponse, error) {
			lag := r.catchUp(ctx, &r.recorded, q.Run)
			state, err := s.Answers.StateAt(ctx, q)
			return state, withLagHint(err, lag)
		}).OfRun(),
		api.Handle(wire.VerbAlerts, "", func(ctx context.Context, q wire.AlertsRequest, f api.Form) (wire.AlertsResponse, error) {
			lag := r.catchUp(ctx, &r.derived, q.Run)
			r.catchUpAlerts(ctx)
			if f.JSON {
				f.Limit /= 6 // JSON writes a byte as up to six
			}
			alerts, err := s.Answers.Alerts(ctx, q, f.Limit)
			return alerts, withLagHint(err, lag)
		}).OfRun(),
	}
}

// logEndpoints answers what is asked about one run or two, and isn't in the store.
func (r *Recorder) logEndpoints() []api.Endpoint {
	s := r.store
	room := make(chan struct{}, 4) // each answer holds states of whole runs
	return []api.Endpoint{
		api.Hold(wire.VerbBookmarks, func(ctx context.Context, q wire.BookmarksRequest, f api.Form) (answer wire.BookmarksResponse, err error) {
			if q.Limit < 0 || q.Limit > maxBookmarks {
				return answer, &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("limit must be between 1 and %d", maxBookmarks)}
			}
			run, err := r.findRun(ctx, q.Run)
			if err == nil {
				answer.Points, answer.Before, err = bookmark.ListKept(ctx, storedLog{r.log, s.Answers}, s.Answers.StateOf, run, q.Before, cmp.Or(q.Limit, defaultBookmarks))
			}
			answer.Points = append([]wire.ForkPoint{}, answer.Points...)
			fitBookmarks(&answer, f)
			return answer, err
		}).Bound(room),
		api.Hold(wire.VerbDiff, func(ctx context.Context, q wire.DiffRequest, f api.Form) (answer wire.DiffResponse, err error) {
			run, err := r.findRun(ctx, q.Run)
			if err != nil {
				return answer, err
			}
			with, err := r.findRun(ctx, q.With)
			if err != nil {
				return answer, err
			}
			answer, _, _, err = history.Compare(ctx, r.log, run, with, history.Compared{At: q.At})
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = &wire.APIError{Code: wire.CodeTimeout, Message: "these runs take longer to compare than an answer may", Hint: "`wake diff` and the console take their time"}
			}
			if err == nil {
				fitDiff(&answer, f)
			}
			return answer, err
		}).Bound(room).Instead("`wake diff` and GET /runs/RUN/diff of the console show all of it"),
	}
}

// Bounds of a page of bookmarks.
const (
	defaultBookmarks = 200
	maxBookmarks     = 1000
)

// findRun returns the id of the run that a request names.
func (r *Recorder) findRun(ctx context.Context, name string) (string, error) {
	lag := r.catchUp(ctx, &r.derived, name)
	found, err := r.store.Answers.FindRun(ctx, name)
	return found.Run, withLagHint(err, lag)
}

// fleetEndpoints answers what is asked about all runs.
func (r *Recorder) fleetEndpoints() []api.Endpoint {
	s := r.store
	return []api.Endpoint{
		handleDerived(r, wire.VerbTop, "", nil, s.Answers.Top),
		handleDerived(r, wire.VerbFleet, "", nil, s.Answers.Fleet),
		handleDerived(r, wire.VerbApprovals, "", nil, s.Answers.Approvals),
		handleDerived(r, wire.VerbRuns, "", nil, s.Answers.Runs),
		handleDerived(r, wire.VerbSearch, "", nil, func(ctx context.Context, q wire.SearchRequest, now time.Time, limit int) (wire.SearchResponse, error) {
			r.indexForSearch(ctx)
			return s.Answers.Search(ctx, q, now, limit)
		}),
		handleDerived(r, wire.VerbStats, "", nil, func(ctx context.Context, q wire.StatsRequest, now time.Time, _ int) (wire.StatsResponse, error) {
			return s.Answers.Stats(ctx, q, now)
		}),
		handleDerived(r, wire.VerbBudgets, "", nil, func(ctx context.Context, _ wire.BudgetsRequest, _ time.Time, _ int) (wire.BudgetsResponse, error) {
			return r.sumBudgets(ctx)
		}),
	}
}

// deleteEndpoints deletes runs.
func (r *Recorder) deleteEndpoints() []api.Endpoint {
	s := r.store
	return []api.Endpoint{
		api.Handle(wire.VerbDelete, "", func(ctx context.Context, q wire.DeleteRequest, _ api.Form) (wire.DeleteResponse, error) {
			lag := r.catchUp(ctx, &r.derived, "")
			answer, err := s.Retention.Delete(ctx, q, r.c.Retain.Grace, time.Now())
			if err == nil && q.Now {
				select {
				case r.deleted <- struct{}{}:
				default: // that is known
				}
			}
			return answer, withLagHint(err, lag)
		}),
	}
}

// sumBudgets returns the budgets of the installation, and what is spent of them.
func (r *Recorder) sumBudgets(ctx context.Context) (answer wire.BudgetsResponse, err error) {
	store, err := budget.Open(ctx, r.log.JetStream(), r.log.Names(), r.log.Keys())
	if err != nil {
		return answer, err
	}
	all, err := store.All(ctx)
	if err != nil {
		return answer, err
	}
	return r.store.Answers.Budgets(ctx, all, time.Now())
}

// fitBookmarks leaves the first points of a page to the next one, as long as they don't fit into an answer. Points of one position stay together.
func fitBookmarks(page *wire.BookmarksResponse, f api.Form) {
	points, room := page.Points, f.Limit-100
	first := len(points)
	for first > 0 {
		if room -= encodedSize(points[first-1], f); room < 0 {
			break
		}
		first--
	}
	for first > 0 && first < len(points) && points[first-1].Position == points[first].Position {
		first++
	}
	if first > 0 && first < len(points) { // else one position has more than fits, which the answer says
		page.Points, page.Before = points[first:], points[first].Position
	}
}

// fitDiff cuts from a comparison what doesn't fit into an answer, and says so: values first lose what they are, then their names.
func fitDiff(d *wire.DiffResponse, f api.Form) {
	rest := *d
	rest.Nodes, rest.Tools, rest.State, rest.Outputs, rest.Input = nil, nil, nil, nil, nil
	room := f.Limit - encodedSize(rest, f) - 200
	d.Nodes = fitList(d.Nodes, f, &room, &d.Omitted)
	d.Tools = fitList(d.Tools, f, &room, &d.Omitted)
	if d.Input != nil {
		fitPair(d.Input, f, &room)
	}
	for _, values := range []*[]wire.DiffValue{&d.Outputs, &d.State} {
		fit := 0
		for i := range *values {
			v := &(*values)[i]
			if room -= encodedSize(v.Name, f) + 40; room < 0 {
				d.Omitted += len(*values) - i
				break
			}
			fitPair(&v.DiffPair, f, &room)
			fit++
		}
		*values = (*values)[:fit]
	}
}

// fitPair leaves both values out if there is no room for them.
func fitPair(p *wire.DiffPair, f api.Form, room *int) {
	size := encodedSize(p, f)
	if size > *room {
		*p = wire.DiffPair{Cut: true}
		size = 20
	}
	*room -= size
}

// fitList returns as many of a list's first as there is room for, and counts the rest.
func fitList[T any](all []T, f api.Form, room, omitted *int) []T {
	for i := range all {
		size := encodedSize(all[i], f)
		if size > *room {
			*omitted += len(all) - i
			return all[:i]
		}
		*room -= size
	}
	return all
}

// encodedSize is what a value takes in an answer.
func encodedSize(v any, f api.Form) int {
	raw, err := wire.Marshal(v)
	if err != nil || !f.JSON {
		return len(raw) + 1
	}
	b, err := wire.AppendJSON(nil, raw)
	if err != nil {
		return 6 * len(raw)
	}
	return len(b) + 1
}
