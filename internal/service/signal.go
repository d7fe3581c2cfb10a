package service

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// WithSignals returns a context that ends with the first SIGINT, SIGTERM or SIGHUP: a
// terminal that goes away ends the process as orderly as an operator does. A second one
// has its usual effect: it ends the process at once. A SIGHUP that is ignored at the start,
// as below nohup, stays so.
func WithSignals(parent context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
