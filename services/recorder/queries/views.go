package queries

import (
	"context"
	"sync"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/states"
)

// stateLoader returns the state of a run as of a position. Its callers don't change it.
type stateLoader func(ctx context.Context, t *archive.Tx, of request.Target, to uint64) (*wire.State, error)

// stateOf loads a state from the file.
func stateOf(ctx context.Context, t *archive.Tx, of request.Target, to uint64) (*wire.State, error) {
	s, _, err := states.Load(ctx, t, of.ID, of.Run, to)
	return s, err
}

// maxViews bounds the states that are kept for questions.
const maxViews = 256

// views are the states of the runs that were last asked for, so that asking again
// folds only what has come since. The zero value is ready.
type views struct {
	mu    sync.Mutex
	byRun map[string]states.View
}

// stateUpTo is a [stateLoader]. It goes on from the nearest state there is, here or in the
// store. A question that fails, for want of time say, leaves what it has folded to the next
// one: otherwise what has once taken too long would do so for ever.
func (v *views) stateUpTo(ctx context.Context, t *archive.Tx, of request.Target, to uint64) (*wire.State, error) {
	v.mu.Lock()
	held := v.byRun[of.Run]
	v.mu.Unlock()
	if held.State == nil || held.Pos > to {
		held = states.View{}
	}
	if held.Pos == to && held.State != nil {
		return held.State, nil
	}
	view, err := states.Latest(ctx, t, of.ID, of.Run, held.Pos, to)
	if err != nil {
		return nil, err
	}
	if held.Pos > view.Pos {
		view = states.View{Pos: held.Pos, State: run.Clone(held.State)} // others may be reading it
	}
	err = view.Advance(ctx, t, of.ID, to)
	v.keepView(of.Run, view)
	if err != nil {
		return nil, err
	}
	return view.State, nil
}

// dropRun drops what is kept of a run.
func (v *views) dropRun(run string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.byRun, run)
}

// keepView keeps a view, unless a newer one is there.
func (v *views) keepView(id string, view states.View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byRun == nil || len(v.byRun) >= maxViews {
		v.byRun = map[string]states.View{}
	}
	if v.byRun[id].Pos <= view.Pos {
		v.byRun[id] = view
	}
}
