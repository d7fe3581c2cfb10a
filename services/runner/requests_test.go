package runner_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
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
		led := slices.DeleteFunc(slices.Clone(own), func(about string) bool { return strings.HasPrefix(about, "$JS.API.DIRECT.GET.") })
		if len(own) > 3 || len(led) > 0 { // those to a leader cost three times as much
			t.Errorf("%d questions, %d of them to a leader:\n%s", len(own), len(led), strings.Join(own, "\n"))
		}
		b.ended("run1")
	})
}

// Requests for runs, and alerts, are asked for many at a time, since to ask costs as much as one of them.
func TestAsksAhead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		asked, err := b.nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.*.*")
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		b.runner("r1", &scripted{say: echo})
		for i := range 30 {
			id := fmt.Sprintf("run%d", i)
			b.publish("wake.alerts."+id+"._run.completion.x", wire.Alert{V: wire.Version, RunID: id})
			b.submit(id, "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
			b.ended(id)
		}
		<-time.After(time.Second)
		if b.waiting() > 0 {
			t.Errorf("%d requests are left", b.waiting())
		}
		for n, _, _ := asked.Pending(); n > 0; n, _, _ = asked.Pending() {
			m, err := asked.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			counts[m.Subject]++
		}
		for _, of := range []string{"WAKE_QUEUE.runs", "WAKE_ALERTS.notices"} {
			if n := counts["$JS.API.CONSUMER.MSG.NEXT."+of]; n < 1 || n > 2 {
				t.Errorf("%s was asked %d times for 30 messages", of, n)
			}
		}
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

// A run of one step is one append: its claim, its beginning, and all that is decided at once. Its request, its registration and its
// alerts aside, that is all that is stored of it, and the services fold it at once.
func TestRunIsOneAppend(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		b := newBench(t)
		b.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
		b.process("r1", &scripted{say: echo})
		b.submit("run1", "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
		_, entries := b.ended("run1")
		<-time.After(time.Second)
		if n := len(named(t, spans, "publish wake.events")); n != 1 || len(entries) != 7 {
			t.Errorf("%d appends:\n%s", n, story(entries))
		}
	})
}

// A run that is over with its first append is never registered, and has no folder: its request is in the queue until then.
func TestRunAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		folders := t.TempDir()
		b.process("r1", &scripted{say: echo}, func(c *runner.Config) { c.Workspaces = folders })
		told, err := b.nc.SubscribeSync("$KV.WAKE_STATE.runner.>")
		if err != nil {
			t.Fatal(err)
		}
		b.submit("run1", "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
		b.ended("run1")
		<-time.After(time.Second)
		if n, _, _ := told.Pending(); n > 0 || b.waiting() > 0 {
			t.Errorf("it is registered, or its request is left: %d, %d", n, b.waiting())
		}
		b.submit("run2", single)
		b.ended("run2")
		if made, err := os.ReadDir(folders); err != nil || len(made) != 1 || made[0].Name() != "run2" {
			t.Errorf("folders: %v, %v", made, err)
		}
		if n, _, _ := told.Pending(); n == 0 {
			t.Error("a run that goes on isn't registered")
		}
	})
}

// A process that dies between any two events of such a run loses nothing: the request comes again, and the run goes on, once.
func TestRunAtOnceIsCutShort(t *testing.T) {
	for stored := range 7 {
		natstest.Bubble(t, func(t *testing.T) {
			b := newBench(t)
			r1 := b.process("r1", &scripted{say: echo})
			cut, left := make(chan struct{}), stored
			var look func()
			look = func() {
				if left--; left >= 0 {
					r1.gate.before("HPUB wake.events.run1", look)
					return
				}
				r1.gate.close()
				close(cut)
			}
			r1.gate.before("HPUB wake.events.run1", look)
			b.submit("run1", "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
			<-cut
			r1.kill()
			if n := len(b.read("run1")); n != stored {
				t.Fatalf("%d events are stored, not %d", n, stored)
			}
			b.process("r2", &scripted{say: echo})
			state, entries := b.ended("run1")
			if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowStart) != 1 || count(entries, wire.TypeNodeComplete) != 1 {
				t.Errorf("cut after %d events, the run ended as %s:\n%s", stored, state.Result, story(entries))
			}
			<-time.After(time.Minute)
			if value, _ := b.registered("run1"); value != nil || b.waiting() > 0 {
				t.Errorf("cut after %d events, something is left of it: %s, %d messages", stored, value, b.waiting())
			}
		})
	}
}

// What waits for a run is obeyed before anything is decided for it.
func TestCommandBeforeTheRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.command("run1", wire.Command{Type: "abort"})
		b.submit("run1", "name: set\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
		b.runner("r1", &scripted{say: echo})
		if state, entries := b.ended("run1"); state.Status != wire.RunAborted || count(entries, wire.TypeNodeScheduled) != 0 {
			t.Errorf("%s:\n%s", state.Status, story(entries))
		}
	})
}

// A command that comes while its run begins, and that a runner which found no such run is about to reject, is the run's, once.
func TestRejectedWhileItBegins(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		r1 := b.process("r1", gated(release))
		var slow *eventlog.Writer
		r1.gate.before("run:claimed", func() {
			var err error
			if _, err = b.log.JetStream().Publish(t.Context(), subjects.Default.Command("run1"), []byte(`{"type":"bookmark","id":"c1","label":"here"}`)); err == nil {
				slow, err = b.log.Claim(t.Context(), "_", wire.RunNode, eventlog.Claim{Runner: "slow"})
			}
			if err != nil {
				t.Error(err)
			}
		})
		b.submit("run1", one)
		b.until("run1", wire.TypeCommandReceived)
		record := &wire.CommandReceived{Command: wire.RawString("bookmark"), CommandID: "c1", AtPos: 1, Reason: "no such run"}
		if _, err := slow.Append(t.Context(), &wire.Event{Payload: record}); !errors.Is(err, eventlog.ErrFenced) {
			t.Errorf("the late record: %v", err)
		}
		close(release)
		_, entries := b.ended("run1")
		if n, stray := len(records(entries)), len(records(b.read("_"))); n != 1 || stray != 0 {
			t.Errorf("%d records of the run, %d of none:\n%s", n, stray, story(entries))
		}
	})
}
