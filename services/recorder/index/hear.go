package index

import (
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/queries"
)

// noteForLive notes an event for the runs that are held.
func (w *writer) noteForLive(r *runRow, e *eventlog.Entry, whole *wire.Event) {
	if !w.x.answers.Holding() {
		return
	}
	if p, ok := e.Event.Payload.(*wire.LogTruncated); ok && p.Lost == 0 {
		r.hid = true
	}
	if k := e.Kind; k != wire.KindText && k != wire.KindDelta {
		r.heard = append(r.heard, queries.Folded{Pos: e.Pos, E: e.Event, Whole: whole})
	}
}

// publishChanges gives answers what a transaction has derived, once it is committed.
func (w *writer) publishChanges() {
	if !w.x.answers.Holding() || w.derived == w.was {
		return
	}
	var list []queries.Change
	for _, r := range w.order {
		list = append(list, queries.Change{
			Run: &r.Run, Pos: min(r.LastPos, w.derived), Hid: r.hid, State: r.heard,
			Rest: func() queries.Detail { return w.detailOf(r) },
		})
	}
	w.x.answers.Changed(w.batch.Incarnation, list)
}

// detailOf is what the transaction has written of a run.
func (w *writer) detailOf(r *runRow) (d queries.Detail) {
	for _, n := range r.order {
		d.Nodes = append(d.Nodes, n.Node)
	}
	for _, l := range w.written {
		if l.row.Run != r.ID {
			continue
		}
		text := l.text.String()
		if w.tx.D.Storable != nil {
			text = w.tx.D.Storable(text)
		}
		c := queries.LineChange{Op: l.op, Line: wire.LogLine{Pos: l.row.Pos, Text: text}}
		e := l.event
		c.Line.Node, c.Line.Exec, c.Line.Parent, c.Line.TS, c.Line.Type = e.Node(), e.ExecID, e.Parent, e.Timestamp, wire.LineType(l.row.Type)
		d.Lines = append(d.Lines, c)
	}
	return d
}
