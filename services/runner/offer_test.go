package runner_test

import (
	"fmt"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// A node that waits for a worker is offered again as its run goes on, also where its owner obeys the pause and the resumption in one
// look: a runner that took the last offer while the run was paused has let it fall.
func TestOfferBehindResumption(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", &puppet{})
		b.submit("run1", "name: far\nworkspace: shared\nnodes:\n  - {id: a, type: agent, pool: gpu, input: {prompt: a}}\n")
		b.until("run1", wire.TypeNodeScheduled)
		offers := func() int { return int(b.waiting()) }
		b.awaits("the first offer", func() bool { return offers() == 1 })
		for n := 2; n < 6; n++ {
			r1.gate.delay("command:received", 100*time.Millisecond) // the others come meanwhile
			b.command("run1", wire.Command{Type: "bookmark", Label: fmt.Sprint("l", n)})
			b.command("run1", wire.Command{Type: "pause"})
			b.command("run1", wire.Command{Type: "resume"})
			if took := b.awaits("the next offer", func() bool { return offers() == n }); took > time.Second {
				t.Errorf("it was offered again after %v", took)
			}
		}
	})
}
