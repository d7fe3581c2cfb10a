package owner

import (
	"context"
	"fmt"
	"os"
	"time"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// folderAttempts is how many owners may try to make the folder of a new run. The
// pauses between them double, from tenure.FirstPause on: they take half a minute together.
const folderAttempts = 6

// NoFolderError says that a runner couldn't make the folder of a new run, and when
// the next one may try.
type NoFolderError struct {
	problem error
	After   time.Duration
}

// Error implements error.
func (e *NoFolderError) Error() string { return e.problem.Error() }

// Unwrap returns what went wrong.
func (e *NoFolderError) Unwrap() error { return e.problem }

// withoutFolder gives other runners a chance to make the folder of a new run: it
// fails with a [NoFolderError]. When enough have tried, the run begins by the events
// given and has failed at once. Each attempt has left a claim, and nothing else has
// left events in a run that hasn't begun.
func (o *owner) withoutFolder(ctx context.Context, problem error, begin []*wire.Event) error {
	attempt := o.view.State().Nodes[wire.RunNode].Seq
	if isUnkept(problem) {
		o.cfg.Logger.Error("forked run without a folder has failed", "run", o.runID, "error", problem)
		return o.failAtOnce(ctx, begin, problem.Error())
	}
	if attempt < folderAttempts {
		return &NoFolderError{problem: problem, After: tenure.FirstPause << (max(attempt, 1) - 1)}
	}
	reason := fmt.Sprintf("the run has no folder: %v (%d attempts, the last by runner %s): make the folder, or room for it, there and start the run again, or name another folder",
		problem, attempt, o.cfg.ID)
	o.cfg.Logger.Error("run without a folder has failed", "run", o.runID, "error", problem)
	return o.failAtOnce(ctx, begin, reason)
}

// failAtOnce begins the run by some events, and ends it.
func (o *owner) failAtOnce(ctx context.Context, begin []*wire.Event, reason string) error {
	return o.appendEvents(ctx, append(begin, &wire.Event{Payload: &wire.FlowComplete{
		FlowName: o.def.Name, Status: wire.FlowStatusFailed, Error: reason,
	}}))
}

// placeNode says which runners may take a node.
func (o *owner) placeNode(e *wire.Event) {
	p, ok := e.Payload.(*wire.NodeScheduled)
	if !ok || p.Error != "" {
		return
	}
	if o.isBound() {
		p.Pool = PoolOf(o.folder.holder)
	} else if p.Pool == "" {
		p.Pool = subjects.DefaultPool
	}
}

// nodePool returns the pool that may work on a node now; "": none.
func (o *owner) nodePool(n wire.NodeState) string {
	switch {
	case n.Pool == "" || !o.isBound():
		return n.Pool
	case !o.folder.gone.IsZero():
		return ""
	}
	return PoolOf(o.folder.holder)
}

// keepFolder finds the runner with the folder of the run. If it is gone, this one
// takes its place if it sees the folder too. Otherwise the run waits for a while, and
// then goes on here with the last snapshot of the folder; without one it is paused, until
// that runner is back. Where the folder is that of the run's parent, it goes where that goes.
func (o *owner) keepFolder(ctx context.Context) error {
	if !o.isBound() || o.view.State().Status.Ended() {
		return nil
	}
	if holder, moved := o.parentPlace(); holder != "" && (holder != o.folder.holder || moved != "" && moved != o.view.State().Workspace) {
		shared, err := o.sharesFolder(ctx)
		switch {
		case err != nil:
			return err
		case shared:
			return o.followParent(ctx, holder)
		}
	}
	s := o.view.State()
	there, shared, err := o.folderIsThere(ctx)
	switch {
	case err != nil:
		return err
	case there && s.Status == wire.RunPaused && s.Reason == wire.PauseWorkspaceLost:
		o.folder.gone = time.Time{}
		return o.appendEvents(ctx, []*wire.Event{{Payload: &wire.FlowResumed{Strategy: command.StrategyCrash}}})
	case there:
		o.folder.gone = time.Time{}
	case o.folder.gone.IsZero():
		o.folder.gone = time.Now()
		o.cfg.Logger.Warn("the folder of the run is away", "run", o.runID, "folder", s.Workspace, "runner", o.folder.holder)
	case shared: // the parent's owner finds it
	case s.Status == wire.RunRunning && time.Since(o.folder.gone) >= o.cfg.WorkspaceGrace && o.needsFolder():
		if moved, err := o.moveFolder(ctx); moved || err != nil {
			return err
		}
		o.folder.gone = time.Now() // if it is resumed all the same, there is as much time again
		return o.appendEvents(ctx, []*wire.Event{{Payload: &wire.FlowPaused{
			Reason: wire.PauseWorkspaceLost,
			Message: fmt.Sprintf("folder %s is on runner %s, which is gone: start that runner again and the run goes on by itself, "+
				"put the folder where runner %s sees it, or fork the run", s.Workspace, o.folder.holder, o.cfg.ID),
		}}})
	}
	return nil
}

// folderIsThere reports whether the folder is there, and if it isn't, whether it is shared with the run's parent. One that isn't
// shared is there, too, if this runner sees it.
func (o *owner) folderIsThere(ctx context.Context) (there, shared bool, err error) {
	self, seen := o.cfg.ID, isFolder(o.view.State().Workspace)
	isHolder := o.folder.holder == self
	if isHolder && seen || !isHolder && o.cfg.Leases.Present(o.folder.holder) {
		return true, false, nil
	}
	if shared, err = o.sharesFolder(ctx); err != nil || shared || !seen {
		return false, shared, err
	}
	o.cfg.Logger.Info("the run goes on in its folder with another runner", "run", o.runID, "runner", self, "former", o.folder.holder)
	o.folder.holder = self
	return true, false, o.putRegistration(ctx, 0)
}

// isFolder reports whether there is a folder. What can't be looked at isn't there.
func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// needsFolder reports whether something waits for the folder: a node, or a run that shares it.
func (o *owner) needsFolder() bool {
	if len(o.kids.kids) > 0 || len(o.kids.called) > 0 {
		return true
	}
	for node, n := range o.view.State().Nodes {
		if o.needsWorker(node, n) {
			return true
		}
	}
	return false
}
