package index

import (
	"maps"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/states"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Bounds of the states that are kept.
const (
	maxFolds  = 256 // in memory
	maxPassed = 64 << 10
	foldEvery = 256 // events after which the file gets a newer one

	frameEvery = 4 * foldEvery // events after which it keeps one for good
	foldSpan   = 4096          // events of any kind after which the file's state is moved on
)

// countPassed counts events of a run and reports whether there were so many that its
// state is to be moved on.
func (f *folds) countPassed(id int64, events int) bool {
	if len(f.passed) >= maxPassed {
		clear(f.passed)
	}
	f.passed[id] += events
	return f.passed[id] >= foldSpan
}

// keepState makes room: runs that are over go first.
func (f *folds) keepState(id int64, v *runFold) {
	if len(f.byRun) >= maxFolds {
		maps.DeleteFunc(f.byRun, func(_ int64, v *runFold) bool { return v.state.Status.Ended() })
	}
	if len(f.byRun) >= maxFolds {
		f.dropAll()
	}
	f.byRun[id] = v
}

// foldEvent folds an event into the state of its run. An event that the history
// doesn't allow changes nothing and is counted, as in every other fold.
func (w *writer) foldEvent(r *runRow, e *eventlog.Entry, whole *wire.Event) error {
	if e.Kind == wire.KindText || e.Kind == wire.KindDelta {
		return nil
	}
	if r.state == nil {
		if err := w.loadState(r, min(e.Pos-1, w.was)); err != nil { // what else the batch has before it changes none
			return err
		}
	}
	r.changed, r.StatePos = true, e.Pos
	refused := states.Apply(r.state, wire.Position{Incarnation: w.batch.Incarnation, Seq: e.Pos}, e.Event, whole) != nil
	switch {
	case refused:
		r.Refused++
		w.report.Refused++
	case r.state.EventCount%frameEvery == 0:
		return w.keepFrame(r)
	}
	return nil
}

// keepFrame keeps the state of a run for good, from which later questions about that time fold on.
func (w *writer) keepFrame(r *runRow) error {
	data, err := wire.Marshal(r.state)
	if err != nil {
		return err
	}
	return w.putRow(addFrame, &table.Keyframe{Run: r.ID, Pos: r.state.Position.Seq, Data: w.x.Codec.Enc.EncodeAll(data, nil)})
}

// loadState finds the state of a run as of a position.
func (w *writer) loadState(r *runRow, to uint64) error {
	f, ok := w.x.folds.byRun[r.ID]
	if !ok || f.state.RunID != r.RunID { // the id may have been that of a run that was removed
		f = &runFold{state: run.New(r.RunID)}
		var err error
		if r.FirstPos <= to { // else nothing comes before
			f.state, f.saved, err = states.Load(w.ctx, w.tx, r.ID, r.RunID, to)
		}
		if err != nil {
			return err
		}
		w.x.folds.keepState(r.ID, f)
	}
	r.state = f.state
	return nil
}

// keepFold writes the state of a run now and then, so that it can be found
// without folding the run from its beginning, nor passing over a long text.
func (w *writer) keepFold(r *runRow) error {
	if r.passed == 0 {
		return nil
	}
	far := w.x.folds.countPassed(r.ID, r.passed)
	f := w.x.folds.byRun[r.ID]
	if f != nil && f.state.RunID != r.RunID {
		f = nil
	}
	switch {
	case far && f == nil:
		f = &runFold{state: r.state} // others may have taken its place meanwhile
		var err error
		if r.state == nil {
			f.state, f.saved, err = states.Load(w.ctx, w.tx, r.ID, r.RunID, min(r.derived, w.was))
		}
		if err != nil {
			return err
		}
		w.x.folds.keepState(r.ID, f)
	case f == nil, !far && f.state.EventCount < f.saved+foldEvery && (!r.changed || !f.state.Status.Ended()):
		return nil
	}
	r.state = f.state
	data, err := wire.Marshal(r.state)
	if err != nil {
		return err
	}
	f.saved = r.state.EventCount
	delete(w.x.folds.passed, r.ID)
	return w.putRow(putFold, &table.Fold{Run: r.ID, Pos: r.derived, Data: data})
}
