package recorder

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/workspace"
)

// followRetention looks after how long runs are kept until ctx ends: when it is due, and
// when somebody has deleted one. What fails is tried again the next time.
func (r *Recorder) followRetention(ctx context.Context) {
	tick := time.NewTicker(r.c.Retain.Every)
	defer tick.Stop()
	for {
		if err := r.applyRetention(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "runs whose time is over are not removed, tries again", "error", err)
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
	gone := 0
	for more := true; more; {
		var run string
		if run, more, err = r.store.Retention.Remove(ctx, time.Now()); err != nil {
			return err
		}
		if run != "" {
			r.store.Answers.Forget(run)
			if err := workspace.Drop(ctx, r.log.Conn(), r.log.Names(), run); err != nil { // it takes room, and nobody sees it
				r.logger.WarnContext(ctx, "snapshots of a removed run's folder are left in the object store", "run", run, "error", err)
			}
			gone++
		}
	}
	if gone == 0 {
		return nil
	}
	r.logger.InfoContext(ctx, "removed deleted runs", "runs", gone)
	for more := true; more; {
		if more, err = r.store.Retention.Shrink(ctx); err != nil {
			return err
		}
	}
	return nil
}
