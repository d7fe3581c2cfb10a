package index

import (
	"fmt"

	"code.wake.dev/wake/internal/eventlog"
)

// deriveEvent updates everything that can be derived from an event, which a node has
// written and another one may be meant by. A panic leaves a part of that out, and is
// a dead letter: it must not end the process, again at each start.
func (w *writer) deriveEvent(run *runRow, writer, about *nodeRow, e *eventlog.Entry) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.report.Refused++
			w.report.Defects = append(w.report.Defects, Defect{*e, fmt.Sprintf("defect in the recorder: %v", p)})
		}
	}()
	run.derived = e.Pos
	run.passed++
	whole, err := w.inlineFields(e)
	if err != nil {
		return err
	}
	if err := w.foldEvent(run, e, whole); err != nil {
		return err
	}
	w.noteForLive(run, e, whole)
	about.countEvent(run, whole)
	if err := w.noteSessions(run, about, e.Pos, whole); err != nil {
		return err
	}
	if err := w.deriveMessages(run, about, e.Pos, whole); err != nil {
		return err
	}
	return w.deriveLine(run, writer, about, e.Pos, whole)
}
