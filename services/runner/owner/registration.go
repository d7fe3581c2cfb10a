package owner

import (
	"context"
	"errors"
	"strings"
	"time"

	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// takePlace takes what an earlier owner knew of the run, and tries the run out if that is due. It reports whether the run is
// registered already.
func (o *owner) takePlace(ctx context.Context) (registered bool, err error) {
	var reg registry.Registration
	if !o.fresh {
		if reg, _, err = o.cfg.Registry.Load(ctx, o.runID); err != nil {
			return false, err
		}
	}
	registered = reg.Incarnation == o.cfg.Log.Incarnation()
	if reg.Parked > 0 && registered {
		o.parked = reg.Released
	}
	if err := o.tryOut(ctx, reg); err != nil {
		return false, err
	}
	if !registered || o.view.State().Status == wire.RunIdle {
		reg.Folder = o.asked().WorkspaceAt
	} else if reg.MovesTo != "" && o.view.State().ResumedAt > reg.MovesFrom {
		reg.Folder, reg.Moved = reg.MovesTo, o.view.State().Workspace
	}
	o.folder.moved = reg.Moved
	o.folder.holder = reg.Folder
	if o.folder.holder == "" {
		err = o.findHolder(ctx)
	}
	return registered, err
}

// findHolder finds the runner with the folder where no registration names it: the pools of nodes do, or the run's parent.
func (o *owner) findHolder(ctx context.Context) error {
	o.folder.holder = holderOf(o.view.State())
	if o.folder.holder != "" {
		return nil
	}
	shared, err := o.sharesFolder(ctx)
	if o.folder.holder = o.cfg.ID; shared {
		o.folder.holder = o.parentHolder()
	}
	return err
}

// addRegistration registers a run that isn't registered. It reports whether another process has done so meanwhile.
func (o *owner) addRegistration(ctx context.Context) (another bool, err error) {
	revision, err := o.cfg.Registry.Add(ctx, o.newRegistration(ctx, 0))
	if errors.Is(err, registry.ErrRegistered) {
		return true, nil
	}
	o.registered = revision
	return false, err
}

func (o *owner) putRegistration(ctx context.Context, released uint64) (err error) {
	o.registered, err = o.cfg.Registry.Put(ctx, o.newRegistration(ctx, released))
	return err
}

func (o *owner) newRegistration(ctx context.Context, released uint64) registry.Registration {
	s := o.view.State()
	parent, call := s.ParentRun, s.ParentCall
	if s.Status == wire.RunIdle {
		parent, call = o.asked().ParentRun, o.asked().ParentCall
	}
	return registry.Registration{
		Run: o.runID, Runner: o.cfg.ID, Folder: o.folder.holder, MovesTo: o.folder.movesTo, MovesFrom: o.folder.movesFrom, Moved: o.folder.moved, Parent: parent, Call: call,
		Since: time.Now().UnixMilli(), Released: released, Incarnation: o.cfg.Log.Incarnation(), Trace: tracing.ParentOf(ctx),
		Process: o.cfg.Process, Trials: o.trial.count,
	}
}

func (o *owner) deregisterRun(ctx context.Context) error {
	if o.registered > 0 && o.cfg.Registry.Remove(ctx, o.runID, o.registered) == nil {
		return nil
	}
	reg, revision, err := o.cfg.Registry.Load(ctx, o.runID)
	if err != nil || revision == 0 {
		return err
	}
	switch {
	case reg.Incarnation != o.cfg.Log.Incarnation():
		return nil
	case !o.lease.Valid(): // it may be that of another owner, which goes on with the run
		return tenure.ErrLeaseLost
	default:
		return o.cfg.Registry.Remove(ctx, o.runID, revision)
	}
}

// holderOf returns the runner that has the folder of a run, by the pools of its
// nodes; "" if they don't say.
func holderOf(s *wire.State) string {
	for _, n := range s.Nodes {
		if runner, ok := strings.CutPrefix(n.Pool, poolPrefix); ok {
			return runner
		}
	}
	return ""
}

// tryOut begins the trial of a run that another process has left without giving it back.
func (o *owner) tryOut(ctx context.Context, reg registry.Registration) error {
	o.trial.count = 0
	if reg.Incarnation != o.cfg.Log.Incarnation() {
		return nil // it is new
	}
	o.trial.count, o.trial.last = reg.Trials, &reg
	if reg.Process != o.cfg.Process && reg.Released == 0 {
		o.trial.count++
	}
	if o.trial.count < 2 || o.trial.leave != nil {
		return nil
	}
	select {
	case o.cfg.alone <- struct{}{}:
		o.trial.leave = func() { <-o.cfg.alone }
		return nil
	case <-o.lease.Lost():
		return tenure.ErrLeaseLost
	case <-ctx.Done():
		return ctx.Err()
	}
}
