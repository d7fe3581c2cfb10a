//go:build parked

package runner_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
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

// saveSnapshot stores the state of a run.
func (b *bench) saveSnapshot(states *snapshot.Store, id string) error {
	s := run.New(id)
	err := snapshot.Fold(b.t.Context(), b.log, s, 0)
	if err == nil {
		_, err = states.Save(b.t.Context(), s, snapshot.Stored{})
	}
	return err
}

// endings tells of each run that ends from now on.
func (b *bench) endings() <-chan string {
	_, last, err := b.log.Bounds(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan string, 1000)
	b.background(func(ctx context.Context) error {
		for e, err := range b.log.Follow(ctx, eventlog.Query{From: last + 1}) {
			if err != nil {
				return err
			}
			if e.Event == nil || e.Event.Type() != wire.TypeFlowComplete {
				continue
			}
			select {
			case ended <- e.RunID:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return ended
}

// TestParkedCost: a parked run costs its runner less than 2 kB and no goroutine, and all that are due in the same second are
// woken, some at a time. Every second one has a snapshot. See make parked.
func TestParkedCost(t *testing.T) {
	const writers = 256
	n := *manyParked
	b := newBench(t)
	due := time.Now().Add(45*time.Second + time.Duration(n)*5*time.Millisecond/2)
	begun := time.Now()
	events := make(chan error)
	states, err := snapshot.Open(t.Context(), b.log)
	if err != nil {
		t.Fatal(err)
	}
	for w := range writers {
		go func() {
			var err error
			for i := w; i < n && err == nil; i += writers {
				id := fmt.Sprintf("run%06d", i)
				b.park(id, "r1", due)
				if i%2 == 0 {
					err = b.saveSnapshot(states, id)
				}
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
	ended := b.endings()
	<-time.After(time.Until(due))
	c0, t0 = cpu(t), time.Now()
	peak := 0
	for seen := 0; seen < n; {
		select {
		case <-ended:
			seen++
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d have ended, and no other one for a minute", seen, n)
		}
		peak = max(peak, runtime.NumGoroutine())
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
