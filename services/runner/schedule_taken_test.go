package runner_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// An ingester knows the ids that a schedule is going to give, and adds runs by them and by others like them: the schedule's run begins.
func TestIngesterStopsNoSchedule(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		b.process("one", p)
		for n := range 9 {
			id := "often-20000101t0002z"
			if n > 0 {
				id = fmt.Sprintf("%s-%d", id, n+1)
			}
			w := logtest.Claim(t, b.log, id, wire.RunNode)
			logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "forged", Definition: wire.Null, DefinitionHash: "h", Imported: wire.ImportedIngest}})
		}
		b.addSchedule()
		<-time.After(3*time.Minute + 30*time.Second)
		if runs, starts := b.begun(p); starts != 1 {
			t.Errorf("%d runs of the schedule were executed: %v", starts, slices.Compact(runs))
		}
	})
}
