package intake

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"code.wake.dev/wake/internal/schedule"
	"code.wake.dev/wake/services/runner/internal/queue"
)

// fireSchedules asks for the runs of schedules when they are due. All runners do: a run is asked for by the id that its
// schedule and its time give it, so that it begins once, and what has been asked for is noted behind it, so that a runner
// that dies in between leaves it to the others.
func (in *Intake) fireSchedules(ctx context.Context) error {
	store, err := schedule.Open(ctx, in.cfg.Log.JetStream(), in.subjectNames(), in.cfg.Log.Keys())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	changes := make(chan schedule.Entry)
	var watching sync.WaitGroup
	var lost error // why the watch has ended; to be read behind watching
	watching.Go(func() {
		defer close(changes)
		for e, err := range store.Watch(ctx) {
			if err != nil {
				lost = err
				return
			}
			select {
			case changes <- e:
			case <-ctx.Done():
				return
			}
		}
	})
	err = in.keepSchedules(ctx, store, changes)
	stop()
	watching.Wait()
	return errors.Join(err, lost)
}

// scheduled is a schedule of the installation, and when this runner looks at it again.
type scheduled struct {
	schedule.Entry
	next time.Time
}

// keepSchedules waits for what is due, and for changes, until there come no more. A change has one schedule looked at, the time those
// that are due.
func (in *Intake) keepSchedules(ctx context.Context, store *schedule.Store, changes <-chan schedule.Entry) error {
	all := map[string]*scheduled{} // by key
	wake := time.Now().Add(maxSleep)
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	for {
		select {
		case e, ok := <-changes:
			if !ok {
				return nil
			}
			delete(all, e.Key)
			if e.Err != nil {
				in.cfg.Logger.Error("schedule can't be read, it begins nothing", "key", e.Key, "error", e.Err)
				continue
			}
			if e.Gone {
				continue
			}
			one := &scheduled{Entry: e}
			all[e.Key] = one
			if in.lookAt(ctx, store, one); one.next.After(wake) {
				continue
			}
			wake = one.next
		case now := <-timer.C:
			wake = now.Add(maxSleep)
			for _, one := range all {
				if !one.next.After(now) {
					in.lookAt(ctx, store, one)
				}
				if one.next.Before(wake) {
					wake = one.next
				}
			}
		}
		timer.Reset(time.Until(wake))
	}
}

// maxSleep bounds how long clocks of machines that slept, or were set, go unnoticed.
const maxSleep = time.Minute

// retryPause is how long the runner waits after it failed to ask for the run of a schedule, before it looks at that schedule again.
const retryPause = 10 * time.Second

// lookAt asks for what is due of a schedule. One for which that fails doesn't keep the others from their time.
func (in *Intake) lookAt(ctx context.Context, store *schedule.Store, one *scheduled) {
	next, err := in.fireSchedule(ctx, store, &one.Entry)
	latest := time.Now().Add(maxSleep)
	if err != nil {
		if ctx.Err() == nil {
			in.cfg.Logger.Warn("what is due of a schedule isn't asked for yet, tries again", "schedule", one.Name, "error", err)
		}
		next = time.Now().Add(retryPause)
	}
	if one.next = next; next.After(latest) {
		one.next = latest
	}
}

// fireSchedule asks for what is due of a schedule, and says when to look again.
func (in *Intake) fireSchedule(ctx context.Context, store *schedule.Store, e *schedule.Entry) (time.Time, error) {
	now := time.Now()
	never := now.Add(maxSleep)
	due, settled, err := e.Due(now)
	if err != nil {
		in.cfg.Logger.Error("schedule not kept", "schedule", e.Name, "error", err)
		return never, nil
	}
	for _, at := range due {
		request := e.RequestAt(at)
		if request.RunID, err = in.freeID(ctx, request.RunID); err != nil {
			return now, err
		}
		switch err := in.cfg.Queue.AskOnce(ctx, request); {
		case err == nil:
			e.Asked = at.UnixMilli()
			in.cfg.Logger.Info("run of a schedule is due", "schedule", e.Name, "run", request.RunID, "late", now.Sub(at))
		case isTooLarge(err):
			in.cfg.Logger.Error("run of a schedule can't be asked for", "schedule", e.Name, "error", err)
		default:
			return now, err
		}
	}
	if !settled.IsZero() {
		e.Settle(settled)
		if err := store.Update(ctx, *e); err != nil && !errors.Is(err, schedule.ErrChanged) { // by another runner, or by an operator: it comes by the watch
			return now, err
		}
	}
	if e.Paused {
		return never, nil
	}
	next, err := e.Next(e.Settled(now))
	if err != nil {
		return never, nil //nolint:nilerr // that was said
	}
	if soon := now.Add(time.Second); next.Before(soon) && !next.After(now) {
		return soon, nil // there is more to catch up with
	}
	return next, nil
}

// maxTaken is how many ids of a run are tried.
const maxTaken = 9

// freeID returns the id of a run of a schedule, or one like it if an imported run has that id: an ingester can't keep the schedule's run from
// beginning. All runners find the same id, and an ingester can't tell it in advance. If none is free, it is the id itself.
func (in *Intake) freeID(ctx context.Context, id string) (string, error) {
	for n := range maxTaken {
		other := id
		switch {
		case n == 1:
			other = id + "-2"
		case n > 1:
			sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", in.cfg.Log.Incarnation(), id, n))
			other = fmt.Sprintf("%s-%x", id, sum[:5])
		}
		s, err := in.cfg.Runs.State(ctx, other)
		if err != nil {
			return "", err
		}
		if s.Imported == "" {
			return other, nil
		}
		in.cfg.Logger.Warn("a run that was imported has the id of one of a schedule", "run", other)
	}
	return id, nil
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*queue.TooLargeError](err)
	return ok
}
