package runner

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"wake/internal/lease"
	"wake/internal/tracing"
	"wake/pkg/wire"
)

// notBegun is how long a run may be registered before it begins. Whoever
// registered it died in between; its request comes again.
const notBegun = 10 * time.Minute

// sweep adopts active runs that have no owner, until ctx ends. Those it adopts
// are owned under hard.
func (r *Runner) sweep(ctx, hard context.Context, keeper *lease.Keeper) error {
	tick := time.NewTicker(keeper.TTL() / 10)
	defer tick.Stop()
	for {
		runs := r.active.list()
		r.attempts.keep(runs)
		for _, reg := range runs {
			if r.owned.has(reg.Run) || !r.attempts.due(reg.Run) {
				continue
			}
			last := reg.Runner
			if reg.Released > 0 {
				last = ""
			}
			if keeper.Free(r.names.LeaseKey(reg.Run, wire.RunNode), last) {
				r.tasks.Go(func() { r.adopt(hard, keeper, reg) })
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// adopt becomes the owner of a run that has none.
func (r *Runner) adopt(ctx context.Context, keeper *lease.Keeper, reg registration) {
	if reg.Incarnation != r.log.Incarnation() {
		r.forget(ctx, reg)
		return
	}
	o := &owner{runner: r, keeper: keeper, runID: reg.Run, request: wire.RunRequest{RunID: reg.Run}, taken: func() {}}
	switch err := o.own(tracing.With(ctx, reg.Trace)); {
	case err == nil, ctx.Err() != nil:
		r.attempts.succeeded(reg.Run)
	case errors.Is(err, lease.ErrHeld):
		r.attempts.failed(reg.Run) // whoever watches it otherwise asks again and again
	case errors.Is(err, errNothing):
		r.attempts.failed(reg.Run)
		if time.Since(time.UnixMilli(reg.Since)) > notBegun {
			r.forget(ctx, reg)
		}
	default:
		r.attempts.failed(reg.Run)
		r.logger.Error("run not taken over", "run", reg.Run, "error", err)
	}
}

// forget takes out a registration that stands for no run.
func (r *Runner) forget(ctx context.Context, old registration) {
	reg, revision, err := r.active.load(ctx, old.Run)
	if err == nil && revision > 0 && reg == old {
		err = r.active.remove(ctx, old.Run, revision)
	}
	if err != nil && ctx.Err() == nil {
		r.logger.Warn("registration of a run not removed", "run", old.Run, "error", err)
	}
}

// attempts says when a run that could not be adopted is tried again.
type attempts struct {
	mu   sync.Mutex
	next map[string]attempt
}

type attempt struct {
	at   time.Time
	wait time.Duration
}

func newAttempts() *attempts { return &attempts{next: map[string]attempt{}} }

func (a *attempts) due(run string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !time.Now().Before(a.next[run].at)
}

func (a *attempts) failed(run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := min(max(2*a.next[run].wait, firstPause), lastPause)
	a.next[run] = attempt{time.Now().Add(wait), wait}
}

func (a *attempts) succeeded(run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.next, run)
}

// keep forgets all runs but these, which are in order.
func (a *attempts) keep(runs []registration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.next, func(run string, _ attempt) bool {
		_, found := slices.BinarySearchFunc(runs, run, func(r registration, run string) int { return strings.Compare(r.Run, run) })
		return !found
	})
}

// set holds ids.
type set struct {
	mu  sync.Mutex
	ids map[string]bool
}

func newSet() *set { return &set{ids: map[string]bool{}} }

// enter reports whether the id was not there before.
func (s *set) enter(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] {
		return false
	}
	s.ids[id] = true
	return true
}

func (s *set) leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}

func (s *set) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

func (s *set) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// list returns the ids in order.
func (s *set) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ids))
}
