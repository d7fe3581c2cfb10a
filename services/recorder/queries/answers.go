// Package queries answers questions about what is recorded.
package queries

import (
	"context"
	"fmt"
	"sync"
	"time"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/states"
)

// Answers answers questions about an archive and what is derived from it. Any number
// may ask at the same time.
type Answers struct {
	*archive.Archive

	views   views
	live    live
	roll    roll
	courses courses
	places  cache[[]uint64] // see [logQuery.findPlace]
	calls   calls
}

// cache is what was made of runs for a question, each as of a position. The zero value is ready.
type cache[V any] struct {
	mu    sync.Mutex
	byRun map[string]held[V]
}

type held[V any] struct {
	value V
	pos   uint64
}

// find returns what is held of a run, and its position; 0: none.
func (c *cache[V]) find(run string) (V, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.byRun[run]
	return h.value, h.pos
}

// keep holds a value, unless a newer one is there. If there are most of them already, these go.
func (c *cache[V]) keep(run string, pos uint64, value V, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byRun == nil || len(c.byRun) >= most {
		c.byRun = map[string]held[V]{}
	}
	if c.byRun[run].pos <= pos {
		c.byRun[run] = held[V]{value, pos}
	}
}

// drop drops a run, or all.
func (c *cache[V]) drop(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if run == "" {
		clear(c.byRun)
	}
	delete(c.byRun, run)
}

// New returns answers from a.
func New(a *archive.Archive) *Answers { return &Answers{Archive: a} }

// askArchive returns what ask reads in a view, or says that it couldn't be answered.
func askArchive[R any](ctx context.Context, a *Answers, what string, ask func(*archive.Tx) (R, error)) (R, error) {
	r, err := archive.Ask(ctx, a.Archive, ask)
	if err != nil {
		return *new(R), request.Wrap(what, err)
	}
	return r, nil
}

// askAll is [askArchive] for questions about all runs that a filter selects, which ask gets in the order of their first events.
func askAll[R any](ctx context.Context, a *Answers, what string, q wire.RunsRequest, now time.Time, ask func(*archive.Tx, []*rollRun) (R, error)) (R, error) {
	for tries := 2; ; tries-- {
		all, err := a.allRuns(ctx) // before the view, which has all of them then
		if err != nil {
			return *new(R), request.Wrap(what, err)
		}
		outdated := false
		r, err := askArchive(ctx, a, what, func(t *archive.Tx) (r R, err error) {
			if outdated, err = isOutdated(ctx, t, all); err != nil || outdated && tries > 0 {
				return r, err
			}
			runs, err := wantedRuns(ctx, t, all, q, now)
			if err != nil {
				return r, err
			}
			return ask(t, runs)
		})
		if err != nil || !outdated || tries == 0 {
			return r, err
		}
		a.roll.drop("")
	}
}

// Warm reads what questions about all runs are answered from, for those that follow. Answers that hold nothing have no use for it.
func (a *Answers) Warm(ctx context.Context, now time.Time) error {
	if !a.Holding() {
		return nil
	}
	const room = 1 << 20
	_, err := a.Fleet(ctx, wire.FleetRequest{}, now, room)
	if err == nil {
		_, err = a.Top(ctx, wire.TopRequest{}, now, room)
	}
	if err == nil {
		_, err = a.Stats(ctx, wire.StatsRequest{}, now)
	}
	return err
}

// Holding reports whether runs are held in memory, so that [Answers.Changed] has to be
// told.
func (a *Answers) Holding() bool { return a.live.lines > 0 }

// Forget drops what is kept of a run, since it was derived again, or removed.
func (a *Answers) Forget(run string) {
	a.live.dropRun(run)
	a.views.drop(run)
	a.roll.drop(run)
	a.courses.drop(run)
	a.places.drop(run)
	a.calls.drop()
}

// ForgetLive drops the runs that are held, since it isn't known what was recorded.
func (a *Answers) ForgetLive() {
	a.live.dropAll()
	a.roll.drop("")
	a.courses.drop("")
	a.places.drop("")
	a.calls.drop()
}

// fleetFigure is a run in a list of the fleet, as of a position and a time. It isn't changed.
type fleetFigure struct {
	first   uint64 // position of the run's first event
	pos     uint64
	at      int64 // Unix ms
	until   int64 // see goneUntil
	urgency int
	run     wire.TopRun
	waits   []wire.Approval
}

// stateLoader returns the state of a run as of a position, behind that of the last event that changes it. Its callers don't change it.
type stateLoader func(ctx context.Context, t *archive.Tx, of request.Target, changed, to uint64) (*wire.State, error)

// stateOf loads a state from the file.
func stateOf(ctx context.Context, t *archive.Tx, of request.Target, _, to uint64) (*wire.State, error) {
	s, _, err := states.Load(ctx, t, of.ID, of.Run, to)
	return s, err
}

// maxViews bounds the states that are kept for questions.
const maxViews = 2048

// views are the states of the runs that were last asked for, so that asking again
// folds only what has come since. The zero value is ready.
type views struct{ cache[*wire.State] }

// stateUpTo is a [stateLoader]. It goes on from the nearest state there is, here or in the
// store. A question that fails, for want of time say, leaves what it has folded to the next
// one: otherwise what has once taken too long would do so for ever.
func (v *views) stateUpTo(ctx context.Context, t *archive.Tx, of request.Target, changed, to uint64) (*wire.State, error) {
	held, pos := v.find(of.Run)
	switch {
	case pos > to:
		pos = 0
	case pos >= changed && held != nil:
		return held, nil
	}
	view, err := states.Latest(ctx, t, of.ID, of.Run, pos, to)
	if err != nil {
		return nil, err
	}
	if pos > view.Pos {
		view = states.View{Pos: pos, State: run.Clone(held)} // others may be reading it
	}
	err = view.Advance(ctx, t, of.ID, to)
	v.keep(of.Run, view.Pos, view.State, maxViews)
	if err != nil {
		return nil, err
	}
	return view.State, nil
}

// StateAt answers a [wire.StateRequest]: the fold of the run's events up to a
// position, from the nearest state that is kept.
func (a *Answers) StateAt(ctx context.Context, q wire.StateRequest) (wire.StateResponse, error) {
	return askArchive(ctx, a, "state", func(t *archive.Tx) (r wire.StateResponse, err error) {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return r, err
		}
		first, to, changed, err := boundsOf(ctx, t, found, q.At)
		if err != nil {
			return r, err
		}
		if to < first {
			return r, &wire.APIError{Code: wire.CodeNotFound, Message: fmt.Sprintf("run %s had not begun at position %d", request.Shown(found.Run), q.At)}
		}
		state, err := a.views.stateUpTo(ctx, t, found, changed, to)
		if err != nil {
			return r, err
		}
		data, err := wire.Marshal(state)
		return wire.StateResponse{RunID: found.Run, Position: state.Position, State: data}, err
	})
}
