package queries

import (
	"cmp"
	"context"
	"math"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Bounds of a page of alerts.
const (
	defaultAlerts = 100
	maxAlerts     = 1000
)

// Alerts answers a [wire.AlertsRequest] in at most limit bytes of msgpack.
func (a *Answers) Alerts(ctx context.Context, q wire.AlertsRequest, limit int) (wire.AlertsResponse, error) {
	r, err := a.listAlerts(ctx, q, limit)
	if err != nil {
		return wire.AlertsResponse{}, request.Wrap("alerts", err)
	}
	return r, nil
}

func (a *Answers) listAlerts(ctx context.Context, q wire.AlertsRequest, limit int) (wire.AlertsResponse, error) {
	r := wire.AlertsResponse{Alerts: []wire.Alert{}}
	if q.Limit < 0 || q.Limit > maxAlerts {
		return r, request.Bad("limit must be between 1 and %d", maxAlerts)
	}
	if q.Before == 0 || q.Before > math.MaxInt64 {
		q.Before = math.MaxInt64
	}
	t, err := a.View(ctx)
	if err != nil {
		return r, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	text, args := `SELECT pos, raw FROM alerts WHERE pos < ?1`, []any{q.Before}
	if q.Run != "" {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return r, err
		}
		text, args = text+` AND run = ?2`, append(args, found.Run)
	}
	last, size := uint64(0), 0
	for rows, err := range t.Rows(ctx, text+` ORDER BY pos DESC`, args...) {
		if err != nil {
			return r, err
		}
		var pos uint64
		var raw []byte
		var alert wire.Alert
		if err := rows.Scan(&pos, &raw); err != nil {
			return r, err
		}
		if err := wire.Unmarshal(raw, &alert); err != nil {
			return r, err
		}
		size += len(raw)
		if n := len(r.Alerts); n == cmp.Or(q.Limit, defaultAlerts) || n > 0 && size > limit {
			r.Before = last
			break
		}
		r.Alerts, last = append(r.Alerts, alert), pos
	}
	return r, nil
}

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
