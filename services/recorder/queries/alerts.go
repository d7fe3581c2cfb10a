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
	return askArchive(ctx, a, "alerts", func(t *archive.Tx) (wire.AlertsResponse, error) { return listAlerts(ctx, t, q, limit) })
}

func listAlerts(ctx context.Context, t *archive.Tx, q wire.AlertsRequest, limit int) (wire.AlertsResponse, error) {
	r := wire.AlertsResponse{Alerts: []wire.Alert{}}
	if q.Limit < 0 || q.Limit > maxAlerts {
		return r, request.Bad("limit must be between 1 and %d", maxAlerts)
	}
	if q.Before == 0 || q.Before > math.MaxInt64 {
		q.Before = math.MaxInt64
	}
	text, args := `SELECT pos, raw FROM alerts WHERE pos < ?1`, []any{q.Before}
	if q.Run != "" {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return r, err
		}
		text, args = text+` AND run = ?2`, append(args, found.Run)
	}
	last, size := uint64(0), 0
	var pos uint64
	var raw []byte
	for err := range t.Each(ctx, text+` ORDER BY pos DESC`, args, &pos, &raw) {
		if err != nil {
			return r, err
		}
		var alert wire.Alert
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

// alertCounts are how many alerts runs and their agents have raised, and what the last one of a run says, as far as they are recorded.
type alertCounts struct {
	byNode map[alertPlace]int
	last   map[string]string // by run
}

// alertPlace names the node that has raised an alert; without a node, the run with all of its nodes.
type alertPlace struct{ run, node string }

// countAlerts counts the alerts of runs.
func countAlerts(ctx context.Context, t *archive.Tx, runs ...any) (alertCounts, error) {
	c := alertCounts{map[alertPlace]int{}, map[string]string{}}
	if len(runs) == 0 {
		return c, nil
	}
	var args database.Params
	ids := args.List(runs...)
	var at alertPlace
	var n int
	for err := range t.Each(ctx, `SELECT run, node, count(*) FROM alerts WHERE run IN (`+ids+`) GROUP BY run, node`, args, &at.run, &at.node, &n) {
		if err != nil {
			return c, err
		}
		c.byNode[at] = n
		c.byNode[alertPlace{run: at.run}] += n
	}
	if len(c.byNode) == 0 {
		return c, nil
	}
	var text string
	last := `SELECT run, text FROM alerts AS a WHERE run IN (` + ids + `) AND pos = (SELECT max(pos) FROM alerts WHERE run = a.run)`
	for err := range t.Each(ctx, last, args, &at.run, &text) {
		if err != nil {
			return c, err
		}
		c.last[at.run] = timeline.Line(text, 300)
	}
	return c, nil
}

// fillStatus fills in what a run and its agents have raised.
func (c alertCounts) fillStatus(run string, status *wire.AgentStatus, agents []wire.AgentStatus) {
	status.Alerts, status.LastAlert = c.byNode[alertPlace{run: run}], c.last[run]
	for i := range agents {
		agents[i].Alerts = c.byNode[alertPlace{run, agents[i].AgentID}]
	}
}
