package owner

import (
	"context"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/child"
	"code.wake.dev/wake/services/runner/internal/command"
)

// A run that a flow node or a call begins works in the folder of its parent, if that stays with its folder. The owner of the run at the top
// says where the folder is; those of the runs below it follow: a folder that each of them restored would be several.

// parentPlace returns the runner with the folder of the run's parent, while that goes on, and the folder, if the parent didn't begin there; "": there is none.
func (o *owner) parentPlace() (holder, moved string) {
	s := o.view.State()
	if s.ParentRun == "" || o.folder.own {
		return "", ""
	}
	reg, ok := o.cfg.Registry.Get(s.ParentRun)
	if !ok || reg.Incarnation != o.cfg.Log.Incarnation() {
		return "", ""
	}
	return reg.Folder, reg.Moved
}

// parentHolder is the runner of [owner.parentPlace].
func (o *owner) parentHolder() string {
	holder, _ := o.parentPlace()
	return holder
}

// sharesFolder reports whether the folder is that of the run's parent, which goes on.
func (o *owner) sharesFolder(ctx context.Context) (bool, error) {
	if o.parentHolder() == "" {
		return false, nil
	}
	if !o.folder.shared {
		parent, err := o.cfg.Runs.State(ctx, o.view.State().ParentRun)
		if err != nil {
			return false, err
		}
		def, err := o.cfg.Runs.Definition(parent.Definition)
		if err != nil {
			return false, fmt.Errorf("definition of run %s: %w", parent.RunID, err)
		}
		o.folder.shared, o.folder.own = def.IsBound(), !def.IsBound()
	}
	return o.folder.shared, nil
}

// followParent has the run go on where its parent does, once nothing of it is at work where the folder was.
func (o *owner) followParent(ctx context.Context, holder string) error {
	s := o.view.State()
	if o.folder.gone.IsZero() { // nothing begins there any more
		o.folder.gone = time.Now()
	}
	isLost := s.Status == wire.RunPaused && s.Reason == wire.PauseWorkspaceLost
	if s.Status != wire.RunRunning && !isLost || holder != o.cfg.ID && !o.cfg.Leases.Present(holder) {
		return nil
	}
	for node, n := range s.Nodes {
		if node != wire.RunNode && n.Open() && !o.isFree(node, n) {
			return nil
		}
	}
	parent, err := o.cfg.Runs.State(ctx, s.ParentRun)
	if err != nil {
		return err
	}
	former := o.folder.holder
	o.folder.holder, o.folder.gone = holder, time.Time{}
	if parent.Workspace != s.Workspace {
		o.folder.moved = parent.Workspace
	}
	if dir := parent.Workspace; dir != s.Workspace || isLost {
		kept := parent.Folder
		if kept == nil {
			kept = &wire.FolderSnapshot{}
		}
		if err := o.resumeIn(ctx, dir, movedMessage(kept, dir)); err != nil {
			return err
		}
	}
	o.cfg.Logger.Info("the run goes on in the folder of its parent", "run", o.runID, "folder", parent.Workspace, "runner", holder, "former", former)
	return o.putRegistration(ctx, 0)
}

// resumeIn has the run go on in a folder.
func (o *owner) resumeIn(ctx context.Context, dir, message string) error {
	overrides, err := wire.Marshal(map[string]string{"workspace": dir})
	if err != nil {
		return err
	}
	return o.appendEvents(ctx, []*wire.Event{{Payload: &wire.FlowResumed{Strategy: command.StrategyCrash, Overrides: overrides, Message: message}}})
}

// runsBelow are the runs that flow nodes of a run have begun, and those that its agents wait for.
func runsBelow(s *wire.State) []history.FlowRun {
	flows := history.FlowsBelow(s)
	for _, call := range s.Tools {
		if callsRun(s, call) {
			flows = append(flows, history.FlowRun{ID: child.CallID(s.RunID, call.Exec, call.CallID)})
		}
	}
	return flows
}
