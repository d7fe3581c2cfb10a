package natstest

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// Bubble runs f in a [synctest] bubble in which [Start] and [New] may be called.
// The servers then live on the bubble's clock: acknowledgement waits, message
// ages, leases and client timeouts elapse without anyone waiting for them.
//
// TCP, subprocesses and clusters stop the clock. A parallel test must not call
// Bubble: others would share a pool of timers with it.
func Bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	// The server keeps one clock goroutine per process, started on first use
	// and blocked on a channel made at init, which would stall the bubble.
	// Holding a reference keeps that goroutine outside.
	ats.Register()
	defer ats.Unregister()
	drainTimers()
	defer drainTimers()
	synctest.Test(t, f)
}

// drainTimers keeps the client's timers out of the next bubble. NextMsg, Request,
// Flush and Drain take them from a sync.Pool, and a timer that was made in
// another bubble is fatal. The second collection empties every pool.
func drainTimers() {
	runtime.GC()
	runtime.GC()
}
