package recorder

import (
	"maps"
	"slices"
	"strings"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// pendingLine is a line that the batch adds or changes.
type pendingLine struct {
	pos    uint64
	op     timeline.Op // what to do to the file
	text   strings.Builder
	kind   wire.LineType
	run    int64
	node   int64
	writer int64
	event  *wire.Event // its first; nil for a line that is in the file already
	part   uint64      // of this message; 0: of none
}

// line does to the lines what an event does to them. Steps of one batch on one
// line become one.
func (w *writer) line(r *runRow, writer, about *nodeRow, pos uint64, e *wire.Event) error {
	if p, ok := e.Payload.(*wire.LogTruncated); ok && p.Lost == 0 {
		if err := w.hide(r, writer, p.AtSeq); err != nil {
			return err
		}
	}
	if err := w.measure(r, about, pos, e); err != nil {
		return err
	}
	step := writer.timeline.Step(pos, e)
	w.grows(writer, e, step)
	if step.Op == timeline.None {
		return nil
	}
	l, ok := w.lines[step.Pos]
	if !ok {
		l = &pendingLine{pos: step.Pos, op: step.Op, kind: step.Type, run: r.id, node: about.id, writer: writer.id, event: e}
		w.lines[step.Pos] = l
		if step.Op == timeline.Add {
			r.lines++
			var err error
			if l.part, err = w.says(r, about, pos, e); err != nil {
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

// hide hides the lines of a node after seq.
func (w *writer) hide(r *runRow, n *nodeRow, seq uint64) error {
	if err := w.writeLines(); err != nil {
		return err
	}
	n.timeline = timeline.Timeline{}
	if err := w.rollBack(n, seq); err != nil {
		return err
	}
	stmt, err := w.stmt(hideLines)
	if err != nil {
		return err
	}
	result, err := stmt.ExecContext(w.ctx, r.id, n.id, seq)
	if err != nil {
		return err
	}
	hidden, err := result.RowsAffected()
	r.lines -= hidden
	return err
}

// grows notes which line of a node an event has left unfinished, if it has.
func (w *writer) grows(writer *nodeRow, e *wire.Event, step timeline.Step) {
	if w.growing == nil {
		w.growing = map[int64]uint64{}
	}
	w.growing[writer.id] = 0
	if e.Type().Kind() == wire.KindDelta {
		w.growing[writer.id] = step.Pos
	}
}

func (w *writer) writeLines() error {
	for _, l := range w.queue {
		var err error
		switch l.op {
		case timeline.Add:
			e := l.event
			w.add(addLine, l.pos, l.run, l.node, l.writer, e.Seq, e.ExecID, e.Parent, e.Timestamp, string(l.kind), l.text.String(), l.part)
		case timeline.Extend:
			err = w.exec(extendLine, l.text.String(), l.pos)
		case timeline.Replace:
			err = w.exec(replaceLine, l.text.String(), l.pos)
		case timeline.None:
		}
		if err != nil {
			return err
		}
	}
	if err := w.insert(addLine); err != nil {
		return err
	}
	err := w.openLines()
	clear(w.lines)
	w.queue = w.queue[:0]
	return err
}

// openLines keeps those lines apart that still grow, if the full text has to know.
func (w *writer) openLines() error {
	if !w.tx.d.find.lags || w.s.scratch {
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
		if err := w.exec(openLine, pos, writer); err != nil {
			return err
		}
	}
	return nil
}
