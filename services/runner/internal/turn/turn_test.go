package turn_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"code.wake.dev/wake/services/runner/internal/turn"
)

// Calls are never lost: what was called before the last turn began has been seen by it. No two turns overlap.
func TestCallsAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made, seen atomic.Int64
		var busy atomic.Bool
		l := turn.NewLoop(func() bool {
			if busy.Swap(true) {
				t.Error("two turns at once")
			}
			seen.Store(made.Load())
			busy.Store(false)
			return false
		})
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 1000 {
					made.Add(1)
					l.Call()
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		if got := seen.Load(); got != 8000 {
			t.Errorf("the last turn has seen %d of 8000 calls", got)
		}
		l.Stop()
		made.Add(1)
		l.Call()
		synctest.Wait()
		if got := seen.Load(); got != 8000 {
			t.Error("a turn after Stop")
		}
	})
}

// Whoever calls a loop before its maker has begun the first turn, no two overlap.
func TestRunIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		turns, gate := 0, make(chan struct{})
		l := turn.NewBegun(func() bool {
			if busy.Swap(true) {
				t.Error("two turns at once")
			}
			turns++
			<-gate
			busy.Store(false)
			return false
		})
		l.Call()
		synctest.Wait()
		ended := make(chan bool)
		go func() { ended <- l.Run() }()
		synctest.Wait()
		close(gate)
		if <-ended || turns != 2 {
			t.Errorf("%d turns, want one for each call", turns)
		}
	})
}

// Stop waits for the turn that is being taken, also twice at once, and for none that has ended by itself.
func TestStopWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, gate := make(chan struct{}), make(chan struct{})
		var ended atomic.Bool
		l := turn.NewLoop(func() bool {
			close(begun)
			<-gate
			ended.Store(true)
			return false
		})
		l.Call()
		<-begun
		l.Call() // must not be taken: it would close begun again
		var stops sync.WaitGroup
		for range 2 {
			stops.Go(func() {
				l.Stop()
				if !ended.Load() {
					t.Error("Stop has returned before the turn ended")
				}
			})
		}
		synctest.Wait()
		close(gate)
		stops.Wait()

		turns := 0
		last := turn.NewLoop(func() bool { turns++; return true })
		last.Call()
		synctest.Wait()
		last.Call()
		last.Stop()
		if synctest.Wait(); turns != 1 {
			t.Errorf("%d turns after the last one", turns)
		}
	})
}
