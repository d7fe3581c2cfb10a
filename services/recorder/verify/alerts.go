package verify

import (
	"context"
	"database/sql/driver"
	"strings"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// checkAlerts checks that each alert is what its stream had.
func (v *verifier) checkAlerts(ctx context.Context) error {
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
