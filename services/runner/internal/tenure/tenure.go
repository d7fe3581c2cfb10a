// Package tenure says for how long an owner or a worker may act, and what it may still do
// when that is over.
package tenure

import (
	"context"
	"errors"
	"log/slog"
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

// Release gives a lease back. One that can't be given back expires.
func Release(ctx context.Context, l *lease.Lease, logger *slog.Logger) {
	ctx, cancel := Rest(ctx)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		logger.Warn("lease not released", "error", err)
	}
}
