package runner_test

import (
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
)

// A run of one step asks the server little, since each question is processor time of the server and the runner: nothing is asked
// twice, and what doesn't change from run to run isn't asked for each.
func TestRunAsksLittle(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		const set = "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n"
		b.submit("first", set)
		b.ended("first")
		<-time.After(50 * time.Millisecond)
		asked, err := b.nc.SubscribeSync("$JS.API.>")
		if err != nil {
			t.Fatal(err)
		}
		b.submit("run1", set)
		<-time.After(50 * time.Millisecond) // by then everything stands still, and the services' own questions of every 5 s are far
		var own []string
		for n, _, _ := asked.Pending(); n > 0; n, _, _ = asked.Pending() {
			m, err := asked.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			about := m.Subject + " " + string(m.Data)
			if strings.Contains(about, "run1") || strings.Contains(about, ".INFO.") {
				own = append(own, about)
			}
		}
		if len(own) > 5 {
			t.Errorf("%d questions:\n%s", len(own), strings.Join(own, "\n"))
		}
		b.ended("run1")
	})
}
