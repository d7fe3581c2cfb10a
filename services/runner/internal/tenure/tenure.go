// Package tenure says for how long an owner or a worker may act, and what it may still do
// when that is over.
package tenure

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
)

// ErrLeaseLost ends what an owner or a worker does: another one may hold its lease.
var ErrLeaseLost = errors.New("lease lost")

// How long an owner that failed waits until it begins again, and a runner until it
// adopts a run again.
const (
	FirstPause = time.Second
	LastPause  = time.Minute
)

// GiveBack bounds what a task still does when its context has ended.
const GiveBack = 5 * time.Second

// Over reports whether an error says that another owner or worker may be at work.
func Over(err error) bool {
	return errors.Is(err, eventlog.ErrFenced) || errors.Is(err, ErrLeaseLost)
}

// Rest returns a context for what a task still does when its own has ended.
func Rest(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), GiveBack)
}

// Proof proves that a writer's claim is the last of its node, for its lease.
func Proof(w *eventlog.Writer, runner, process string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := w.Anchor(ctx, runner, process)
		if errors.Is(err, eventlog.ErrFenced) {
			return lease.ErrLost
		}
		return err
	}
}
