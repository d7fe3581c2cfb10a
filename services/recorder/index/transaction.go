package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/table"
)

func (x *Index) beginWriter(ctx context.Context, t *archive.Tx, b Batch) (*writer, error) {
	w := &writer{ctx: ctx, x: x, tx: t, batch: b, runs: map[string]*runRow{}, lines: map[uint64]*pendingLine{}}
	if !x.D.Interrupt {
		w.ctx = context.WithoutCancel(ctx)
	}
	if err := t.Lock(ctx); err != nil {
		return nil, err
	}
	var incarnation string
	err := t.Row(ctx, `SELECT id, incarnation, position, derived FROM streams`).Scan(&w.stream, &incarnation, &w.pos, &w.derived)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		w.stream = 1
		err = t.Put(ctx, "streams", &table.Stream{ID: w.stream, Incarnation: b.Incarnation}, "")
		if err == nil && b.Part { // what isn't here was never here
			err = t.Put(ctx, "retired", &table.Retired{Run: archive.OtherRuns, Head: []byte{}}, "")
		}
	case err == nil && incarnation != b.Incarnation:
		err = eventlog.ErrIncarnation
	case err == nil && w.pos < x.last && !x.scratch:
		err = fmt.Errorf("the store went back from position %d to %d: start again", x.last, w.pos)
	case err == nil && (w.pos > x.last || w.derived != x.derived) && !x.scratch:
		x.folds.dropAll() // another recorder has written
		x.answers.ForgetLive()
	}
	w.was = w.derived
	return w, err
}

// finishBatch writes what the transaction has gathered.
func (w *writer) finishBatch() error {
	w.written = slices.Clone(w.queue)
	if err := w.writeLines(); err != nil {
		return err
	}
	if err := w.insertRows(addCall); err != nil {
		return err
	}
	if err := w.writeSpend(); err != nil {
		return err
	}
	if err := w.writeMessages(); err != nil {
		return err
	}
	for _, run := range w.order {
		if err := w.writeRun(run); err != nil {
			return err
		}
	}
	for id, run := range w.runs {
		if run.late == 0 {
			continue
		}
		if err := w.exec(countLate, run.late, id); err != nil {
			return err
		}
	}
	if w.atOnce {
		w.derived = w.pos
	}
	w.report.Position, w.report.Derived = wire.Position{Incarnation: w.batch.Incarnation, Seq: w.pos}, w.derived
	w.x.last, w.x.derived = w.pos, w.derived
	return w.exec(moveOn, w.pos, w.derived, w.report.Bad, w.report.Lost, w.stream)
}
