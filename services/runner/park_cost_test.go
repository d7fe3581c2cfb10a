//go:build parked

package runner_test

import (
	"flag"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

var manyParked = flag.Int("parked", 10_000, "park so `many` runs in TestParkedCost")

// cpu is what this process has used so far.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is what is alive in this process.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestParkedCost: a parked run costs its runner less than 2 kB and no goroutine, and all that are due in the same second are
// woken, some at a time. See make parked.
func TestParkedCost(t *testing.T) {
	const writers = 256
	n := *manyParked
	b := newBench(t)
	due := time.Now().Add(45*time.Second + time.Duration(n)*4*time.Millisecond)
	begun := time.Now()
	events := make(chan error)
	for w := range writers {
		go func() {
			var err error
			for i := w; i < n && err == nil; i += writers {
				b.park(fmt.Sprintf("run%06d", i), "r1", due)
			}
			events <- err
		}()
	}
	for range writers {
		if err := <-events; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d runs were made in %s, they are due in %s", n, time.Since(begun).Round(time.Millisecond), time.Until(due).Round(time.Second))

	before := heap()
	goroutines := runtime.NumGoroutine()
	stop := b.runner("r1", &scripted{say: echo}, func(c *runner.Config) { c.ParkAfter = time.Second })
	<-time.After(2 * time.Second)
	for {
		a := heap()
		<-time.After(500 * time.Millisecond)
		if c := heap(); c-a < 100_000 && c > a-100_000 {
			break
		}
	}
	each := float64(heap()-before) / float64(n)
	more := runtime.NumGoroutine() - goroutines
	t.Logf("while parked: %.0f bytes of heap per run (the runner's own %d goroutines and buffers included), before %.1f MB", each, more, float64(before)/1e6)
	c0, t0 := cpu(t), time.Now()
	<-time.After(5 * time.Second)
	t.Logf("CPU of the process, the server's included, while all are parked: %.2f %% of a core", 100*float64(cpu(t)-c0)/float64(time.Since(t0)))
	if each > 2000 {
		t.Errorf("a parked run costs %.0f bytes", each)
	}
	if more > 200 {
		t.Errorf("%d goroutines", more)
	}
	if time.Until(due) <= 0 {
		t.Fatal("the machine was too slow: they were due before that was measured")
	}
	<-time.After(time.Until(due))
	c0, t0 = cpu(t), time.Now()
	kv := b.states()
	peak := 0
	for {
		peak = max(peak, runtime.NumGoroutine())
		keys, err := kv.ListKeysFiltered(t.Context(), subjects.Default.ServiceStates("runner"))
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for range keys.Keys() {
			left++
		}
		if left == 0 {
			break
		}
		<-time.After(time.Second)
	}
	took := time.Since(t0)
	t.Logf("all were woken and ended within %s: %.0f/s, %.1f ms of CPU each (the server's included), at most %d goroutines", took.Round(time.Millisecond),
		float64(n)/took.Seconds(), 1000*(cpu(t)-c0).Seconds()/float64(n), peak)
	stop()
	for _, i := range []int{0, n / 2, n - 1} {
		state, entries := b.ended(fmt.Sprintf("run%06d", i))
		if state.Result != wire.FlowStatusComplete || len(claims(entries)) != 2 {
			t.Errorf("run%06d ended as %s:\n%s", i, state.Result, story(entries))
		}
	}
}
