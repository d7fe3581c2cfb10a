package service

import (
	"context"
	"os/signal"
	"syscall"
)

// WithSignals returns a context that ends with the first SIGINT or SIGTERM. A
// second one has its usual effect: it ends the process at once.
func WithSignals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
