package recorder

import (
	"context"
	"slices"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/queries"
)

// newService answers the verbs.
func (r *Recorder) newService() api.Service {
	return api.Service{
		Names: r.log.Names(), Name: name, Logger: r.logger, Tracer: r.log.Tracer(),
		Endpoints: slices.Concat(r.runEndpoints(), r.fleetEndpoints(), r.deleteEndpoints()),
	}
}

// runEndpoints answers what is asked about one run.
func (r *Recorder) runEndpoints() []api.Endpoint {
	s := r.store
	return []api.Endpoint{
		api.Handle(wire.VerbLog, "get_log", func(ctx context.Context, q wire.LogRequest, f api.Form) (wire.LogResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			log, err := s.Answers.Log(ctx, q, time.Now(), f.Limit)
			log.Lag = lag
			return log, withLagHint(err, lag)
		}).OfRun(),
		api.Handle(wire.VerbStatus, "", func(ctx context.Context, q wire.StatusRequest, f api.Form) (wire.StatusResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			status, err := s.Answers.Status(ctx, q, time.Now(), f.Limit)
			if err == nil {
				r.fillAlertCounts(ctx, status.RunID, &status.AgentStatus, status.Agents)
				status.AgentStatus = queries.Asked(q, status)
			}
			status.Lag = lag
			return status, withLagHint(err, lag)
		}).OfRun(),
		api.Handle(wire.VerbTimeline, "", func(ctx context.Context, q wire.TimelineRequest, f api.Form) (wire.TimelineResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			course, err := s.Answers.Timeline(ctx, q, time.Now(), f.Limit)
			course.Lag = lag
			return course, withLagHint(err, lag)
		}).OfRun(),
		api.Handle(wire.VerbEvents, "", func(ctx context.Context, q wire.EventsRequest, f api.Form) (wire.EventsResponse, error) {
			lag := r.catchUp(ctx, &r.recorded)
			events, err := s.Answers.Events(ctx, q, f.JSON, f.Limit)
			return events, withLagHint(err, lag)
		}).OfRun(),
		api.Handle(wire.VerbState, "", func(ctx context.Context, q wire.StateRequest, _ api.Form) (wire.StateResponse, error) {
			lag := r.catchUp(ctx, &r.recorded)
			state, err := s.Answers.StateAt(ctx, q)
			return state, withLagHint(err, lag)
		}).OfRun(),
	}
}

// fleetEndpoints answers what is asked about all runs.
func (r *Recorder) fleetEndpoints() []api.Endpoint {
	s := r.store
	return []api.Endpoint{
		api.Handle(wire.VerbTop, "", func(ctx context.Context, q wire.TopRequest, f api.Form) (wire.TopResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			top, err := s.Answers.Top(ctx, q, time.Now(), f.Limit)
			for i := range top.Runs {
				r.fillAlertCounts(ctx, top.Runs[i].RunID, &top.Runs[i].AgentStatus, top.Runs[i].Live)
			}
			top.Lag = lag
			return top, err
		}),
		api.Handle(wire.VerbFleet, "", func(ctx context.Context, q wire.FleetRequest, f api.Form) (wire.FleetResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			fleet, err := s.Answers.Fleet(ctx, q, time.Now(), f.Limit)
			fleet.Lag = lag
			return fleet, err
		}),
		api.Handle(wire.VerbApprovals, "", func(ctx context.Context, q wire.ApprovalsRequest, f api.Form) (wire.ApprovalsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			waits, err := s.Answers.Approvals(ctx, q, time.Now(), f.Limit)
			waits.Lag = lag
			return waits, withLagHint(err, lag)
		}),
		api.Handle(wire.VerbRuns, "", func(ctx context.Context, q wire.RunsRequest, f api.Form) (wire.RunsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			runs, err := s.Answers.Runs(ctx, q, time.Now(), f.Limit)
			runs.Lag = lag
			return runs, err
		}),
		api.Handle(wire.VerbSearch, "", func(ctx context.Context, q wire.SearchRequest, f api.Form) (wire.SearchResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			r.indexForSearch(ctx)
			found, err := s.Answers.Search(ctx, q, time.Now(), f.Limit)
			found.Lag = lag
			return found, withLagHint(err, lag)
		}),
		api.Handle(wire.VerbStats, "", func(ctx context.Context, q wire.StatsRequest, _ api.Form) (wire.StatsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			stats, err := s.Answers.Stats(ctx, q, time.Now())
			stats.Lag = lag
			return stats, err
		}),
		api.Handle(wire.VerbBudgets, "", func(ctx context.Context, _ wire.BudgetsRequest, _ api.Form) (wire.BudgetsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			answer, err := r.sumBudgets(ctx)
			answer.Lag = lag
			return answer, err
		}),
	}
}

// deleteEndpoints deletes runs.
func (r *Recorder) deleteEndpoints() []api.Endpoint {
	s := r.store
	return []api.Endpoint{
		api.Handle(wire.VerbDelete, "", func(ctx context.Context, q wire.DeleteRequest, _ api.Form) (wire.DeleteResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
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
