package runner_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// An agent whose call or whose result can't be stored fails; it isn't started again
// and again.
func TestUnfitEnd(t *testing.T) {
	for name, say := range map[string]wire.Payload{
		"result": &wire.AgentComplete{Result: "\xff"},
		"error":  &wire.AgentError{ErrorType: wire.ErrorException, Message: "\xff", Severity: wire.SeverityError},
		"call":   &wire.ToolIntent{ToolName: "\xff", ToolInput: wire.RawString("x")},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &scripted{play: func(_ *session, yield func(wire.Payload) bool) {
					yield(say)
				}}
				b.runner("r1", p)
				b.submit("run1", one)
				start := time.Now()
				state, entries := b.ended("run1")
				if state.Result != wire.FlowStatusFailed || len(p.started()) != 1 || time.Since(start) > time.Second {
					t.Errorf("run ended as %s after %s, %d agents:\n%s", state.Result, time.Since(start), len(p.started()), story(entries))
				}
				if !strings.Contains(state.Error, "can't be stored") {
					t.Errorf("the error is %q", state.Error)
				}
			})
		})
	}
}

// Commands to different runs may have the same id: each is on record.
func TestStraysOfOneID(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		for _, id := range []string{"nobody", "nobody-else"} {
			b.command(id, wire.Command{Type: "resume", ID: "same"})
			<-time.After(time.Minute)
		}
		if n := len(records(b.read("_"))); n != 2 {
			t.Errorf("%d of 2 commands are on record", n)
		}
	})
}

// A command that was rejected because there was no such run isn't obeyed when there
// is one.
func TestRejectedStaysRejected(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.command("run1", wire.Command{Type: "abort", ID: "c1"})
		<-time.After(time.Minute)
		b.submit("run1", chain)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || len(records(entries)) != 0 || len(records(b.read("_"))) != 1 {
			t.Errorf("run is %s:\n%s", state.Status, story(entries))
		}
	})
}

// A runner that stalls between its look for a run and the record that there is none, and goes
// on after the run has begun, adds nothing: the command is its run's, once.
func TestRejectedTooLate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.command("run1", wire.Command{Type: "bookmark", ID: "c1", Label: "here"})
		w, err := b.log.Claim(t.Context(), "_", wire.RunNode, eventlog.Claim{Runner: "slow"})
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		b.runner("r1", gated(release))
		b.submit("run1", one)
		b.until("run1", wire.TypeAgentStart)
		record := &wire.CommandReceived{Command: wire.RawString("bookmark"), CommandID: "c1", AtPos: 1, Reason: "no such run"}
		if _, err := w.Append(t.Context(), &wire.Event{Payload: record}); !errors.Is(err, eventlog.ErrFenced) {
			t.Errorf("the late record: %v", err)
		}
		close(release)
		_, entries := b.ended("run1")
		if n, stray := len(records(entries)), len(records(b.read("_"))); n != 1 || stray != 0 {
			t.Errorf("%d records of the run, %d of none:\n%s", n, stray, story(entries))
		}
	})
}

// A runner that is told to end while the server is away ends.
func TestEndsWithoutServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := b.process("r1", &scripted{say: echo})
		<-time.After(time.Minute)
		p.gate.close()
		<-time.After(time.Minute)
		start := time.Now()
		p.stop()
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("ending took %s", took)
		}
	})
}

// What another runner has put on record, and not acknowledged, isn't recorded again,
// also if it comes for the first time.
func TestStrayRecordedByAnother(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.command("nobody", wire.Command{Type: "resume", ID: "c1"})
		w, err := b.log.Claim(t.Context(), "_", wire.RunNode, eventlog.Claim{Runner: "slow"})
		if err != nil {
			t.Fatal(err)
		}
		record := &wire.CommandReceived{Command: wire.RawString("resume"), CommandID: "c1", AtPos: 1, Reason: "no such run"}
		if _, err := w.Append(t.Context(), &wire.Event{Payload: record}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		b.runner("r1", &scripted{say: echo})
		<-time.After(time.Minute)
		if n := len(records(b.read("_"))); n != 1 {
			t.Errorf("the command is on record %d times", n)
		}
	})
}
