package runner_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// TestActiveCost: while an agent says nothing, its run costs one goroutine, that of the worker, which waits for the agent. Its stack is
// small: what is long over has left nothing on it.
func TestActiveCost(t *testing.T) {
	const runs = 100
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
	goroutines, stacks := runtime.NumGoroutine(), stacksInUse()
	begin(1, 1+runs)
	perRun := func() float64 { return float64(runtime.NumGoroutine()-goroutines) / runs }
	b.awaits("few goroutines are left", func() bool { return perRun() < 1.5 }) // leases that are being renewed have more for a moment
	// 7.5 thousand, and the double behind other tests; it was 40 with four goroutines.
	if each := float64(stacksInUse()-stacks) / runs; each > 20_000 {
		t.Errorf("the goroutine of a run has a stack of %.0f bytes", each)
	}
	stop()
}

// stacksInUse is what stacks take, once they have shrunk: each collection halves those that are too large.
func stacksInUse() int64 {
	var m runtime.MemStats
	for range 6 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.StackInuse)
}
