package runner_test

import (
	"fmt"
	"testing"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// A runner follows all of its runs with one consumer (RULES 22): the stream has no
// room for one per run.
func TestOneFollower(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		consumers := func() int {
			s, err := b.log.JetStream().Stream(t.Context(), "WAKE_EVENTS")
			if err != nil {
				t.Fatal(err)
			}
			return s.CachedInfo().State.Consumers
		}
		before := consumers()
		release := make(chan struct{})
		b.runner("r1", gated(release))
		const runs = 5
		for i := range runs {
			b.submit(fmt.Sprint("run", i), one)
		}
		for i := range runs {
			b.until(fmt.Sprint("run", i), wire.TypeAgentStart)
		}
		if n := consumers() - before; n != 1 {
			t.Errorf("%d runs are followed by %d consumers, want 1", runs, n)
		}
		close(release)
		for i := range runs {
			b.ended(fmt.Sprint("run", i))
		}
	})
}
