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
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// checkAlerts checks that each alert of a run, or of all if run is empty, is what its stream had, and that all are there
// that were stored.
func (v *verifier) checkAlerts(ctx context.Context, run string) error {
	if err := v.countAlerts(ctx, run); err != nil {
		return err
	}
	d := derivation{table: "alerts", Comparison: table.Comparison{Keys: 1}}
	where, args := ofRun(run)
	var kept table.Alert
	for err := range v.t.Each(ctx, v.t.Whole(d.table)+where+` ORDER BY pos, key`, args, table.Fields(&kept)...) {
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

// countAlerts compares how many alerts there are with how many were stored, of each run and of all.
func (v *verifier) countAlerts(ctx context.Context, run string) error {
	if run == "" {
		var is int64
		var stored sql.NullInt64
		err := v.t.Row(ctx, `SELECT (SELECT count(*) FROM alerts), (SELECT stored FROM alerts_read)`).Scan(&is, &stored)
		if err != nil {
			return v.noteFailure(ctx, Damage{Table: "alerts"}, err)
		}
		if is != stored.Int64 && (stored.Valid || is > 0) {
			v.addDamage(Damage{Table: "alerts", Problem: fmt.Sprintf("%d were stored, there are %d", stored.Int64, is)})
		}
	}
	where, args := ofRun(run)
	text := `SELECT run, CAST(sum(stored) AS BIGINT), CAST(sum(found) AS BIGINT) FROM (
		SELECT run, stored, 0 AS found FROM alert_counts` + where + ` UNION ALL SELECT run, 0, 1 FROM alerts` + where + `
	) AS counts GROUP BY run HAVING sum(stored) <> sum(found) ORDER BY run`
	var of string
	var stored, is int64
	for err := range v.t.Each(ctx, text, args, &of, &stored, &is) {
		if err != nil {
			return v.noteFailure(ctx, Damage{Table: "alerts"}, err)
		}
		v.addDamage(Damage{Table: "alerts", Run: of, Problem: fmt.Sprintf("%d were stored, there are %d", stored, is)})
	}
	return nil
}

// ofRun selects the rows of a run, or all if run is empty.
func ofRun(run string) (where string, args database.Params) {
	if run == "" {
		return "", nil
	}
	return " WHERE run = " + args.Add(run), args
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
		if wire.Unmarshal(data, &a) != nil || a.Key == "" || !database.IsKey(a.Key) || v.gone[a.RunID] || run != "" && a.RunID != run {
			continue
		}
		var pos uint64
		var kept []byte
		switch err := t.Row(ctx, `SELECT pos, raw FROM alerts WHERE key = ?1`, a.Key).Scan(&pos, &kept); {
		case errors.Is(err, sql.ErrNoRows) && v.isGone(ctx, a.RunID):
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
