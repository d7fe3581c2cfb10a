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
	all, err := askArchive(ctx, a, "approvals", func(t *archive.Tx) ([]wire.Approval, error) {
		if q.Run == "" {
			return a.allPending(ctx, t, now.UnixMilli())
		}
		return a.pendingOf(ctx, t, q.Run)
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
func (a *Answers) allPending(ctx context.Context, t *archive.Tx, now int64) (all []wire.Approval, err error) {
	where, args, err := runsFilter(wire.RunsRequest{}, time.UnixMilli(now))
	if err != nil {
		return all, err
	}
	open, _, err := listPlaces(ctx, t, where+" AND status IN ("+openStatuses+")", args, 2*maxEnded)
	if err != nil {
		return all, err
	}
	figures, err := a.openFigures(ctx, t, open, now)
	for _, f := range figures {
		all = append(all, f.waits...)
	}
	return all, err
}

// pendingOf lists what waits in a run, and in those that it has started and waits for.
func (a *Answers) pendingOf(ctx context.Context, t *archive.Tx, ref string) (all []wire.Approval, err error) {
	found, err := request.Resolve(ctx, t, ref, "", "")
	if err != nil {
		return nil, err
	}
	ids, err := withAwaited(ctx, t, found.Run)
	for _, id := range ids {
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
func withAwaited(ctx context.Context, t *archive.Tx, run string) ([]string, error) {
	children := map[string][]string{}
	text := `SELECT run, parent FROM runs WHERE status IN ('running', 'paused') AND run NOT IN (SELECT run FROM deleted) AND ` + awaited
	var child, parent string
	for err := range t.Each(ctx, text, nil, &child, &parent) {
		if err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], child)
	}
	ids := []string{run}
	for i := 0; i < len(ids); i++ {
		ids = append(ids, children[ids[i]]...)
		delete(children, ids[i])
	}
	return ids, nil
}
