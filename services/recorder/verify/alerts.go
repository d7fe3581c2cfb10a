package verify

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// checkAlerts checks that each alert is what its stream had, and that all are there that were stored.
func (v *verifier) checkAlerts(ctx context.Context) error {
	var is int64
	var stored sql.NullInt64
	err := v.t.Row(ctx, `SELECT (SELECT count(*) FROM alerts), (SELECT stored FROM alerts_read)`).Scan(&is, &stored)
	if err != nil {
		return v.noteFailure(ctx, Damage{Table: "alerts"}, err)
	}
	if is != stored.Int64 && (stored.Valid || is > 0) {
		v.addDamage(Damage{Table: "alerts", Problem: fmt.Sprintf("%d were stored, there are %d", stored.Int64, is)})
	}
	d := derivation{table: "alerts", keys: 1}
	for rows, err := range v.t.Rows(ctx, v.t.Whole(d.table)+` ORDER BY pos, key`) {
		var kept table.Alert
		if err == nil {
			err = rows.Scan(table.Fields(&kept)...)
		}
		if err != nil {
			return v.noteFailure(ctx, Damage{Table: d.table}, err)
		}
		is, err := v.rowOf(d.table, &kept)
		if err != nil {
			return err
		}
		var a wire.Alert
		err = wire.Unmarshal(kept.Raw, &a)
		var said *table.Alert
		if err == nil {
			said, err = archive.AlertRow(archive.AlertMessage{Pos: kept.Pos, Data: kept.Raw}, &a)
		}
		if err != nil {
			v.addDamage(is.damageOf(d, "", "raw", err.Error()))
			continue
		}
		want, err := v.rowOf(d.table, said)
		if err != nil {
			return err
		}
		if v.t.D.Storable != nil {
			want.makeStorable(v.t.D)
		}
		is.reportDifferences(want, d, func(column, problem string) { v.addDamage(is.damageOf(d, a.RunID, column, problem)) })
	}
	return nil
}

// rowOf is a row as one that was read.
func (v *verifier) rowOf(name string, row any) (*tableRow, error) {
	r := &tableRow{columns: strings.Split(v.t.D.Tables.Named(name).List(), ", ")}
	for _, value := range table.Values(row) {
		kept, err := driver.DefaultParameterConverter.ConvertValue(value)
		if err != nil {
			return nil, err
		}
		r.values = append(r.values, kept)
	}
	return r, nil
}

// compareAlerts checks that the store has each alert of the stream up to where it has been read, unless its run
// was deleted.
func (v *verifier) compareAlerts(ctx context.Context, run string, log *eventlog.Log) error {
	t, err := v.s.View(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	var read uint64
	if err := t.Row(ctx, `SELECT coalesce(max(position), 0) FROM alerts_read`).Scan(&read); err != nil {
		return v.noteFailure(ctx, Damage{Table: "alerts_read"}, err)
	}
	if read == 0 {
		return nil // none has been read yet
	}
	names := log.Names()
	for m, err := range log.Messages(ctx, eventlog.Selection{Stream: names.AlertsStream(), Subjects: []string{names.AllAlerts()}, From: 1, To: read}) {
		if err != nil {
			return err
		}
		data, err := log.Unseal(m.Subject, m.Data)
		if err != nil {
			continue // it is of no key of ours, or was forged: the recorder leaves it, too
		}
		var a wire.Alert
		if wire.Unmarshal(data, &a) != nil || a.Key == "" || len(a.Key) > table.MaxKey || v.gone[a.RunID] || run != "" && a.RunID != run {
			continue
		}
		var pos uint64
		var kept []byte
		switch err := t.Row(ctx, `SELECT pos, raw FROM alerts WHERE key = ?1`, a.Key).Scan(&pos, &kept); {
		case errors.Is(err, sql.ErrNoRows):
			v.addDamage(Damage{Table: "alerts", Run: a.RunID, Row: a.Key, Problem: "the stream has this alert, the store doesn't"})
		case err != nil:
			return v.noteFailure(ctx, Damage{Table: "alerts"}, err)
		case pos == m.Pos && !bytes.Equal(kept, data):
			v.addDamage(Damage{Table: "alerts", Run: a.RunID, Row: a.Key, Column: "raw", Problem: "the stream has another alert of this key"})
		}
	}
	return nil
}
