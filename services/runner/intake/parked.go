package intake

import (
	"context"
	"time"

	"code.wake.dev/wake/services/runner/internal/registry"
)

const (
	// wakesAtOnce bounds the parked runs that are taken at once, however many are due.
	wakesAtOnce = 64
	// clockEvery is how often the clock is looked at: it may have been set.
	clockEvery = time.Second
)

// wakeRuns wakes parked runs until ctx ends, when they are due or a command has come. Those are owned under hard.
func (in *Intake) wakeRuns(ctx, hard context.Context) error {
	places := make(chan struct{}, wakesAtOnce)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		reg, found := in.nextDue(ctx)
		if !found {
			return nil
		}
		in.beginAdoption(hard, reg, places)
	}
}

// nextDue waits for a parked run that this runner is to wake. It reports false when ctx ends.
func (in *Intake) nextDue(ctx context.Context) (reg registry.Registration, found bool) {
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		reg, found, next := in.cfg.Registry.TakeDue(now.UnixMilli())
		switch {
		case !found:
		case in.cfg.Owned.Has(reg.Run): // it is about to be let go, or being woken
			continue
		case in.isOthers(reg, now):
			in.cfg.Registry.Postpone(reg.Run, now.Add(in.cfg.Leases.TTL()).UnixMilli())
			continue
		default:
			return reg, true
		}
		due := time.NewTimer(min(clockEvery, max(0, time.Until(time.UnixMilli(min(next, now.Add(time.Hour).UnixMilli()))))))
		select {
		case <-due.C:
		case <-clock.C:
		case <-in.cfg.Registry.Alarms():
		case <-ctx.Done():
		}
		due.Stop()
	}
	return reg, false
}

// isOthers reports whether a run that is due is left to the runner that has parked it: that wakes it unless it is gone, or
// late by a lease's time to live.
func (in *Intake) isOthers(reg registry.Registration, now time.Time) bool {
	late := now.Sub(time.UnixMilli(reg.Due))
	return reg.Due != 0 && late >= 0 && late < in.cfg.Leases.TTL() && reg.Runner != in.cfg.ID && in.cfg.Leases.Present(reg.Runner)
}
