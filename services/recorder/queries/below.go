package queries

import (
	"context"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// atRun begins what another run waits for.
const atRun = "run "

// maxBelow bounds the runs below one that are asked what they wait for.
const maxBelow = 200

// FillWaits fills in what a run waits for while one that it has begun and waits for, at any distance, waits or is paused, of at most [maxBelow] runs: there, and not
// at the run itself, somebody has to act. A node that has begun such a run says so, too.
func (a *Answers) FillWaits(ctx context.Context, r *wire.StatusResponse, now time.Time, limit int) error {
	room := maxBelow
	return request.Wrap("status", a.fillWaits(ctx, r, now, limit, &room))
}

func (a *Answers) fillWaits(ctx context.Context, r *wire.StatusResponse, now time.Time, limit int, room *int) error {
	if r.Status != wire.RunRunning || *room == 0 {
		return nil
	}
	below, err := archive.Ask(ctx, a.Archive, func(t *archive.Tx) (runs []string, err error) {
		var args database.Params
		text := `SELECT runs.run FROM lineage JOIN runs ON runs.id = lineage.run WHERE lineage.ancestor = ` + args.Add(r.RunID) + ` AND runs.parent = ` + args.Add(r.RunID) +
			` AND runs.status IN (` + args.List(string(wire.RunRunning), string(wire.RunPaused)) + `) ORDER BY runs.first_pos LIMIT ` + args.Add(*room)
		one := rollRun{parent: r.RunID}
		for err := range t.Each(ctx, text, args, &one.Run) {
			if err != nil {
				return nil, err
			}
			if one.awaited() {
				runs = append(runs, one.Run)
			}
		}
		return runs, nil
	})
	if err != nil {
		return err
	}
	for _, run := range below {
		if *room == 0 {
			break
		}
		*room--
		child, err := a.Status(ctx, wire.StatusRequest{Run: run}, now, limit)
		if wire.HasCode(err, wire.CodeRunNotFound) {
			continue // it was removed meanwhile
		}
		if err == nil {
			err = a.fillWaits(ctx, &child, now, limit, room)
		}
		if err != nil {
			return err
		}
		noteWait(r, &child)
	}
	return nil
}

// noteWait has a run, and the node of it that has begun the other, wait for what the other waits for. What waits for longer comes first.
func noteWait(r, child *wire.StatusResponse) {
	if child.WaitingFor == "" {
		return
	}
	what := child.WaitingFor
	if !strings.HasPrefix(what, atRun) { // else it is that of a run further below
		what = atRun + child.RunID + ": " + what
	}
	node, _, _ := strings.Cut(strings.TrimPrefix(child.RunID, r.RunID+"."), "#")
	if i := slices.IndexFunc(r.Agents, func(n wire.AgentStatus) bool { return n.AgentID == node }); i >= 0 && r.Agents[i].WaitingFor == "" {
		r.Agents[i].WaitingFor, r.Agents[i].WaitsSince = what, child.WaitsSince
	}
	if r.WaitingFor == "" || child.WaitsSince > 0 && child.WaitsSince < r.WaitsSince {
		r.WaitingFor, r.WaitsSince = what, child.WaitsSince
	}
}
