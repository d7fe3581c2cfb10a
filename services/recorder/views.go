package recorder

import (
	"context"
	"sync"

	"wake/internal/run"
	"wake/pkg/wire"
)

// stateLoader returns the state of a run as of a position, which nobody changes.
type stateLoader func(ctx context.Context, t *tx, of target, to uint64) (*wire.State, error)

// stateOf loads a state from the file.
func stateOf(ctx context.Context, t *tx, of target, to uint64) (*wire.State, error) {
	s, _, err := loadState(ctx, t, of.id, of.run, to)
	return s, err
}

// maxViews bounds the states that are kept for questions.
const maxViews = 256

// views are the states of the runs that were last asked for, so that asking again
// folds only what has come since. The zero value is ready.
type views struct {
	mu    sync.Mutex
	byRun map[string]view
}

type view struct {
	pos   uint64 // what the state is as of
	state *wire.State
}

// state is a [stateLoader].
func (v *views) state(ctx context.Context, t *tx, of target, to uint64) (*wire.State, error) {
	v.mu.Lock()
	known := v.byRun[of.run]
	v.mu.Unlock()
	var err error
	switch {
	case known.state == nil || known.pos > to:
		known.state, err = stateOf(ctx, t, of, to)
	case known.pos < to:
		known.state = run.Clone(known.state) // others may be reading it
		err = foldTail(ctx, t, known.state, of.id, to)
	}
	if err != nil {
		return nil, err
	}
	known.pos = to
	v.keep(of.run, known)
	return known.state, nil
}

// forget drops what is kept of a run.
func (v *views) forget(run string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.byRun, run)
}

// keep keeps a view, unless a newer one is there.
func (v *views) keep(id string, known view) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byRun == nil || len(v.byRun) >= maxViews {
		v.byRun = map[string]view{}
	}
	if v.byRun[id].pos <= known.pos {
		v.byRun[id] = known
	}
}
