package queries

import (
	"cmp"
	"context"
	"math"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
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
