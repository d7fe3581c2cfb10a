package index

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// deriveLine does to the lines what an event does to them. Steps of one batch on one
// line become one.
func (w *writer) deriveLine(r *runRow, writer, about *nodeRow, pos uint64, e *wire.Event) error {
	if p, ok := e.Payload.(*wire.LogTruncated); ok && p.Lost == 0 {
		if err := w.hideLinesAfter(r, writer, min(p.AtSeq, math.MaxInt64)); err != nil {
			return err
		}
	}
	if err := w.measureEvent(r, about, pos, e); err != nil {
		return err
	}
	step := writer.timeline.Step(pos, e)
	w.noteGrowingLine(writer, e, step)
	if step.Op == timeline.None {
		return nil
	}
	l, ok := w.lines[step.Pos]
	if !ok {
		l = &pendingLine{op: step.Op, event: e, row: table.Line{
			Pos: step.Pos, Run: r.ID, Node: about.ID, Writer: writer.ID, Seq: e.Seq, Exec: e.ExecID, Parent: e.Parent, TS: e.Timestamp, Type: string(step.Type),
		}}
		w.lines[step.Pos] = l
		if step.Op == timeline.Add {
			r.Lines++
			writer.shown = max(writer.shown, e.Seq)
			call := timeline.CallOf(e, func(field string) string { return missingNote(e, field) })
			l.row.Cut, l.row.Input, l.row.Output = call.Cut, call.Input, call.Output
			var err error
			if l.row.Message, err = w.messageOfText(r, about, pos, e); err != nil {
				return err
			}
		}
		w.queue = append(w.queue, l)
	}
	if step.Op == timeline.Replace {
		l.text.Reset()
		if l.op == timeline.Extend {
			l.op = timeline.Replace
		}
	}
	l.text.WriteString(timeline.Plain(step.Text)) // \x1b[31mfail is the word fail, also to the full text
	return nil
}

// hideLinesAfter hides the lines of a node after seq, which a database takes.
func (w *writer) hideLinesAfter(r *runRow, n *nodeRow, seq uint64) error {
	n.timeline = timeline.Timeline{}
	if err := w.rollBack(n, seq); err != nil {
		return err
	}
	if n.shown <= seq {
		return nil
	}
	n.shown = seq
	if err := w.writeLines(); err != nil {
		return err
	}
	result, err := w.stmtInTx(hideLines).ExecContext(w.ctx, r.ID, n.ID, seq)
	if err != nil {
		return err
	}
	hidden, err := result.RowsAffected()
	r.Lines -= hidden
	return err
}

// noteGrowingLine notes which line of a node an event has left unfinished, if it has.
func (w *writer) noteGrowingLine(writer *nodeRow, e *wire.Event, step timeline.Step) {
	if w.growing == nil {
		w.growing = map[int64]uint64{}
	}
	w.growing[writer.ID] = 0
	if e.Type().Kind() == wire.KindDelta {
		w.growing[writer.ID] = step.Pos
	}
}

func (w *writer) writeLines() error {
	w.written = append(w.written, w.queue...)
	for _, l := range w.queue {
		var err error
		switch l.op {
		case timeline.Add:
			l.row.Text = l.text.String()
			w.queueRow(addLine, &l.row)
		case timeline.Extend:
			err = w.exec(extendLine, l.text.String(), l.row.Pos)
		case timeline.Replace:
			err = w.exec(replaceLine, l.text.String(), l.row.Pos)
		case timeline.None:
		}
		if err != nil {
			return err
		}
	}
	if err := w.insertRows(addLine); err != nil {
		return err
	}
	err := w.openLines()
	clear(w.lines)
	w.queue = w.queue[:0]
	return err
}

// openLines keeps those lines apart that still grow, if the full text has to know.
func (w *writer) openLines() error {
	if !w.tx.D.Lags || w.x.scratch {
		return nil
	}
	for _, writer := range slices.Sorted(maps.Keys(w.growing)) {
		pos := w.growing[writer]
		if err := w.exec(closeLines, writer, pos); err != nil {
			return err
		}
		if l := w.lines[pos]; l == nil || l.op != timeline.Add {
			continue // it was there before
		}
		if err := w.putRow(openLine, &table.LineOpen{Pos: pos, Writer: writer}); err != nil {
			return err
		}
	}
	return nil
}

// indexLines bounds the lines that get into the full text in one transaction:
// recording waits for it.
const indexLines = 2000

// IndexLines takes recorded lines into the full text, some of them at once. It reports
// whether there are more. A store that indexes lines as they are recorded has
// none.
func (x *Index) IndexLines(ctx context.Context) (more bool, err error) {
	if !x.D.Lags {
		return false, nil
	}
	more, err = x.indexSome(ctx)
	if err != nil {
		return false, fmt.Errorf("recorder: index: %w", err)
	}
	return more, nil
}

func (x *Index) indexSome(ctx context.Context) (more bool, err error) {
	t, err := x.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	var from, to uint64
	var lines int
	err = t.Row(ctx, `SELECT i.pos, coalesce(max(l.pos), 0), count(l.pos) FROM lines_indexed i
		LEFT JOIN (SELECT pos FROM lines WHERE pos > (SELECT pos FROM lines_indexed) ORDER BY pos LIMIT ?1) l`, indexLines).Scan(&from, &to, &lines)
	if err != nil || lines == 0 {
		return false, err
	}
	// One statement for all of them: the index writes what it has gathered at the
	// end of each.
	if _, err := t.Do(ctx, `INSERT INTO lines_fts (rowid, text, input, output)
		SELECT pos, text, input, output FROM lines WHERE pos > ?1 AND pos <= ?2 AND pos NOT IN (SELECT pos FROM lines_open) ORDER BY pos`, from, to); err != nil {
		return false, err
	}
	if _, err := t.Do(ctx, `UPDATE lines_indexed SET pos = ?1`, to); err != nil {
		return false, err
	}
	return lines == indexLines, t.Commit()
}
