package service_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"code.wake.dev/wake/internal/service"
)

// TestWithSignals ends a context by each signal that asks for an orderly end, also where
// the tests themselves are run below nohup.
func TestWithSignals(t *testing.T) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // which ends that it is ignored
	signal.Stop(heard)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			ctx, stop := service.WithSignals(t.Context())
			defer stop()
			raise(t, s)
			<-ctx.Done()
		})
	}
}

// TestIgnoredHangup leaves SIGHUP to nohup, below which it is ignored.
func TestIgnoredHangup(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop := service.WithSignals(t.Context())
	defer stop()
	raise(t, syscall.SIGHUP)
	raise(t, syscall.SIGTERM)
	<-ctx.Done()
	if !signal.Ignored(syscall.SIGHUP) {
		t.Errorf("SIGHUP is obeyed (%v)", context.Cause(ctx))
	}
}

func raise(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
}
