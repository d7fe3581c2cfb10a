package queries

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Limits of the fleet.
const (
	defaultTop = 50
	maxTop     = 200
	maxFleet   = 2000 // runs that are looked at
	maxLive    = 20   // agents of a run that are listed
)

// Top answers a [wire.TopRequest] as of now, in at most limit bytes.
func (a *Answers) Top(ctx context.Context, q wire.TopRequest, now time.Time, limit int) (wire.TopResponse, error) {
	t, err := a.View(ctx)
	if err != nil {
		return wire.TopResponse{}, fmt.Errorf("recorder: top: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	r, err := a.listTop(ctx, t, q, now)
	if err != nil {
		return r, request.Wrap("top", err)
	}
	room := limit - 1<<10
	for i, x := range r.Runs {
		if room -= (agentSize + 6*700) * (1 + len(x.Live)); room < 0 && i > 0 {
			r.Omitted += len(r.Runs) - i
			r.Runs = r.Runs[:i]
			break
		}
	}
	return r, nil
}

func (a *Answers) listTop(ctx context.Context, t *archive.Tx, q wire.TopRequest, now time.Time) (wire.TopResponse, error) {
	r := wire.TopResponse{At: now.UnixMilli(), States: map[string]int{}, Runs: []wire.TopRun{}}
	if q.Limit < 0 || q.Limit > maxTop {
		return r, request.Bad("limit must be between 1 and %d", maxTop)
	}
	runs, err := topPlaces(ctx, t, q, r.At)
	if err != nil {
		return r, err
	}
	figures, err := a.openFigures(ctx, t, runs, r.At)
	if err != nil {
		return r, err
	}
	for _, f := range figures {
		r.States[f.run.State]++
		r.Runs = append(r.Runs, f.run)
	}
	slices.SortStableFunc(r.Runs, func(a, b wire.TopRun) int { return byUrgency(&a, &b) })
	if n := cmp.Or(q.Limit, defaultTop); len(r.Runs) > n {
		r.Omitted, r.Runs = len(r.Runs)-n, r.Runs[:n]
	}
	return r, nil
}

// topPlaces lists the runs that go on, and those that ended lately, newest first, without ended runs
// that another run has waited for: the other run tells what has come of them.
func topPlaces(ctx context.Context, t *archive.Tx, q wire.TopRequest, now int64) ([]place, error) {
	where, args, err := runsFilter(wire.RunsRequest{Label: q.Label, Flow: q.Flow}, time.UnixMilli(now))
	if err != nil {
		return nil, err
	}
	where += " AND (status IN (" + openStatuses + ")"
	if q.Since > 0 {
		where += " OR ended_at >= " + args.Add(now-int64(q.Since)) + " AND NOT " + awaited
	}
	open, ended, err := listPlaces(ctx, t, where+")", args, maxFleet)
	all := append(open, ended...)
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(b.first, a.first) })
	return all, err
}

// awaited is what an agent or a node of another run has started and waits for: the
// runner names such runs so.
const awaited = `(parent <> '' AND (run LIKE 'child-%' OR substr(run, 1, length(parent) + 1) = parent || '.'))`

func topRun(st wire.StatusResponse) wire.TopRun {
	x := wire.TopRun{AgentStatus: st.AgentStatus, RunID: st.RunID, FlowName: st.FlowName, Status: st.Status, Result: st.Result, Live: []wire.AgentStatus{}}
	for _, a := range st.Agents {
		if (a.State == stateActive || a.State == stateWaiting) && len(x.Live) < maxLive {
			x.Live = append(x.Live, a)
		}
	}
	slices.SortStableFunc(x.Live, func(a, b wire.AgentStatus) int { return cmp.Compare(urgencyOf(a.State), urgencyOf(b.State)) })
	return x
}

// byUrgency puts waiting runs first, the longest waiting before others; then runs by
// urgency, and of equally urgent ones the latest active first.
func byUrgency(a, b *wire.TopRun) int {
	if c := cmp.Compare(urgencyOf(a.State), urgencyOf(b.State)); c != 0 {
		return c
	}
	if a.State == stateWaiting {
		return cmp.Compare(a.WaitsSince, b.WaitsSince)
	}
	return cmp.Compare(a.LastActivityAgeMs, b.LastActivityAgeMs)
}

func urgencyOf(state string) int {
	return slices.Index([]string{stateWaiting, stateFailed, statePaused, stateActive, stateIdle, stateAborted, stateComplete, stateSkipped}, state)
}
