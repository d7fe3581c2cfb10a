package intake

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/owner"
)

// notBegun is how long a run may be registered before it begins. The owner
// that registered it died in between; its request comes again.
const notBegun = 10 * time.Minute

// adoptsAtOnce bounds the runs that are adopted at once, however many a runner has left.
const adoptsAtOnce = 64

// adoptRuns adopts active runs that have no owner, until ctx ends. Those it adopts
// are owned under hard.
func (in *Intake) adoptRuns(ctx, hard context.Context) error {
	tick := time.NewTicker(in.cfg.Leases.TTL() / 10)
	defer tick.Stop()
	places, trials := make(chan struct{}, adoptsAtOnce), make(chan struct{}, adoptsAtOnce)
	for {
		runs := in.cfg.Registry.List()
		in.attempts.keepRuns(runs)
		// Runners that all begin with the same run would be in each other's way with each.
		rand.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
		for _, reg := range runs {
			if !in.lacksOwner(reg) {
				continue
			}
			held := places
			if reg.Trials > 0 { // may wait for others to be tried: not in the way of those that needn't be
				held = trials
				if len(trials) == cap(trials) {
					continue
				}
			}
			select {
			case held <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			if ctx.Err() != nil || !in.lacksOwner(reg) { // any more
				<-held
				continue
			}
			in.beginAdoption(hard, reg, held)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// lacksOwner reports whether a run may be adopted.
func (in *Intake) lacksOwner(reg registry.Registration) bool {
	if in.cfg.Owned.Has(reg.Run) || !in.attempts.isDue(reg.Run) {
		return false
	}
	last := lease.Claimant{Runner: reg.Runner, Process: reg.Process}
	if reg.Released > 0 {
		last = lease.Claimant{}
	}
	return in.cfg.Leases.Free(lease.Key{Run: reg.Run, Node: wire.RunNode}, last)
}

// beginAdoption adopts a run beside others. The token that its caller has put into places is taken out as soon as the run has an owner, or none.
func (in *Intake) beginAdoption(hard context.Context, reg registry.Registration, places <-chan struct{}) {
	begun := sync.OnceFunc(func() { <-places })
	in.tasks.Go(func() {
		defer begun()
		in.adoptRun(hard, reg, begun)
	})
}

// adoptRun becomes the owner of a run that has none. It calls begun when it is that.
func (in *Intake) adoptRun(ctx context.Context, reg registry.Registration, begun func()) {
	if reg.Incarnation != in.cfg.Log.Incarnation() {
		in.removeRegistration(ctx, reg)
		return
	}
	switch err := in.cfg.Owners.Own(tracing.With(ctx, reg.Trace), &owner.Request{RunRequest: wire.RunRequest{RunID: reg.Run}, OnBegin: begun}); {
	case err == nil, ctx.Err() != nil:
		in.attempts.noteSuccess(reg.Run)
	case errors.Is(err, lease.ErrHeld):
		in.attempts.noteFailure(reg.Run) // else it would be tried again and again
	case errors.Is(err, owner.ErrNothing):
		in.attempts.noteFailure(reg.Run)
		if time.Since(time.UnixMilli(reg.Since)) > notBegun {
			in.removeRegistration(ctx, reg)
		}
	default:
		in.attempts.noteFailure(reg.Run)
		in.cfg.Logger.Error("run not taken over", "run", reg.Run, "error", err)
	}
}

// removeRegistration takes out a registration that stands for no run.
func (in *Intake) removeRegistration(ctx context.Context, old registry.Registration) {
	reg, revision, err := in.cfg.Registry.Load(ctx, old.Run)
	if err == nil && revision > 0 && reg == old {
		err = in.cfg.Registry.Remove(ctx, old.Run, revision)
	}
	if err != nil && ctx.Err() == nil {
		in.cfg.Logger.Warn("registration of a run not removed", "run", old.Run, "error", err)
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

func (a *attempts) isDue(run string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !time.Now().Before(a.next[run].at)
}

func (a *attempts) noteFailure(run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := min(max(2*a.next[run].wait, tenure.FirstPause), tenure.LastPause)
	a.next[run] = attempt{time.Now().Add(wait), wait}
}

func (a *attempts) noteSuccess(run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.next, run)
}

// keepRuns forgets all runs but these, which are in order.
func (a *attempts) keepRuns(runs []registry.Registration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.next, func(run string, _ attempt) bool {
		_, found := slices.BinarySearchFunc(runs, run, func(r registry.Registration, run string) int { return strings.Compare(r.Run, run) })
		return !found
	})
}
