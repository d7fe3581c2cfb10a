package recorder

import (
	"cmp"
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/workspace"
)

// followRetention looks after how long runs are kept until ctx ends: when it is due, and
// when a caller has deleted one. What fails is tried again the next time.
func (r *Recorder) followRetention(ctx context.Context) {
	tick := time.NewTicker(r.c.Retain.Every)
	defer tick.Stop()
	for {
		if err := r.applyRetention(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "runs whose time is over are not removed, tries again", "error", err)
		}
		if err := r.dropRemains(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "what removed runs have left on the server stays for now, tries again", "error", err)
		}
		if err := r.boundFolders(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "what snapshots of folders take isn't looked after, tries again", "error", err)
		}
		select {
		case <-tick.C:
		case <-r.deleted:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Recorder) applyRetention(ctx context.Context) error {
	n, err := r.store.Retention.Expire(ctx, r.c.Retain, time.Now())
	if n > 0 {
		r.logger.InfoContext(ctx, "deleted runs for their age or the store's size", "runs", n, "removed_in", r.c.Retain.Grace.String())
	}
	if err != nil {
		return err
	}
	due, err := r.store.Retention.Due(ctx, time.Now())
	if err != nil {
		return err
	}
	tell := r.c.Removing
	if tell == nil || due == 0 {
		tell = func(int64, int64) {}
	}
	tell(0, due)
	defer tell(0, 0)
	gone := int64(0)
	for more := true; more; {
		var run string
		if run, more, err = r.store.Retention.Remove(ctx, time.Now()); err != nil {
			return err
		}
		if run != "" {
			r.store.Answers.Forget(run)
			gone++
			tell(gone, due)
		}
	}
	if gone == 0 {
		return nil
	}
	r.logger.InfoContext(ctx, "removed deleted runs", "runs", gone)
	if err := r.store.Retention.Merge(ctx); err != nil {
		return err
	}
	for more := true; more; {
		if more, err = r.store.Retention.Shrink(ctx); err != nil {
			return err
		}
	}
	return nil
}

// errNotCurrent says that what needs a run isn't known at the moment.
var errNotCurrent = errors.New("recorder: the stream has events that aren't recorded yet: whether something needs a run isn't known")

// dropIdle drops snapshots of the folders of those runs that nothing needs, one after the other, until it is enough, and returns how many
// runs lost them.
func (r *Recorder) dropIdle(ctx context.Context, runs []string, isEnough func() (bool, error)) (dropped int, err error) {
	js, names := r.log.JetStream(), r.log.Names()
	holds, err := workspace.Holders(ctx, js, names)
	if err != nil {
		return 0, err
	}
	for _, run := range runs {
		if enough, err := isEnough(); err != nil || enough {
			return dropped, err
		}
		if !holds(run) {
			continue
		}
		if current, err := r.isCurrent(ctx); err != nil || !current {
			return dropped, cmp.Or(err, errNotCurrent)
		}
		idle, err := r.store.Retention.IsIdle(ctx, run)
		if err != nil {
			return dropped, err
		}
		if !idle {
			continue
		}
		if err := workspace.Drop(ctx, r.log.Conn(), names, run); err != nil {
			return dropped, err
		}
		dropped++
	}
	return dropped, nil
}

// spare is the part (1/20) of what snapshots may take that is free after some were dropped, so that the next one doesn't have all looked at again.
const spare = 20

// folderRest is how long nothing is tried when what is left is needed.
const folderRest = time.Hour

// boundFolders drops snapshots of folders while they take more than they may: those of the runs that ended first and that nothing needs.
func (r *Recorder) boundFolders(ctx context.Context) error {
	js, names, most := r.log.JetStream(), r.log.Names(), r.c.Retain.Folders
	used, err := workspace.Used(ctx, js, names)
	if err != nil {
		return err
	}
	r.metrics.folders.Set(float64(used.Bytes))
	if most == 0 || used.Bytes <= most || time.Now().Before(r.folderRest) {
		return nil
	}
	ended, err := r.store.Retention.Ended(ctx)
	if err != nil {
		return err
	}
	before := used.Bytes
	dropped, err := r.dropIdle(ctx, ended, func() (bool, error) {
		now, err := workspace.Used(ctx, js, names)
		return now.Bytes <= most-most/spare, err
	})
	if errors.Is(err, errNotCurrent) {
		return nil
	}
	if err != nil {
		return err
	}
	if used, err = workspace.Used(ctx, js, names); err != nil {
		return err
	}
	r.metrics.folders.Set(float64(used.Bytes))
	if dropped > 0 {
		r.logger.InfoContext(ctx, "dropped snapshots of folders, since they took more than they may", "runs", dropped, "bytes_before", before, "bytes", used.Bytes)
	}
	if used.Bytes > most {
		r.folderRest = time.Now().Add(folderRest)
		r.logger.WarnContext(ctx, "snapshots of folders take more than they may, and those that are left are of runs that go on, have forks or labelled bookmarks: "+
			"delete some of these, or let snapshots take more by --retain-folders", "bytes", used.Bytes, "most", most)
	}
	return nil
}

// isCurrent reports whether the store knows all that the stream has at the moment: a run may go on, or be forked, with the last event.
func (r *Recorder) isCurrent(ctx context.Context) (bool, error) {
	_, last, err := r.log.Bounds(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	r.derived.awaitPos(ctx, last)
	reached, _ := r.derived.currentPos()
	return reached >= last, nil
}
