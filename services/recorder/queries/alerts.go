package queries

import (
	"context"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
)

// fillAlerts fills in how many alerts runs and their agents have raised, as far as they are recorded.
func fillAlerts(ctx context.Context, t *archive.Tx, runs []wire.TopRun) error {
	if len(runs) == 0 {
		return nil
	}
	var args database.Params
	ids := make([]any, len(runs))
	for i := range runs {
		ids[i] = runs[i].RunID
	}
	type place struct{ run, node string }
	counts := map[place]int{}
	for rows, err := range t.Rows(ctx, `SELECT run, node, count(*) FROM alerts WHERE run IN (`+args.List(ids...)+`) GROUP BY run, node`, args...) {
		if err != nil {
			return err
		}
		var at place
		var n int
		if err := rows.Scan(&at.run, &at.node, &n); err != nil {
			return err
		}
		counts[at] = n
		counts[place{run: at.run}] += n
	}
	for i := range runs {
		r := &runs[i]
		if r.Alerts = counts[place{run: r.RunID}]; r.Alerts == 0 {
			continue
		}
		for k := range r.Live {
			r.Live[k].Alerts = counts[place{r.RunID, r.Live[k].AgentID}]
		}
		if err := t.Row(ctx, `SELECT text FROM alerts WHERE run = ?1 ORDER BY pos DESC LIMIT 1`, r.RunID).Scan(&r.LastAlert); err != nil {
			return err
		}
		r.LastAlert = timeline.Line(r.LastAlert, 300)
	}
	return nil
}
