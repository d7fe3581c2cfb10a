package natstest

import (
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// Bubble runs f in a [synctest] bubble in which [Start] and [New] may be called.
// The servers then live on the bubble's clock: acknowledgement waits, message
// ages, leases and client timeouts elapse without anyone waiting for them.
//
// In a bubble use the client's context forms (NextMsgWithContext,
// RequestWithContext, FlushWithContext): the others take timers from a pool
// that bubbles would share. TCP, subprocesses and clusters stop the clock.
func Bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	// The server keeps one clock goroutine per process, started on first use
	// and blocked on a channel made at init, which would stall the bubble.
	// Holding a reference keeps that goroutine outside.
	ats.Register()
	defer ats.Unregister()
	synctest.Test(t, f)
}
