package recorder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/services/recorder/internal/table"
	"code.wake.dev/wake/services/recorder/retention"
)

// dropRemains removes what removed runs have left on the server, unless a fork may refer to it, and once more when the stream has nothing of
// them any more: the snapshotter may have been behind, or made anew what it keeps. Large fields go only then, since the stream's events refer to them.
func (r *Recorder) dropRemains(ctx context.Context) error {
	first, err := r.log.FirstTime(ctx)
	if err != nil {
		return err
	}
	before := first.Add(-eventlog.BlobMargin)
	for kept := 0; ctx.Err() == nil; {
		some, err := r.store.Retention.Remains(ctx, before, kept)
		if err != nil || len(some) == 0 {
			return err
		}
		for _, left := range some {
			forGood := left.At < before.UnixMilli()
			done, err := r.dropLeft(ctx, left, before)
			if err != nil {
				return fmt.Errorf("%s %s of run %s: %w", left.Kind, left.Name, left.Run, err)
			}
			if !done {
				kept++
				continue
			}
			if err := r.store.Retention.SetDropped(ctx, left, forGood); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// dropLeft removes something that a removed run has left. It reports false if that has to stay: a fork may refer to it, or the recorder doesn't
// know the last events.
func (r *Recorder) dropLeft(ctx context.Context, left table.Remains, before time.Time) (done bool, err error) {
	if current, err := r.isCurrent(ctx); err != nil || !current {
		return false, err
	}
	idle, err := r.store.Retention.IsIdle(ctx, left.Run)
	if err != nil || !idle {
		return false, err
	}
	used, err := r.store.Retention.IsUsed(ctx, left)
	if err != nil || used {
		return err == nil, err // that of a run which notes it when it is removed
	}
	switch left.Kind {
	case retention.FieldRemains:
		_, err = r.log.DropBlob(ctx, left.Name, before) // one that stays is of events that aren't recorded yet
		return err == nil, err
	case retention.SessionRemains:
		files, err := transcript.Open(ctx, r.log.JetStream(), r.log.Names(), r.log.Keys())
		if err == nil {
			err = files.Remove(ctx, left.Name)
		}
		return err == nil, err
	}
	if err := workspace.Drop(ctx, r.log.Conn(), r.log.Names(), left.Run); err != nil {
		return false, err
	}
	if err := snapshot.Drop(ctx, r.log, left.Run); err != nil {
		return false, err
	}
	if err := r.dropAlerts(ctx, left.Run); err != nil {
		return false, err
	}
	return true, nil
}

// dropAlerts removes the alerts of a run, and what the alerter has kept of it.
func (r *Recorder) dropAlerts(ctx context.Context, run string) error {
	js, n := r.log.JetStream(), r.log.Names()
	alerts, err := js.Stream(ctx, n.AlertsStream())
	if err == nil {
		err = alerts.Purge(ctx, jetstream.WithPurgeSubject(n.RunAlerts(run)))
	}
	if err != nil {
		return err
	}
	kv, err := js.KeyValue(ctx, n.StateBucket())
	if err != nil {
		return err
	}
	key := n.StateKey(subjects.AlerterConsumer, run)
	if _, err := kv.Get(ctx, key); errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	return keys.Delete(ctx, kv, key, 0)
}
