package queries

import (
	"context"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Approvals answers a [wire.ApprovalsRequest], in at most limit bytes.
func (a *Answers) Approvals(ctx context.Context, q wire.ApprovalsRequest, limit int) (wire.ApprovalsResponse, error) {
	r := wire.ApprovalsResponse{Approvals: []wire.Approval{}}
	t, err := a.View(ctx)
	if err != nil {
		return r, fmt.Errorf("recorder: approvals: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	ids, err := runsThatGoOn(ctx, t)
	if q.Run != "" {
		var found request.Target
		found, err = request.Resolve(ctx, t, q.Run, "", "")
		ids = []string{found.Run}
		if err == nil {
			ids, err = withAwaited(ctx, t, found.Run)
		}
	}
	if err != nil {
		return r, request.Wrap("approvals", err)
	}
	for _, id := range ids {
		open, err := a.pendingApprovals(ctx, t, id)
		if err != nil {
			return r, request.Wrap("approvals", err)
		}
		r.Approvals = append(r.Approvals, open...)
	}
	slices.SortFunc(r.Approvals, ask.Older)
	room := limit - 1<<10
	for i, a := range r.Approvals {
		b, err := wire.Marshal(a)
		if err != nil {
			return r, fmt.Errorf("recorder: approvals: %w", err)
		}
		if room -= 2 * len(b); room < 0 { // JSON takes more
			r.Approvals, r.Omitted = r.Approvals[:i], len(r.Approvals)-i
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

// runsThatGoOn lists all of them.
func runsThatGoOn(ctx context.Context, t *archive.Tx) ([]string, error) {
	var ids []string
	for rows, err := range t.Rows(ctx, `SELECT run FROM runs WHERE status IN ('running', 'paused') AND run NOT IN (SELECT run FROM deleted)`) {
		if err != nil {
			return nil, err
		}
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// withAwaited lists a run and, of those that go on, what its agents and nodes have
// started and wait for, at any depth.
func withAwaited(ctx context.Context, t *archive.Tx, run string) ([]string, error) {
	children := map[string][]string{}
	for rows, err := range t.Rows(ctx, `SELECT run, parent FROM runs WHERE status IN ('running', 'paused') AND run NOT IN (SELECT run FROM deleted) AND `+awaited) {
		if err != nil {
			return nil, err
		}
		var child, parent string
		if err := rows.Scan(&child, &parent); err != nil {
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
