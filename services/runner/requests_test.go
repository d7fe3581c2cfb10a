package runner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

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

// A run that has begun goes on while its request is taken out of the queue: here the server doesn't even hear that it should be.
func TestRequestHoldsUpNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		deaf := natstest.New(t, func(o *server.Options) {
			o.Users = []*server.User{{Username: "wake", Password: "wake", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.WAKE_QUEUE.>"}},
			}}}
		})
		b := newBenchOn(t, deaf, nats.UserInfo("wake", "wake"))
		b.runner("r1", &scripted{say: echo})
		begun := time.Now()
		b.submit("run1", "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
		b.ended("run1")
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the run took %s", took)
		}
	})
}
