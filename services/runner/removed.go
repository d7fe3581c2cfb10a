package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
)

const (
	// removedFirst is when a process looks for folders of removed runs the first time, and removedEvery how long it then waits.
	removedFirst = 10 * time.Minute
	removedEvery = 6 * time.Hour
	// removedWait is how long the recorder may take to say what has become of a run.
	removedWait = 10 * time.Second
)

// dropRemovedFolders removes the folders of runs that were removed from the record, now and then, until ctx ends. Nothing refers to
// them: a run with a fork, or one that goes on below it, isn't removed, unless that is forced.
func (r *Runner) dropRemovedFolders(ctx context.Context) error {
	for pull.Sleep(ctx, removedFirst); ctx.Err() == nil; pull.Sleep(ctx, removedEvery) {
		dropped, err := r.dropFoldersOnce(ctx)
		if dropped > 0 {
			r.logger.InfoContext(ctx, "removed the folders of runs that were removed", "runs", dropped)
		}
		if err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "folders of removed runs may stay, tries again", "again_in", removedEvery.String(), "error", err)
		}
	}
	return nil
}

func (r *Runner) dropFoldersOnce(ctx context.Context) (dropped int, err error) {
	folders, err := os.ReadDir(r.cfg.Workspaces)
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, folder := range folders {
		run, isRun := runOfFolder(folder)
		if !isRun {
			continue
		}
		if _, active := r.active.Load().Get(run); active {
			continue
		}
		removed, err := r.isRemoved(ctx, run)
		if err != nil {
			return dropped, err
		}
		if !removed {
			continue
		}
		if err := workspace.RemoveAll(filepath.Join(r.cfg.Workspaces, folder.Name())); err != nil {
			failed = append(failed, fmt.Errorf("folder of run %s: %w", run, err)) // the others don't wait for it
			continue
		}
		dropped++
	}
	return dropped, errors.Join(failed...)
}

// runOfFolder returns the run that a folder is named after.
func runOfFolder(folder os.DirEntry) (run string, isRun bool) {
	run, err := subjects.Unescape(folder.Name())
	return run, err == nil && subjects.CheckID(run) == nil && folder.IsDir()
}

// isRemoved reports whether the recorder has removed a run.
func (r *Runner) isRemoved(ctx context.Context, run string) (bool, error) {
	wait, cancel := context.WithTimeout(ctx, removedWait)
	defer cancel()
	removed, err := api.RunRemoved(wait, r.log.Conn(), r.log.Names(), run)
	return removed != nil, err
}
