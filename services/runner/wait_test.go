package runner_test

import (
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

const sleepFlow = `
name: sleeper
nodes:
  - {id: s, type: sleep, input: {for: 10m}}
`

// TestSleepOutlivesItsRunner: until when a run waits is on record, once. A runner that takes it over wakes it then, and at
// once if that has passed.
func TestSleepOutlivesItsRunner(t *testing.T) {
	for name, away := range map[string]time.Duration{"before it is due": 2 * time.Minute, "after it was due": 30 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				r1 := b.process("r1", &scripted{say: echo})
				b.submit("run1", sleepFlow)
				entries := b.until("run1", wire.TypeNodeWaiting)
				last := entries[len(entries)-1].Event
				due := time.UnixMilli(last.Payload.(*wire.NodeWaiting).Until)
				if want := time.UnixMilli(last.Timestamp).Add(10 * time.Minute); due.Sub(want).Abs() > time.Second {
					t.Fatalf("it sleeps until %s, not %s", due, want)
				}
				r1.kill()
				<-time.After(away)
				back := time.Now()
				b.process("r2", &scripted{say: echo})
				state, entries := b.ended("run1")
				if state.Result != wire.FlowStatusComplete || state.Nodes["s"].Due != 0 {
					t.Errorf("it ended as %s:\n%s", state.Result, story(entries))
				}
				waits, woken := 0, time.Time{}
				for _, e := range entries {
					switch e.Event.Payload.(type) {
					case *wire.NodeWaiting:
						waits++
					case *wire.NodeComplete:
						woken = time.UnixMilli(e.Event.Timestamp)
					}
				}
				earliest := due
				if back.After(due) {
					earliest = back
				}
				if late := woken.Sub(earliest); waits != 1 || late < 0 || late > time.Minute {
					t.Errorf("it waited %d times and was woken %s late:\n%s", waits, late, story(entries))
				}
			})
		})
	}
}

// TestPausedWhileItSleeps: a pause doesn't make the wait longer, and one that was due meanwhile is over when the run goes on.
func TestPausedWhileItSleeps(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", sleepFlow)
		b.until("run1", wire.TypeNodeWaiting)
		b.command("run1", wire.Command{Type: "pause"})
		b.until("run1", wire.TypeFlowPaused)
		<-time.After(20 * time.Minute)
		if s := b.fold("run1", b.read("run1")); s.Status != wire.RunPaused || s.NodeStatus["s"] != wire.NodeRunning {
			t.Fatalf("the run is %s, its node %s", s.Status, s.NodeStatus["s"])
		}
		b.command("run1", wire.Command{Type: "resume"})
		state, entries := b.ended("run1")
		late, _ := state.Outputs["s"].Get("lateMs").Any().(int64)
		if ms := time.Duration(late) * time.Millisecond; state.Result != wire.FlowStatusComplete || ms < 9*time.Minute || ms > 12*time.Minute {
			t.Errorf("it ended as %s, %s late:\n%s", state.Result, ms, story(entries))
		}
	})
}
