package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// forkFolder makes the folder of a fork: as of its point if snapshots were taken, else a copy of its parent's as it is now. A
// point before the first snapshot has the folder of that: nothing had been at work. A folder that the fork is given is taken as it is.
func (o *owner) forkFolder(ctx context.Context, parent *wire.State) (dir string, err error) {
	folders, fork := o.cfg.newFolders(), o.asked().Fork
	if dir := namedFolder(fork.Overrides); dir != "" {
		parent.Folder = nil
		return dir, o.checkFolder(dir)
	}
	if fork.WithoutWorkspace {
		parent.Folder = nil
		return folders.createFolder(o.runID, "")
	}
	switch {
	case o.cfg.Kept == nil:
		dir, err = folders.copyFolder(o.runID, parent.Workspace)
	case o.def.Workspace == flow.WorkspaceShared && parent.Workspace != "":
		dir, err = o.copyShared(ctx, parent.Workspace)
	default:
		dir, err = o.keptFolder(ctx, parent)
	}
	if err != nil {
		return "", fmt.Errorf("there is no folder as of the point: %w (`wake fork --without-workspace` begins with an empty one)", err)
	}
	return dir, nil
}

// namedFolder is the folder that overrides have a run go on in; "": they name none.
func namedFolder(overrides wire.Raw) string { return overrides.TextAt("workspace") }

// checkFolder fails unless this runner sees a folder that a fork or a resumption names.
func (o *owner) checkFolder(dir string) error {
	if !isFolder(dir) {
		return fmt.Errorf("runner %s has no folder %s, in which the run is to work", o.cfg.ID, dir)
	}
	return nil
}

// checkResumption fails with a [rejection] if a run is to go on in a folder that isn't there. What the runner with the run's folder
// sees is known to that one alone.
func (o *owner) checkResumption(cmd wire.Command) error {
	dir := namedFolder(cmd.Overrides)
	if cmd.Type != "resume" || dir == "" || o.folder.holder != o.cfg.ID && o.cfg.Leases.Present(o.folder.holder) {
		return nil
	}
	if err := o.checkFolder(dir); err != nil {
		return command.Reject(wire.CodeBadRequest, "%v: make it, or name another", err)
	}
	return nil
}

// keptFolder makes the folder of a fork as of its point.
func (o *owner) keptFolder(ctx context.Context, parent *wire.State) (_ string, err error) {
	kept, err := history.LastFolder(ctx, o.cfg.Log, parent, o.asked().Fork.ParentPos)
	switch {
	case err != nil:
		return "", err
	case kept != parent.Folder && kept.Refused != "":
		return "", &workspace.RefusedError{Reason: kept.Refused}
	case kept != parent.Folder: // of a flow that the parent has begun; the parent's state stays what it was at the point
		return o.restoreFolder(ctx, kept.ID, parent.Workspace)
	}
	if f := parent.Folder; f == nil || f.Pending {
		if parent.Folder, err = o.firstFolder(ctx, f != nil); err != nil {
			return "", err
		}
	}
	switch f := parent.Folder; {
	case f == nil:
		return o.cfg.newFolders().copyFolder(o.runID, parent.Workspace)
	case f.Refused != "":
		return "", &workspace.RefusedError{Reason: f.Refused}
	default:
		return o.restoreFolder(ctx, f.ID, parent.Workspace)
	}
}

// copyShared makes the folder of a fork what its parent's is now, by a snapshot: of one that several runners see none are kept.
func (o *owner) copyShared(ctx context.Context, parent string) (string, error) {
	if !isFolder(parent) {
		return "", fmt.Errorf("this runner has no %s: %w", parent, fs.ErrNotExist)
	}
	snapshot, err := o.cfg.Kept.Folder(o.runID, parent, workspace.Limits{}, o.cfg.Private...).Take(ctx, "")
	if err != nil {
		return "", err
	}
	if len(snapshot.LeftOut) > 0 {
		o.cfg.Logger.Warn("the forked run begins without some files of its parent's folder", "run", o.runID, "left_out", snapshot.LeftOut, "more", snapshot.Omitted)
	}
	if snapshot.ID == "" { // it is empty
		return o.cfg.newFolders().copyFolder(o.runID, parent)
	}
	return o.restoreFolder(ctx, snapshot.ID, parent)
}

// isUnkept reports whether a snapshot is what a folder lacks: no runner finds one anywhere.
func isUnkept(err error) bool {
	return errors.Is(err, workspace.ErrMissing) || errors.Is(err, workspace.ErrDamaged) || errors.As(err, new(*workspace.RefusedError))
}

// firstSnapshotWait is how long a fork waits for a snapshot that is being taken of its parent's folder.
const firstSnapshotWait = 2 * time.Minute

// firstFolder returns the first snapshot of the parent's folder behind the point; one that is being taken is waited for, as the
// agent may change the folder as soon as it is there.
func (o *owner) firstFolder(ctx context.Context, isPending bool) (*wire.FolderSnapshot, error) {
	fork := o.asked().Fork
	first, err := history.FirstFolder(ctx, o.cfg.Log, fork.ParentRun, fork.ParentPos)
	if first != nil || err != nil || !isPending {
		return first, err
	}
	wait, cancel := context.WithTimeout(ctx, firstSnapshotWait)
	defer cancel()
	first, err = history.AwaitFolder(wait, o.cfg.Log, fork.ParentRun, fork.ParentPos)
	if first == nil && err == nil && ctx.Err() == nil && wait.Err() != nil {
		err = fmt.Errorf("the first snapshot of the folder of %s is still being taken: fork again when its log has it", fork.ParentRun)
	}
	return first, err
}

