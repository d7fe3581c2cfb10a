package queries

import (
	"context"
	"fmt"
	"slices"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// maxApprovals bounds the approvals that are asked for.
const maxApprovals = 1000

// Approvals answers a [wire.ApprovalsRequest], in at most limit bytes.
func (a *Answers) Approvals(ctx context.Context, q wire.ApprovalsRequest, now time.Time, limit int) (wire.ApprovalsResponse, error) {
	if q.Limit < 0 || q.Limit > maxApprovals {
		return wire.ApprovalsResponse{}, request.Bad("limit must be between 1 and %d", maxApprovals)
	}
	open, err := askAll(ctx, a, "approvals", wire.RunsRequest{}, now, func(t *archive.Tx, runs []*rollRun) ([]*fleetFigure, error) {
		runs = slices.DeleteFunc(runs, func(r *rollRun) bool { return !r.goesOn() })
		if q.Run != "" {
			found, err := request.Resolve(ctx, t, q.Run, "", "")
			if err != nil {
				return nil, err
			}
			runs = withAwaited(runs, found.Run)
		}
		return a.openFigures(ctx, t, runs, now.UnixMilli())
	})
	r := wire.ApprovalsResponse{Approvals: []wire.Approval{}}
	if err != nil {
		return r, err
	}
	for _, f := range open {
		r.Approvals = append(r.Approvals, f.waits...)
		if f.run.Status == wire.RunPaused && wire.NeedsPerson(f.run.Reason) && f.run.Imported == "" {
			r.Paused = append(r.Paused, wire.PausedRun{RunID: f.run.RunID, Reason: f.run.Reason, WaitingFor: pausedFor(f.run.Reason)})
		}
	}
	slices.SortFunc(r.Approvals, ask.Older)
	if q.Limit > 0 && len(r.Approvals) > q.Limit {
		r.Approvals, r.Omitted = r.Approvals[:q.Limit], len(r.Approvals)-q.Limit
	}
	room := limit - 1<<10
	asked, paused := len(r.Approvals), len(r.Paused)
	if r.Approvals, err = fittingEntries(r.Approvals, &room); err == nil {
		r.Paused, err = fittingEntries(r.Paused, &room)
	}
	r.Omitted += asked - len(r.Approvals) + paused - len(r.Paused)
	return r, err
}

// fittingEntries are the first of some entries of an answer, as many as there is room for.
func fittingEntries[T any](all []T, room *int) ([]T, error) {
	for i, x := range all {
		b, err := wire.Marshal(x)
		if err != nil {
			return nil, fmt.Errorf("recorder: approvals: %w", err)
		}
		if *room -= 2 * len(b); *room < 0 { // JSON takes more
			return all[:i], nil
		}
	}
	return all, nil
}

// withAwaited returns, of runs that go on, one and what its agents and nodes have
// started and wait for, at any depth.
func withAwaited(open []*rollRun, run string) (all []*rollRun) {
	children := map[string][]*rollRun{}
	for _, r := range open {
		switch {
		case r.Run == run:
			all = append(all, r)
		case r.awaited() && r.status != string(wire.RunIdle):
			children[r.parent] = append(children[r.parent], r)
		}
	}
	ids := []string{run}
	for i := 0; i < len(ids); i++ {
		for _, child := range children[ids[i]] {
			ids, all = append(ids, child.Run), append(all, child)
		}
		delete(children, ids[i])
	}
	return all
}
