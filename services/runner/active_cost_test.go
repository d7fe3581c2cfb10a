package runner_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// TestActiveCost: while an agent says nothing, its run costs one goroutine, that of the worker, which waits for the agent, and few bytes. Its
// stack is small: what is long over has left nothing on it.
func TestActiveCost(t *testing.T) {
	const runs = 100
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // each processor keeps stacks for goroutines to come, 128 kB at most
	b := newBench(t)
	var waiting atomic.Int64
	idle := &scripted{play: func(s *session, _ func(wire.Payload) bool) {
		waiting.Add(1)
		<-s.ctx.Done()
	}}
	stop := b.runner("r1", idle, func(c *runner.Config) { c.MaxAgents = runs + 1 })
	begin := func(from, to int) {
		for i := from; i < to; i++ {
			b.submit(fmt.Sprint("run", i), "name: idle\nnodes:\n  - {id: a, type: agent, input: {prompt: wait}}\n")
		}
		b.awaits(fmt.Sprint(to, " agents wait"), func() bool { return waiting.Load() == int64(to) })
	}
	begin(0, 1)
	goroutines := runtime.NumGoroutine()
	heap, stacks := bytesInUse()
	begin(1, 1+runs)
	perRun := func() float64 { return float64(runtime.NumGoroutine()-goroutines) / runs }
	b.awaits("few goroutines are left", func() bool { return perRun() < 1.5 }) // leases that are being renewed have more for a moment
	// States are packed when nothing has happened for a while.
	for begun := time.Now(); ; runtime.Gosched() {
		h, s := bytesInUse()
		h, s = (h-heap)/runs, (s-stacks)/runs
		if h < heapLimit && s < stackLimit {
			break
		}
		if time.Since(begun) > 30*time.Second {
			t.Errorf("a run has %d bytes of the heap, the server's included, and %d of stacks", h, s)
			break
		}
	}
	stop()
}

// What a run may cost in bytes. It is 15 and 4 thousand once states are packed, the server included; it was 32 and 10 when each held its own.
const (
	heapLimit  = 23_000
	stackLimit = 8_000
)

// bytesInUse is what the heap and stacks take, once these have shrunk: each collection halves those that are too large.
func bytesInUse() (heap, stacks int64) {
	var m runtime.MemStats
	for range 6 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse)
}
