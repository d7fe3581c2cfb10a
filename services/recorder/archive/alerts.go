package archive

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/database"
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

// alertStatements are what recording alerts repeats, prepared on the connection that writes, which closes them.
type alertStatements struct{ known, add, count, read *sql.Stmt }

func (a *Archive) prepareAlerts(ctx context.Context) (s *alertStatements, err error) {
	s = new(alertStatements)
	insert := func(name string) string { return a.D.Tables.Named(name).Insert() }
	for _, p := range []struct {
		to   **sql.Stmt
		text string
	}{
		{&s.known, `SELECT (SELECT count(*) FROM retired WHERE run = ?1) + (SELECT count(*) FROM alerts WHERE key = ?2)`},
		{&s.add, insert("alerts")},
		{&s.count, insert("alert_counts") + ` ON CONFLICT (run) DO UPDATE SET stored = alert_counts.stored + 1`},
		{&s.read, insert("alerts_read") + ` ON CONFLICT (id) DO UPDATE SET created = excluded.created, position = excluded.position,
			stored = alerts_read.stored + excluded.stored`},
	} {
		if *p.to, err = a.Writer.PrepareContext(ctx, a.D.Bind(p.text)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// RecordAlerts stores alerts that aren't there, and how far the stream is read.
// What is no alert is passed over: its stream keeps it. One goroutine may call it.
func (a *Archive) RecordAlerts(ctx context.Context, created string, list []AlertMessage) error {
	if a.alerts == nil {
		var err error
		if a.alerts, err = a.prepareAlerts(ctx); err != nil {
			return err
		}
	}
	return a.ChangeLater(ctx, func(t *Tx) error {
		ctx := ctx
		if !a.D.Interrupt {
			ctx = context.WithoutCancel(ctx) // the driver would start a goroutine per statement to heed that
		}
		known, add, count := t.StmtContext(ctx, a.alerts.known), t.StmtContext(ctx, a.alerts.add), t.StmtContext(ctx, a.alerts.count)
		stored := int64(0)
		for _, m := range list {
			var said wire.Alert
			if wire.Unmarshal(m.Data, &said) != nil || said.Key == "" || !database.IsKey(said.Key) {
				continue
			}
			var n int
			if err := known.QueryRowContext(ctx, said.RunID, said.Key).Scan(&n); err != nil {
				return err
			}
			if n > 0 {
				continue // or gone
			}
			row, err := AlertRow(m, &said)
			if err != nil {
				return err
			}
			if _, err := add.ExecContext(ctx, table.Values(row)...); err != nil {
				return err
			}
			if _, err := count.ExecContext(ctx, table.Values(&table.AlertCount{Run: said.RunID, Stored: 1})...); err != nil {
				return err
			}
			stored++
		}
		read := table.AlertsRead{ID: 1, Created: created, Position: list[len(list)-1].Pos, Stored: stored}
		_, err := t.StmtContext(ctx, a.alerts.read).ExecContext(ctx, table.Values(&read)...)
		return err
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