// restoreFolder makes the folder of the run here what a snapshot holds of a folder, which may have been elsewhere.
func (o *owner) restoreFolder(ctx context.Context, id, from string) (string, error) {
	dir := filepath.Join(o.cfg.Workspaces, subjects.Escape(o.runID))
	// A folder here was left by an owner that died over it, or when the run went elsewhere. Nothing works in it.
	if err := workspace.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("restore the workspace: %w", err)
	}
	if _, err := o.cfg.Kept.Restore(ctx, id, dir); err != nil {
		return "", fmt.Errorf("restore the workspace: %w", err)
	}
	err := o.cfg.newFolders().relinkFiles(o.runID, dir, from)
	if err == nil {
		err = o.cfg.User.Own(dir)
	}
	if err != nil {
		return "", fmt.Errorf("restore the workspace: %w", err)
	}
	return dir, nil
}

// moveFolder has the run go on in a folder here, as of its last snapshot, when that of another runner is gone: in an empty one if
// nothing has worked in it yet. It reports whether it does.
func (o *owner) moveFolder(ctx context.Context) (bool, error) {
	s, begun := o.view.State(), time.Now()
	kept, err := o.lastFolder(ctx, s)
	if err != nil || kept == nil {
		return false, err
	}
	if !o.lease.Valid() {
		return false, tenure.ErrLeaseLost
	}
	var dir, message string
	if kept.Position == 0 {
		dir, err = o.cfg.newFolders().createFolder(o.runID, "")
	} else if dir, err = o.restoreFolder(ctx, kept.ID, s.Workspace); err == nil {
		message = movedMessage(kept, dir)
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		o.cfg.Logger.Warn("the folder of the run can't be restored", "run", o.runID, "error", err)
		return false, nil
	}
	o.cfg.Logger.Info("the run goes on in another folder, with what was last kept", "run", o.runID, "runner", o.cfg.ID, "former", o.folder.holder,
		"position", kept.Position, "files", kept.Files, "took", time.Since(begun).Round(time.Millisecond))
	// The next owner can tell from the log whether the run has gone on here; runs below this one look when the registration says so.
	o.folder.movesTo, o.folder.movesFrom = o.cfg.ID, s.Position.Seq
	if err := o.putRegistration(ctx, 0); err != nil {
		return false, err
	}
	if err := o.resumeIn(ctx, dir, message); err != nil {
		return false, err
	}
	o.folder.holder, o.folder.gone, o.folder.movesTo, o.folder.movesFrom, o.folder.moved = o.cfg.ID, time.Time{}, "", 0, dir
	return true, o.putRegistration(ctx, 0)
}

// lastFolder returns the last snapshot of the run's folder, one without a position if nothing has worked there; nil: the run can't
// go on without the folder itself.
func (o *owner) lastFolder(ctx context.Context, s *wire.State) (*wire.FolderSnapshot, error) {
	if o.isOwnFolder(s) {
		if unused, err := o.isUnused(ctx, s); unused || err != nil {
			return &wire.FolderSnapshot{}, err
		}
	}
	if o.cfg.Kept == nil {
		return nil, nil //nolint:nilnil // nothing was kept
	}
	kept, err := history.LastKept(ctx, s, runsBelow, o.cfg.Runs.State)
	if err != nil || kept == nil || kept.Refused != "" || kept.Position == 0 {
		return nil, err
	}
	return kept, nil
}

// isOwnFolder reports whether a runner has made the folder of the run, empty: the run is neither a fork nor part of another run, and
// its request named no folder. The log has only the folder's path, so a folder is a runner's if it ends like those that this runner makes.
func (o *owner) isOwnFolder(s *wire.State) bool {
	made := filepath.Join(filepath.Base(o.cfg.Workspaces), subjects.Escape(s.RunID))
	return len(s.Lineage) == 0 && s.ParentRun == "" && strings.HasSuffix(s.Workspace, string(filepath.Separator)+made)
}

// isUnused reports whether no worker has claimed a node of a run, nor of one that it has begun.
func (o *owner) isUnused(ctx context.Context, s *wire.State) (bool, error) {
	for node, n := range s.Nodes {
		if node != wire.RunNode && n.Runner != "" {
			return false, nil
		}
	}
	for _, f := range history.FlowsBelow(s) {
		below, err := o.cfg.Runs.State(ctx, f.ID)
		if err != nil {
			return false, err
		}
		if unused, err := o.isUnused(ctx, below); !unused || err != nil {
			return false, err
		}
	}
	return true, nil
}

// movedMessage tells agents where they go on.
func movedMessage(f *wire.FolderSnapshot, dir string) string {
	text := "Continue. The machine that you worked on is gone: you go on on another one. Your working folder is now " + dir +
		"; it was restored as it was after the last result of a tool or the last step that is on record. Files that an interrupted call wrote are lost."
	if len(f.LeftOut) > 0 {
		text += "\nThese were not kept: " + strings.Join(f.LeftOut, "; ")
		if f.Omitted > 0 {
			text += fmt.Sprintf("; and %d more", f.Omitted)
		}
	}
	return text
}
