package natstest

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/nats-io/nats-server/v2/server/ats"
)

// maxBubbleTime is the time that no test takes in a bubble. One that waits for what never
// comes would keep the servers busy for ever: the clock goes on for them.
const maxBubbleTime = 60 * time.Hour

// Bubble runs f in a [synctest] bubble in which [Start] and [New] may be called.
// The servers then live on the bubble's clock: acknowledgement waits, message
// ages, leases and client timeouts elapse without a wait.
//
// TCP, subprocesses and clusters stop the clock. A parallel test must not call
// Bubble: others would share a pool of timers with it.
func Bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if refs.Add(1) != 1 {
		t.Fatal("natstest: a server runs outside the bubble")
	}
	defer refs.Add(-1)
	defer aloneOnCPU()()
	drainTimers()
	defer drainTimers()
	synctest.Test(t, func(t *testing.T) {
		bubbled.Store(true)
		t.Cleanup(func() { bubbled.Store(false) })
		stop := make(chan struct{})
		done := make(chan struct{})
		utime.Store(time.Now().UnixNano())
		go func() {
			defer close(done)
			keepClock(t.Name(), stop)
		}()
		t.Cleanup(func() {
			<-time.After(time.Second) // the client looks every 100 ms whether a drain is over
			close(stop)
			<-done
		})
		f(t)
	})
}

// bubbled is whether a test runs in a bubble: there is one at a time.
var bubbled atomic.Bool // as the bubble

// settleBubble lets servers in a bubble answer what they were asked. One that is shut down sleeps under a lock, and a request
// that waits for the lock stops the bubble's time for ever.
func settleBubble() {
	if bubbled.Load() {
		synctest.Wait()
	}
}

// The server has one clock per process, package ats, by which messages and keys
// age. Its goroutine is started by the first server and blocks on a channel made
// at init, which would stall the bubble; and outside the bubble it would tell the
// real time, by which everything in the bubble is decades old and expires at the
// first look. So its reference count is held without starting it, and the bubble
// keeps the clock itself.
//
//go:linkname refs github.com/nats-io/nats-server/v2/server/ats.refs
var refs atomic.Int64 // the server's

//go:linkname utime github.com/nats-io/nats-server/v2/server/ats.utime
var utime atomic.Int64 // the server's

// keepClock keeps the server's clock by the clock of the bubble of a test.
func keepClock(test string, stop <-chan struct{}) {
	t := time.NewTicker(ats.TickInterval)
	defer t.Stop()
	end := time.Now().Add(maxBubbleTime)
	for {
		select {
		case <-t.C:
			utime.Store(time.Now().UnixNano())
			if time.Now().After(end) {
				panic("natstest: " + test + ": " + maxBubbleTime.String() + " have passed in the bubble: what does the test wait for?")
			}
		case <-stop:
			return
		}
	}
}

// drainTimers keeps the client's timers out of the next bubble. NextMsg, Request,
// Flush and Drain take them from a sync.Pool, and a timer that was made in
// another bubble is fatal. The second collection empties every pool.
func drainTimers() {
	runtime.GC()
	runtime.GC()
}
