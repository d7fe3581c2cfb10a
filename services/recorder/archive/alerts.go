package archive

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// AlertMessage is an alert as its stream has it.
type AlertMessage struct {
	Pos  uint64
	Data []byte
}

// AlertsRead returns the position up to which the alerts of a stream are
// recorded, which is told from another by when it was made and how far it goes.
func (a *Archive) AlertsRead(ctx context.Context, created string, last uint64) (uint64, error) {
	var known string
	var pos uint64
	err := a.Reader.QueryRowContext(ctx, `SELECT created, position FROM alerts_read`).Scan(&known, &pos)
	if errors.Is(err, sql.ErrNoRows) || err == nil && (known != created || pos > last) {
		return 0, nil
	}
	return pos, err
}

// RecordAlerts stores alerts that aren't there, and how far the stream is read.
// What is no alert is passed over: its stream keeps it.
func (a *Archive) RecordAlerts(ctx context.Context, created string, list []AlertMessage) error {
	return a.ChangeLater(ctx, func(t *Tx) error {
		stored := int64(0)
		for _, m := range list {
			var said wire.Alert
			if wire.Unmarshal(m.Data, &said) != nil || said.Key == "" || len(said.Key) > table.MaxKey {
				continue
			}
			var known int
			if err := t.Row(ctx, `SELECT (SELECT count(*) FROM retired WHERE run = ?1) + (SELECT count(*) FROM alerts WHERE key = ?2)`,
				said.RunID, said.Key).Scan(&known); err != nil {
				return err
			}
			if known > 0 {
				continue // or gone
			}
			row, err := AlertRow(m, &said)
			if err != nil {
				return err
			}
			if err := t.Put(ctx, "alerts", row, ""); err != nil {
				return err
			}
			if err := t.Put(ctx, "alert_counts", &table.AlertCount{Run: said.RunID, Stored: 1}, ` ON CONFLICT (run) DO UPDATE SET stored = alert_counts.stored + 1`); err != nil {
				return err
			}
			stored++
		}
		read := table.AlertsRead{ID: 1, Created: created, Position: list[len(list)-1].Pos, Stored: stored}
		return t.Put(ctx, "alerts_read", &read, ` ON CONFLICT (id) DO UPDATE SET created = excluded.created, position = excluded.position,
			stored = alerts_read.stored + excluded.stored`)
	})
}

// AlertRow is an alert as the table has it.
func AlertRow(m AlertMessage, a *wire.Alert) (*table.Alert, error) {
	data := []byte("null")
	if !a.Data.IsZero() {
		var err error
		if data, err = wire.AppendJSON(nil, a.Data); err != nil {
			return nil, err
		}
	}
	hash := sha256.Sum256(m.Data)
	return &table.Alert{
		Key: a.Key, Pos: m.Pos, Kind: a.Kind, Severity: string(a.Severity), Run: a.RunID, Node: a.NodeID, Exec: a.ExecID, Label: a.Label,
		Parent: a.ParentRun, Event: a.Position.Seq, TS: a.Timestamp, Text: a.Text, Data: string(data), Raw: m.Data, Hash: hash[:],
	}, nil
}
