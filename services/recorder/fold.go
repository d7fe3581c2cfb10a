package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"

	"wake/internal/eventlog"
	"wake/internal/run"
	"wake/pkg/wire"
)

// Bounds of the states that are kept.
const (
	maxFolds  = 256 // in memory
	maxPassed = 64 << 10
	foldEvery = 256 // events after which the file gets a newer one

	frameEvery = 4 * foldEvery // events after which it keeps one for good
	foldSpan   = 4096          // events of any kind after which the file's state is moved on
)

// folds are the states of the runs that were last recorded.
type folds struct {
	byRun  map[int64]*fold
	passed map[int64]int // events of any kind since the state in the file, as far as they were seen
}

type fold struct {
	state *wire.State
	saved uint64 // events that the state in the file is of
}

func newFolds() *folds { return &folds{byRun: map[int64]*fold{}, passed: map[int64]int{}} }

// forget drops what may be ahead of the file.
func (f *folds) forget() {
	clear(f.byRun)
	clear(f.passed)
}

// pass counts events of a run and reports whether there were so many that its
// state is to be moved on.
func (f *folds) pass(id int64, events int) bool {
	if len(f.passed) >= maxPassed {
		clear(f.passed)
	}
	f.passed[id] += events
	return f.passed[id] >= foldSpan
}

// keep makes room: runs that are over go first.
func (f *folds) keep(id int64, v *fold) {
	if len(f.byRun) >= maxFolds {
		maps.DeleteFunc(f.byRun, func(_ int64, v *fold) bool { return ended(v.state) })
	}
	if len(f.byRun) >= maxFolds {
		f.forget()
	}
	f.byRun[id] = v
}

func ended(s *wire.State) bool { return s.Status == wire.RunComplete || s.Status == wire.RunAborted }

// fold folds an event into the state of its run. An event that the history
// doesn't allow changes nothing and is counted, as in every other fold.
func (w *writer) fold(r *runRow, e *eventlog.Entry, whole *wire.Event) error {
	if e.Kind == wire.KindText || e.Kind == wire.KindDelta {
		return nil
	}
	if r.state == nil {
		if err := w.state(r, e.Pos-1); err != nil {
			return err
		}
	}
	r.changed = true
	if apply(r.state, wire.Position{Incarnation: w.batch.Incarnation, Seq: e.Pos}, e.Event, whole) != nil {
		r.refused++
		w.report.Refused++
	}
	return nil
}

// apply folds an event; only where the fold has to look into a blob, the whole
// one.
func apply(s *wire.State, pos wire.Position, e, whole *wire.Event) error {
	if run.NeedsInline(e) {
		e = whole
	}
	return run.Apply(s, pos, e)
}

// state finds the state of a run as of a position.
func (w *writer) state(r *runRow, to uint64) error {
	f, ok := w.s.folds.byRun[r.id]
	if !ok || f.state.RunID != r.run { // the id may have been that of a run that was removed
		f = new(fold)
		var err error
		if f.state, f.saved, err = loadState(w.ctx, w.tx, r.id, r.run, to); err != nil {
			return err
		}
		w.s.folds.keep(r.id, f)
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
	far := w.s.folds.pass(r.id, r.passed)
	f := w.s.folds.byRun[r.id]
	if f != nil && f.state.RunID != r.run {
		f = nil
	}
	switch {
	case far && f == nil:
		f = new(fold)
		var err error
		if f.state, f.saved, err = loadState(w.ctx, w.tx, r.id, r.run, r.derived); err != nil {
			return err
		}
		w.s.folds.keep(r.id, f)
	case f == nil, !far && f.state.EventCount < f.saved+foldEvery && (!r.changed || !ended(f.state)):
		return nil
	}
	r.state = f.state
	data, err := wire.Marshal(r.state)
	if err != nil {
		return err
	}
	if r.state.EventCount/frameEvery != f.saved/frameEvery {
		if err := w.exec(addFrame, r.id, r.state.Position.Seq, w.s.zip.enc.EncodeAll(data, nil)); err != nil {
			return err
		}
	}
	f.saved = r.state.EventCount
	delete(w.s.folds.passed, r.id)
	return w.exec(putFold, r.id, r.derived, []byte(data))
}

// loadState returns the state of a run as of position to: the one in the file
// and the events after it. saved is the number of events in the former; one that
// can't be read is passed over.
func loadState(ctx context.Context, t *tx, id int64, name string, to uint64) (s *wire.State, saved uint64, err error) {
	var data []byte
	var pos uint64 // up to here the events are in the state
	err = t.row(ctx, `SELECT pos, data FROM folds WHERE run = ?1 AND pos <= ?2`, id, to).Scan(&pos, &data)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, 0, err
	}
	if err == nil {
		s, _ = run.Decode(data)
	}
	if s == nil {
		s, pos = run.New(name), 0
	}
	saved = s.EventCount
	return s, saved, foldFrom(ctx, t, s, id, pos+1, to)
}

// foldTail folds the recorded events after the state's position.
func foldTail(ctx context.Context, t *tx, s *wire.State, id int64, to uint64) error {
	return foldFrom(ctx, t, s, id, s.Position.Seq+1, to)
}

// foldFrom folds the recorded events from a position on, before which there is
// none that the state lacks.
func foldFrom(ctx context.Context, t *tx, s *wire.State, id int64, from, to uint64) error {
	var incarnation string
	if err := t.row(ctx, `SELECT incarnation FROM streams`).Scan(&incarnation); err != nil {
		return err
	}
	for e, err := range t.events(ctx, id, from, to) {
		if err != nil {
			return err
		}
		if k := e.kind(); e.mark != "" || k == wire.KindText || k == wire.KindDelta {
			continue
		}
		if err := foldStored(ctx, t, s, wire.Position{Incarnation: incarnation, Seq: e.pos}, e); err != nil {
			return fmt.Errorf("event at %d: %w", e.pos, err)
		}
	}
	return nil
}

func foldStored(ctx context.Context, t *tx, s *wire.State, pos wire.Position, kept *stored) error {
	e, err := wire.Decode(kept.data)
	if err != nil {
		return err
	}
	whole := e
	if run.NeedsInline(e) {
		if whole, err = inline(e, kept.data, func(sha string) ([]byte, error) { return findBlob(ctx, t, sha) }); err != nil {
			return err
		}
	}
	_ = apply(s, pos, e, whole) // refused now as it was then
	return nil
}
