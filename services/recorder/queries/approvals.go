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
	all, err := askAll(ctx, a, "approvals", wire.RunsRequest{}, now, func(t *archive.Tx, runs []*rollRun) ([]wire.Approval, error) {
		runs = slices.DeleteFunc(runs, func(r *rollRun) bool { return !r.goesOn() })
		if q.Run == "" {
			return a.allPending(ctx, t, runs, now.UnixMilli())
		}
		return a.pendingOf(ctx, t, runs, q.Run)
	})
	r := wire.ApprovalsResponse{Approvals: append([]wire.Approval{}, all...)}
	if err != nil {
		return r, err
	}
	slices.SortFunc(r.Approvals, ask.Older)
	if q.Limit > 0 && len(r.Approvals) > q.Limit {
		r.Approvals, r.Omitted = r.Approvals[:q.Limit], len(r.Approvals)-q.Limit
	}
	room := limit - 1<<10
	for i, a := range r.Approvals {
		b, err := wire.Marshal(a)
		if err != nil {
			return r, fmt.Errorf("recorder: approvals: %w", err)
		}
		if room -= 2 * len(b); room < 0 { // JSON takes more
			r.Omitted += len(r.Approvals) - i
			r.Approvals = r.Approvals[:i]
			break
		}
	}
	return r, nil
}

// pendingApprovals lists what waits in a run.
func (a *Answers) pendingApprovals(ctx context.Context, t *archive.Tx, id string) (open []wire.Approval, err error) {
	answered, _, err := a.live.withRun(id, func(l *liveRun) (bool, error) {
		open = ask.Pending(l.state)
		return true, nil
	})
	if answered || err != nil {
		return open, err
	}
	found, err := request.Resolve(ctx, t, id, "", "")
	if err != nil {
		return nil, err
	}
	f, err := figureOf(ctx, t, found, a.views.stateUpTo)
	if err != nil {
		return nil, err
	}
	return ask.Pending(f.state), nil
}

// allPending lists what waits in all runs that go on.
func (a *Answers) allPending(ctx context.Context, t *archive.Tx, open []*rollRun, now int64) (all []wire.Approval, err error) {
	figures, err := a.openFigures(ctx, t, open, now)
	for _, f := range figures {
		all = append(all, f.waits...)
	}
	return all, err
}

// pendingOf lists what waits in a run, and in those that it has started and waits for.
func (a *Answers) pendingOf(ctx context.Context, t *archive.Tx, open []*rollRun, ref string) (all []wire.Approval, err error) {
	found, err := request.Resolve(ctx, t, ref, "", "")
	if err != nil {
		return nil, err
	}
	for _, id := range withAwaited(open, found.Run) {
		open, err := a.pendingApprovals(ctx, t, id)
		if err != nil {
			return all, err
		}
		all = append(all, open...)
	}
	return all, err
}

// withAwaited lists a run and, of those that go on, what its agents and nodes have
// started and wait for, at any depth.
func withAwaited(open []*rollRun, run string) []string {
	children := map[string][]string{}
	for _, r := range open {
		if r.awaited() && r.status != string(wire.RunIdle) {
			children[r.parent] = append(children[r.parent], r.Run)
		}
	}
	ids := []string{run}
	for i := 0; i < len(ids); i++ {
		ids = append(ids, children[ids[i]]...)
		delete(children, ids[i])
	}
	return ids
}
