package index

import (
	"context"
	"fmt"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/services/recorder/archive"
)

// Derive derives, in one transaction, what follows from events that were recorded
// with Later, of at most so many positions. It is done when the report's Derived is
// its Position's. Like [Index.Record] it fails without a trace.
func (x *Index) Derive(ctx context.Context, most int) (Report, error) {
	x.turn.Lock()
	defer x.turn.Unlock()
	report, err := x.deriveSome(ctx, uint64(most))
	if err != nil {
		x.dropCaches()
		return Report{}, fmt.Errorf("recorder: derive: %w", err)
	}
	return report, nil
}

func (x *Index) deriveSome(ctx context.Context, most uint64) (Report, error) {
	t, err := x.Begin(ctx)
	if err != nil {
		return Report{}, err
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if err := t.Lock(ctx); err != nil {
		return Report{}, err
	}
	at, derived, err := t.Reached(ctx)
	if err != nil || derived == at.Seq {
		return Report{Position: at, Derived: derived}, err
	}
	w, err := x.beginWriter(ctx, t, Batch{Incarnation: at.Incarnation})
	if err != nil {
		return Report{}, err
	}
	if err := w.deriveTo(min(at.Seq, derived+most)); err != nil {
		return Report{}, err
	}
	if err := t.Commit(); err != nil {
		return Report{}, err
	}
	w.publishChanges()
	return w.report, nil
}

// deriveTo derives what follows from the recorded events up to a position, or up to
// an earlier one if they are large.
func (w *writer) deriveTo(to uint64) error {
	list, to, err := w.tx.Within(w.ctx, w.derived+1, to, deriveBytes)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Mark != "" {
			continue
		}
		if err := w.deriveAgain(&list[i]); err != nil {
			return fmt.Errorf("position %d: %w", list[i].Pos, err)
		}
	}
	w.derived = to
	return w.finishBatch()
}

// deriveAgain derives what follows from a recorded event.
func (w *writer) deriveAgain(kept *archive.Event) error {
	s := archive.Event{Pos: kept.Pos, Time: kept.Time, Data: kept.Data}
	e := s.Entry()
	if e.Err != nil {
		return e.Err
	}
	run, err := w.loadRun(kept.Run, e.Pos)
	if err != nil || run.gone {
		return err
	}
	writer, err := w.loadNode(run, e.Event.NodeID)
	if err != nil {
		return err
	}
	about, err := w.loadNode(run, e.Event.Node())
	if err != nil {
		return err
	}
	return w.deriveEvent(run, writer, about, &e)
}

// deriveBytes bounds the events that are read for that.
const deriveBytes = 16 << 20

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
