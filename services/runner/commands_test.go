package runner_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// tell stores a command and returns what became of it.
func (b *bench) tell(c wire.Command) wire.CommandResponse {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), min(waitLimit(), time.Minute))
	defer cancel()
	_, last, err := b.log.Bounds(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	c.ID = cmp.Or(c.ID, rand.Text())
	data, err := wire.Marshal(c)
	if err != nil {
		b.t.Fatal(err)
	}
	ack, err := b.log.Send(ctx, subjects.Default.Command(cmp.Or(c.RunID, subjects.NoRun)), data)
	if err != nil {
		b.t.Fatalf("%s: %v", c.Type, err)
	}
	answer := wire.CommandResponse{CommandID: c.ID, RunID: c.RunID}
	for e, err := range b.log.Follow(ctx, eventlog.Query{Kinds: []wire.Kind{wire.KindFlow}, From: last + 1}) {
		if err != nil || e.Event == nil {
			continue // time is over, or it is no event
		}
		if p, ok := e.Event.Payload.(*wire.CommandReceived); ok && p.AtPos == ack.Sequence {
			answer.Recorded, answer.Accepted, answer.Reason, answer.Position = true, p.Accepted, p.Reason, e.Pos
			break
		}
	}
	return answer
}

// code is the code of a rejection.
func code(r wire.CommandResponse) string {
	switch {
	case !r.Recorded:
		return "not recorded"
	case r.Accepted:
		return "accepted"
	}
	code, _, _ := strings.Cut(r.Reason, ":")
	return code
}

// records returns the records of commands among events.
func records(entries []eventlog.Entry) []*wire.CommandReceived {
	var all []*wire.CommandReceived
	for _, e := range entries {
		if p, ok := e.Event.Payload.(*wire.CommandReceived); ok {
			all = append(all, p)
		}
	}
	return all
}

// F13: a message or an answer without a run is recorded and rejected, its sender is
// told, and no run gets it (RULES 13).
func TestF13SendWithoutRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", gated(nil))
		b.submit("run1", one)
		b.until("run1", wire.TypeAgentStart)
		for i, c := range []wire.Command{
			{Type: "send", Message: "hello"},
			{Type: "reply", PromptID: "p1", Content: wire.RawString("yes"), Message: "hello"},
		} {
			if r := b.tell(c); code(r) != "BAD_REQUEST" {
				t.Errorf("the sender of %s is told %+v", c.Type, r)
			}
			got := records(b.read("_"))
			if len(got) != i+1 || got[i].Accepted {
				t.Fatalf("on record: %+v", got)
			}
			text := got[i].Command.TextAt("message")
			if kind := got[i].Command.TextAt("type"); text != "hello" || kind != c.Type {
				t.Errorf("the record lost what was sent: %v", got[i].Command.Any())
			}
		}
		if s := b.fold("run1", b.read("run1")); len(s.Inbox) != 0 || len(records(b.read("run1"))) != 0 {
			t.Errorf("the run got it: %+v", s.Inbox)
		}
	})
}

// F14: a message to one execution reaches no other one of the same node (RULES 9,
// 13).
func TestF14SendToExecution(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
			if strings.HasPrefix(s.request.NodeID, "work") {
				listens(s, say)
			} else {
				say(&wire.AgentComplete{Result: "done"})
			}
		}})
		b.submit("run1", each, withInput(t, map[string]any{"list": []string{"a", "b"}}))
		b.awaits("two agents", func() bool { return count(b.read("run1"), wire.TypeAgentStart) == 2 })
		if r := b.tell(wire.Command{Type: "send", RunID: "run1", ExecID: "work/1#1", Message: "stop"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		b.until("run1", wire.TypeAgentComplete)
		<-time.After(time.Minute)
		for _, e := range b.read("run1") {
			if e.Event.Type() == wire.TypeUserMessage && e.NodeID != "work/1" {
				t.Errorf("%s heard it", e.NodeID)
			}
		}
		for _, test := range []struct{ exec, want string }{
			{"work/1#1", "AMBIGUOUS_ID"}, {"work/0#2", "AMBIGUOUS_ID"}, {"work/0#1", "accepted"}, // which ends the run
		} {
			if r := b.tell(wire.Command{Type: "send", RunID: "run1", ExecID: test.exec, Message: "stop"}); code(r) != test.want {
				t.Errorf("send to %s: %+v", test.exec, r)
			}
		}
		b.ended("run1")
	})
}

// F15: what has ended isn't resumed, nor is what never was (RULES 13).
func TestF15NotResumable(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("done", one)
		b.ended("done")
		b.submit("gone", `
name: ask
nodes:
  - {id: q, type: ask, input: {prompt: "?"}}
`)
		b.until("gone", wire.TypeInputRequested)
		if r := b.tell(wire.Command{Type: "resume", RunID: "gone"}); code(r) != "LEASE_HELD" {
			t.Errorf("resume of a running run: %+v", r)
		}
		if r := b.tell(wire.Command{Type: "abort", RunID: "gone", Reason: "no"}); code(r) != "accepted" {
			t.Errorf("abort: %+v", r)
		}
		b.ended("gone")
		<-time.After(time.Second)
		for run, want := range map[string]string{"done": "NOT_RESUMABLE", "gone": "NOT_RESUMABLE", "never": "RUN_NOT_FOUND"} {
			if r := b.tell(wire.Command{Type: "resume", RunID: run}); code(r) != want {
				t.Errorf("resume of %s: %+v", run, r)
			}
		}
		if r := b.tell(wire.Command{Type: "send", RunID: "done", Message: "hello"}); code(r) != "COMMAND_REJECTED" {
			t.Errorf("send to a run that has ended: %+v", r)
		}
		if n, done, gone := len(records(b.read("_"))), len(records(b.read("done"))), len(records(b.read("gone"))); n != 1 || done != 2 || gone != 3 {
			t.Errorf("%d records under _, %d and %d under runs that have ended", n, done, gone)
		}
		if state := b.fold("done", b.read("done")); state.Status != wire.RunComplete {
			t.Errorf("done is %s", state.Status)
		}
		for _, id := range []string{"done", "gone"} {
			b.awaits("nobody to own "+id, func() bool { _, there := b.registered(id); return !there })
		}
	})
}

// F16: a resumption tells the agent to continue, or what the message says, with
// one command:received and one flow:resumed.
func TestF16ResumePrompt(t *testing.T) {
	for name, message := range map[string]string{"continue": "", "look again": "look again"} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				prompts := make(chan string, 10)
				b.runner("r1", &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
					if !r.Resume {
						<-ctx.Done()
						return "", ctx.Err()
					}
					text, _ := r.Prompt.Text()
					prompts <- text
					return "done", nil
				}})
				b.submit("run1", one)
				b.until("run1", wire.TypeAgentStart)
				if r := b.tell(wire.Command{Type: "pause", RunID: "run1"}); code(r) != "accepted" {
					t.Fatalf("pause: %+v", r)
				}
				if r := b.tell(wire.Command{Type: "pause", RunID: "run1"}); code(r) != "COMMAND_REJECTED" {
					t.Errorf("pause of a paused run: %+v", r)
				}
				b.until("run1", wire.TypeAgentPaused)
				b.command("run1", wire.Command{Type: "resume", ID: "c1", Message: message})
				state, entries := b.ended("run1")
				if got := <-prompts; got != name {
					t.Errorf("the agent was told %q", got)
				}
				resumes := slices.DeleteFunc(records(entries), func(p *wire.CommandReceived) bool { return p.CommandID != "c1" })
				if len(resumes) != 1 || count(entries, wire.TypeFlowResumed) != 1 || state.Result != wire.FlowStatusComplete || len(state.Inbox) != 0 {
					t.Errorf("run ended as %s, %d records:\n%s", state.Result, len(resumes), story(entries))
				}
			})
		})
	}
}

// S14: of two resumptions at once one is obeyed.
func TestS14TwoResumes(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.runner("r1", gated(release))
		b.submit("run1", one)
		b.until("run1", wire.TypeAgentStart)
		b.command("run1", wire.Command{Type: "pause"})
		b.until("run1", wire.TypeFlowPaused)
		b.command("run1", wire.Command{Type: "resume", ID: "first"})
		b.command("run1", wire.Command{Type: "resume", ID: "second"})
		for len(records(b.read("run1"))) < 3 {
			<-time.After(100 * time.Millisecond)
		}
		close(release)
		_, entries := b.ended("run1")
		got := records(entries)[1:]
		if len(got) != 2 || !got[0].Accepted || got[1].Accepted || !strings.HasPrefix(got[1].Reason, "LEASE_HELD: ") || count(entries, wire.TypeFlowResumed) != 1 {
			t.Errorf("%d records:\n%s", len(got), story(entries))
		}
	})
}

// A command that is sent twice acts once, also if its owner has changed (RULES 13).
func TestCommandTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		stop := b.runner("r1", &scripted{say: echo})
		b.submit("run1", `
name: ask
nodes:
  - {id: q, type: ask, input: {prompt: "?"}}
`)
		b.until("run1", wire.TypeInputRequested)
		b.command("run1", wire.Command{Type: "pause", ID: "p"})
		b.until("run1", wire.TypeFlowPaused)
		b.command("run1", wire.Command{Type: "resume", ID: "r"})
		b.until("run1", wire.TypeFlowResumed)
		stop()
		b.runner("r2", &scripted{say: echo})
		b.command("run1", wire.Command{Type: "pause", ID: "p"})
		b.awaits("three records", func() bool { return len(records(b.read("run1"))) == 3 })
		entries := b.read("run1")
		if s := b.fold("run1", entries); s.Status != wire.RunRunning || count(entries, wire.TypeFlowPaused) != 1 {
			t.Errorf("the run is %s:\n%s", s.Status, story(entries))
		}
		if got := records(entries)[2]; got.Accepted || !strings.HasPrefix(got.Reason, "DUPLICATE: ") {
			t.Errorf("recorded as %+v", got)
		}
	})
}

// Commands that are sent while no runner is up are obeyed when one comes, in
// order, each by what the one before has led to; so is one to a run whose request
// waits beside it (RULES 8, 13).
func TestCommandsWithoutRunner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		b.command("run1", wire.Command{Type: "pause", Reason: "wait"})
		b.command("run1", wire.Command{Type: "pause", Reason: "wait longer"})
		b.submit("run2", one)
		b.command("run2", wire.Command{Type: "abort", Reason: "changed my mind"})
		<-time.After(time.Hour)
		b.process("r2", &scripted{say: echo})
		if state, _ := b.ended("run2"); state.Status != wire.RunAborted {
			t.Errorf("run2 is %s", state.Status)
		}
		b.until("run1", wire.TypeFlowPaused)
		b.command("run1", wire.Command{Type: "resume"})
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) != 1 {
			t.Errorf("run1 ended as %s:\n%s", state.Result, story(entries))
		}
		if got := records(entries); len(got) != 3 || !got[0].Accepted || got[1].Accepted || !got[2].Accepted {
			t.Errorf("on record: %+v", got)
		}
		if n := len(records(b.read("_"))); n != 0 {
			t.Errorf("%d commands were taken for nobody's: %+v", n, records(b.read("_"))[0])
		}
	})
}

// What no owner can obey is recorded once for all runners, however many there are,
// whatever it is, and leaves the queue of commands (RULES 13).
func TestStrayCommands(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		for i := range 3 {
			b.process(fmt.Sprintf("r%d", i), &scripted{say: echo})
		}
		long := strings.Repeat("x", 300) // of which the subject has a hash only
		for run, data := range map[string]string{
			"_": `{"type":"send","message":"x"}`, "nobody": `{"type":"resume"}`, "garbage": "\xc1", "": "{}",
			long: `{"type":"pause","runId":"` + long + `"}`, long + "y": `{"type":"pause"}`,
		} {
			if _, err := b.log.JetStream().Publish(t.Context(), subjects.Default.Command(run), []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		b.awaits("six records", func() bool { return len(records(b.read("_"))) >= 6 })
		<-time.After(5 * time.Minute)
		got := records(b.read("_"))
		positions := map[uint64]bool{}
		for _, p := range got {
			positions[p.AtPos] = true
			if p.Accepted || p.Reason == "" {
				t.Errorf("recorded as %+v", p)
			}
		}
		if len(got) != 6 || len(positions) != 6 {
			t.Errorf("%d records of %d commands", len(got), len(positions))
		}
		c, err := b.log.JetStream().Consumer(t.Context(), subjects.Default.CommandsStream(), "catchall")
		if err != nil {
			t.Fatal(err)
		}
		if i := c.CachedInfo(); i.NumPending != 0 || i.NumAckPending != 0 {
			t.Errorf("%d commands wait, %d are being looked at", i.NumPending, i.NumAckPending)
		}
	})
}

// A command to a run whose owner is away for a moment waits for it; no other runner
// judges it (RULES 13).
func TestCommandWaitsForOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", one)
		b.until("run1", wire.TypeAgentStart)
		b.process("r2", gated(nil))
		<-time.After(time.Second) // until it is there
		r1.gate.close()
		b.command("run1", wire.Command{Type: "pause"})
		<-time.After(lease10s / 2)
		r1.gate.open()
		b.until("run1", wire.TypeFlowPaused)
		<-time.After(time.Minute)
		if got := records(b.read("run1")); len(got) != 1 || !got[0].Accepted || b.owner("run1") != "r1" {
			t.Errorf("on record: %+v", got)
		}
		if got := records(b.read("_")); len(got) != 0 {
			t.Errorf("taken for nobody's: %+v", got)
		}
	})
}

// A command that comes while its owner reads those that wait comes twice, and is
// recorded once: its position in the stream tells (RULES 13).
func TestCommandOnTheWay(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		r2 := b.process("r2", gated(nil))
		r2.gate.before(".GET."+subjects.Default.CommandsStream(), func() { // it has subscribed, and reads
			if _, err := b.log.JetStream().Publish(t.Context(), subjects.Default.Command("run1"), []byte(`{"type":"pause"}`)); err != nil {
				t.Error(err)
			}
		})
		b.until("run1", wire.TypeFlowPaused)
		<-time.After(time.Minute)
		if got := records(b.read("run1")); len(got) != 1 || !got[0].Accepted {
			t.Errorf("on record: %+v", got)
		}
	})
}

// A command and what follows from it are stored together: where that fails the
// next owner obeys the command, once (RULES 13).
func TestCommandIsObeyedWhole(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		r1.gate.before("flow:paused", r1.gate.close)
		b.command("run1", wire.Command{Type: "pause"})
		<-time.After(time.Second)
		r1.kill()
		b.process("r2", gated(nil))
		b.until("run1", wire.TypeFlowPaused)
		<-time.After(time.Minute)
		entries := b.read("run1")
		if got := records(entries); len(got) != 1 || !got[0].Accepted || count(entries, wire.TypeFlowPaused) != 1 {
			t.Errorf("on record: %+v:\n%s", got, story(entries))
		}
	})
}

// What can't be recorded as a command to no run at the moment stays in the queue of commands
// until it can (RULES 13).
func TestStrayWaits(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", &scripted{say: echo})
		r1.gate.delay("run:claimed", 90*time.Second)
		b.command("nobody", wire.Command{Type: "pause"})
		<-time.After(time.Minute)
		if got := records(b.read("_")); len(got) != 0 {
			t.Errorf("on record: %+v", got)
		}
		b.awaits("a record", func() bool { return len(records(b.read("_"))) == 1 })
	})
}

// A runner that dies after it has recorded a command to no run, and before the
// queue of commands knows, has it recorded once (RULES 13).
func TestStrayIsRecordedOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.command("nobody", wire.Command{Type: "pause"})
		<-time.After(time.Minute)
		r1 := b.process("r1", &scripted{say: echo})
		r1.gate.before("+ACK", r1.gate.close)
		b.awaits("a record", func() bool { return len(records(b.read("_"))) == 1 })
		<-time.After(time.Second)
		r1.kill()
		b.process("r2", &scripted{say: echo})
		<-time.After(5 * time.Minute)
		if got := records(b.read("_")); len(got) != 1 {
			t.Errorf("on record: %+v", got)
		}
		c, err := b.log.JetStream().Consumer(t.Context(), subjects.Default.CommandsStream(), "catchall")
		if err != nil {
			t.Fatal(err)
		}
		if i := c.CachedInfo(); i.NumPending != 0 || i.NumAckPending != 0 {
			t.Errorf("%d commands wait, %d are being looked at", i.NumPending, i.NumAckPending)
		}
	})
}

// A run that begins while the catch-all looks for it isn't unknown: its owner
// records the command, and no other process does (RULES 13).
func TestBegunMeanwhile(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		def, err := flow.Parse("test.yaml", []byte(one))
		if err != nil {
			t.Fatal(err)
		}
		b.command("run1", wire.Command{Type: "pause"})
		<-time.After(time.Minute)
		r1 := b.process("r1", &scripted{say: echo})
		r1.gate.before("$JS.API.CONSUMER.INFO."+subjects.Default.QueueStream(), func() { // it has found no such run
			w, err := b.log.Claim(t.Context(), "run1", wire.RunNode, eventlog.Claim{Runner: "r1"})
			if err == nil {
				_, err = w.Append(t.Context(), flow.Start(def, wire.RunRequest{Workspace: b.t.TempDir()})...)
			}
			if err != nil {
				t.Error(err)
			}
		})
		b.until("run1", wire.TypeFlowPaused)
		<-time.After(time.Minute)
		if got := records(b.read("run1")); len(got) != 1 || !got[0].Accepted {
			t.Errorf("on record: %+v", got)
		}
		if got := records(b.read("_")); len(got) != 0 {
			t.Errorf("taken for nobody's: %+v", got)
		}
	})
}

// Commands to a run that an owner deals with are recorded by no other runner.
func TestOwnCommandsAreNotStray(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.process("r1", gated(release))
		b.process("r2", gated(release))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		for range 50 {
			b.command("run1", wire.Command{Type: "approve", CallID: "none"})
		}
		b.awaits("all records", func() bool { return len(records(b.read("run1"))) == 50 })
		close(release)
		b.ended("run1")
		<-time.After(5 * time.Minute)
		if n := len(records(b.read("_"))); n != 0 {
			t.Errorf("%d records under _", n)
		}
	})
}

// What a command may say, and what it is told if it says something else.
func TestVerdicts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", gated(nil))
		b.submit("run1", one)
		b.until("run1", wire.TypeAgentStart)
		no := false
		raw := func(v any) wire.Raw {
			r, err := wire.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for _, c := range []struct {
			wire.Command

			want string
		}{
			{wire.Command{Type: "steer", Message: "go"}, "COMMAND_REJECTED"},
			{wire.Command{Type: "steer"}, "BAD_REQUEST"},
			{wire.Command{Type: "send", NodeID: "z", Message: "x"}, "NODE_NOT_FOUND"},
			{wire.Command{Type: "approve"}, "BAD_REQUEST"},
			{wire.Command{Type: "deny", CallID: "c"}, "COMMAND_REJECTED"},
			{wire.Command{Type: "reply", PromptID: "p7", Content: wire.RawString("x")}, "COMMAND_REJECTED"},
			{wire.Command{Type: "bookmark", Label: "_x"}, "BAD_REQUEST"},
			{wire.Command{Type: "bookmark", Label: "sfp-99"}, "BAD_REQUEST"},
			{wire.Command{Type: "bookmark", Label: "17"}, "BAD_REQUEST"},
			{wire.Command{Type: "bookmark", Label: "here"}, "accepted"},
			{wire.Command{Type: "bookmark", Label: "here"}, "COMMAND_REJECTED"},
			{wire.Command{Type: "bookmark", Label: "here", Force: true}, "accepted"},
			{wire.Command{Type: "bookmark"}, "accepted"},
			{wire.Command{Type: "bookmark"}, "accepted"},
			{wire.Command{Type: "bookmark", At: "nowhere"}, "NOT_FOUND"},
			{wire.Command{Type: "bookmark", At: "1"}, "NOT_FOUND"}, // it had not begun
			{wire.Command{Type: "bookmark", At: "a#1:start", Label: "begin"}, "accepted"},
			{wire.Command{Type: "bookmark", At: "a#1:start", Label: "begin"}, "COMMAND_REJECTED"},
			{wire.Command{Type: "fork", At: "nowhere"}, "NOT_FOUND"},
			{wire.Command{Type: "fork", NewID: "_"}, "BAD_REQUEST"},
			{wire.Command{Type: "fork", NewID: "run1"}, "COMMAND_REJECTED"},
			{wire.Command{Type: "dance"}, "BAD_REQUEST"},
			{wire.Command{Type: "abort", Resumable: true}, "accepted"},
			{wire.Command{Type: "abort", Resumable: true}, "COMMAND_REJECTED"},
			{wire.Command{Type: "resume", Strategy: "hope"}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Rerun: []string{"a"}}, "COMMAND_REJECTED"},
			{wire.Command{Type: "resume", Rerun: []string{"a"}, Fail: []string{"a"}}, "COMMAND_REJECTED"},
			{wire.Command{Type: "resume", Overrides: raw("x")}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"colour": "red"})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"maxTurns": 1.5})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"a": map[string]any{"model": 7}})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"maxTurns": -1})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"prices": map[string]any{"m": map[string]any{"input": 1}}})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"prices": map[string]any{"m": map[string]any{"input": 1, "output": 2, "cacheRaed": 1}}})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"limits.maxCostUsd": 3})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"limits": map[string]any{"maxCostUsd": 3}})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", Overrides: raw(map[string]any{"a": map[string]any{"limits": map[string]any{"maxCostUsd": 3}}})}, "BAD_REQUEST"},
			{wire.Command{Type: "resume", AutoRun: &no, Overrides: raw(map[string]any{"a": map[string]any{"model": "m"}, "maxBudgetUsd": 3, "prices": map[string]any{"m": map[string]any{"input": 1, "output": 2.5}}, "allowedTools": []string{"Read"}})}, "accepted"},
		} {
			c.RunID = "run1"
			if r := b.tell(c.Command); code(r) != c.want {
				t.Errorf("%+v: want %s, got %+v", c.Command, c.want, r)
			}
		}
		s := b.fold("run1", b.read("run1"))
		if s.Status != wire.RunPaused || len(s.Bookmarks) != 3 || len(s.Inbox) != 0 {
			t.Errorf("the run is %s with bookmarks %+v and inbox %+v", s.Status, s.Bookmarks, s.Inbox)
		}
		if model := s.Overrides.TextAt("a", "model"); model != "m" {
			t.Errorf("overrides are %v", s.Overrides.Any())
		}
	})
}

// A node that was interrupted, or whose session is gone though something is lost
// with it, is decided about by the command that resumes its run (RULES 12).
func TestInterruptedNodeNeedsDecision(t *testing.T) {
	for _, kind := range []string{wire.ErrorInterrupted, wire.ErrorSessionNotFound} {
		t.Run(kind, func(t *testing.T) { interrupted(t, kind) })
	}
}

func interrupted(t *testing.T, kind string) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		left := b.leave("run1", `
name: tool
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
edges:
  - {from: a, to: b}
`, "dead")
		left.work(&wire.NodeError{Error: "its runner died", ErrorType: kind})
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "run1"})
		b.until("run1", wire.TypeFlowPaused)
		r := b.tell(wire.Command{Type: "resume", RunID: "run1"})
		if code(r) != "COMMAND_REJECTED" || !strings.Contains(r.Reason, "--rerun a") || !strings.Contains(r.Reason, "--fail a") {
			t.Errorf("without a decision: %+v", r)
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Rerun: []string{"a"}}); code(r) != "accepted" {
			t.Errorf("with one: %+v", r)
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || state.Nodes["a"].Execs != 2 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// S15: two forks at once have ids of their own and know where they come from, also
// if their runner dies at once (RULES 20).
func TestS15Forks(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		r1 := b.process("r1", gated(release))
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		b.command("run1", wire.Command{Type: "pause"})
		b.until("run1", wire.TypeAgentPaused)
		b.command("run1", wire.Command{Type: "fork", ID: "f1"})
		b.command("run1", wire.Command{Type: "fork", ID: "f2", Message: "differently"})
		b.awaits("three records", func() bool { return len(records(b.read("run1"))) == 3 })
		r1.kill()
		var ids []string
		for _, p := range records(b.read("run1"))[1:] {
			id := p.Command.TextAt("newId")
			if ids = append(ids, id); !p.Accepted || id == "" {
				t.Fatalf("recorded as %+v", p)
			}
		}
		if ids[0] == ids[1] {
			t.Fatalf("both forks are %s", ids[0])
		}
		close(release)
		b.process("r2", gated(release))
		for _, id := range ids {
			state, entries := b.ended(id)
			if state.Result != wire.FlowStatusComplete || len(state.Lineage) != 1 || state.Lineage[0].RunID != "run1" || count(entries, wire.TypeRunForked) != 1 {
				t.Errorf("fork %s ended as %s, of %+v:\n%s", id, state.Result, state.Lineage, story(entries))
			}
		}
		// A run that has ended is forked too, and so is a fork; and the parent is as
		// it was.
		r := b.tell(wire.Command{Type: "fork", RunID: ids[0], NewID: "again", At: fmt.Sprint(b.position(ids[0], wire.TypeFlowResumed))})
		if code(r) != "accepted" {
			t.Fatalf("fork of a fork: %+v", r)
		}
		if state, entries := b.ended("again"); len(state.Lineage) != 2 || state.Result != wire.FlowStatusComplete {
			t.Errorf("the fork of a fork ended as %s, of %+v:\n%s", state.Result, state.Lineage, story(entries))
		}
		if s := b.fold("run1", b.read("run1")); s.Status != wire.RunPaused {
			t.Errorf("the parent is %s", s.Status)
		}
	})
}

// position returns where the first event of a type stands.
func (b *bench) position(id string, t wire.Type) uint64 {
	b.t.Helper()
	for _, e := range b.read(id) {
		if e.Event.Type() == t {
			return e.Pos
		}
	}
	b.t.Fatalf("run %s has no %s", id, t)
	return 0
}

// A parent's pause pauses its child, and its resumption lets the child go on,
// though the parent's owner has died in between.
func TestChildIsPausedWithItsParent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		r1 := b.process("r1", gated(release))
		b.submit("run1", shared(nested), func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa5world") })
		const child = "run1.sub#1"
		b.until(child, wire.TypeAgentStart)
		b.command("run1", wire.Command{Type: "pause"})
		b.until(child, wire.TypeFlowPaused)
		r1.kill()
		close(release)
		b.process("r2", gated(release), func(c *runner.Config) { c.WorkspaceGrace = time.Hour })
		b.command("run1", wire.Command{Type: "resume"})
		b.until(child, wire.TypeFlowResumed)
		if n := count(b.read(child), wire.TypeFlowPaused); n != 1 {
			t.Errorf("the child was paused %d times", n)
		}
	})
}

// A child that was paused by itself stays so when its parent, which was paused in
// the meantime, goes on; also if it had been paused with its parent before.
func TestChildPausedByItselfStaysPaused(t *testing.T) {
	for name, withParent := range map[string]bool{"before its parent": false, "again": true} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.runner("r1", gated(nil))
				b.submit("run1", shared(nested), func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa5world") })
				const child = "run1.sub#1"
				b.until(child, wire.TypeAgentStart)
				tell := func(run, kind string) {
					t.Helper()
					if r := b.tell(wire.Command{Type: kind, RunID: run}); code(r) != "accepted" {
						t.Fatalf("%s of %s: %+v", kind, run, r)
					}
					<-time.After(5 * time.Second)
				}
				if withParent {
					tell("run1", "pause")
					tell(child, "resume")
					tell(child, "pause")
				} else {
					tell(child, "pause")
					tell("run1", "pause")
				}
				tell("run1", "resume")
				<-time.After(time.Minute)
				if s := b.fold(child, b.read(child)); s.Status != wire.RunPaused || s.Reason != wire.PauseOperator {
					t.Errorf("the child is %s (%s):\n%s", s.Status, s.Reason, story(b.read(child)))
				}
				tell(child, "resume")
				tell("run1", "pause")
				tell("run1", "resume")
				if s := b.fold(child, b.read(child)); s.Status != wire.RunRunning || count(b.read(child), wire.TypeFlowPaused) != count(b.read(child), wire.TypeFlowResumed) {
					t.Errorf("the child is %s (%s):\n%s", s.Status, s.Reason, story(b.read(child)))
				}
			})
		})
	}
}

// Commands of one id to an ended run that are looked at side by side, by one runner or by several, fork it once.
func TestForksOfEndedRunAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		stop := b.runner("r1", &scripted{say: echo})
		b.submit("run1", chain, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa1x") })
		b.ended("run1")
		stop()
		for _, id := range []string{"f1", "f2", "f3"} {
			b.publish(subjects.Default.Command("run1"), wire.Command{Type: "fork", ID: "c1", RunID: "run1", NewID: id})
		}
		b.runner("r2", &scripted{say: echo})
		b.runner("r3", &scripted{say: echo})
		<-time.After(time.Minute)
		accepted, began := 0, 0
		answers := b.read("run1")
		for _, p := range records(answers) {
			switch {
			case p.Accepted:
				accepted++
			case !strings.HasPrefix(p.Reason, "DUPLICATE: "):
				t.Errorf("rejected: %s", p.Reason)
			}
		}
		for _, id := range []string{"f1", "f2", "f3"} {
			if len(b.read(id)) > 0 {
				began++
			}
		}
		if accepted != 1 || began != 1 {
			t.Errorf("%d commands were accepted, %d forks began:\n%s", accepted, began, story(answers))
		}
	})
}

// A run that has ended is labelled at a point at which it was, and forked there.
func TestBookmarkOfEndedRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", chain, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa1x") })
		before, _ := b.ended("run1")
		for i, c := range []wire.Command{
			{Type: "bookmark", Label: "begin", At: "a#1:start"}, {Type: "bookmark"}, {Type: "bookmark"}, {Type: "bookmark", Label: "begin", Force: true, At: "sfp-1"},
		} {
			c.RunID = "run1"
			if r := b.tell(c); code(r) != "accepted" {
				t.Errorf("command %d: %+v", i, r)
			}
		}
		end := strconv.FormatUint(before.Position.Seq, 10)
		if r := b.tell(wire.Command{Type: "bookmark", RunID: "run1", Label: "end", At: end}); code(r) != "NOT_RESUMABLE" {
			t.Errorf("where nothing goes on: %+v", r)
		}
		state := b.fold("run1", b.read("run1"))
		if len(state.Bookmarks) != 2 || state.Status != before.Status || state.EndedAt != before.EndedAt {
			t.Errorf("the run is %s, with %+v", state.Status, state.Bookmarks)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1", At: "begin"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		if fork, entries := b.ended("fork1"); fork.Result != wire.FlowStatusComplete || fork.Lineage[0].Label != "begin" {
			t.Errorf("the fork is %s of %+v:\n%s", fork.Result, fork.Lineage, story(entries))
		}
	})
}

// An ended run is forked once by a command, whatever else one of the same id says;
// the same id means another command to another run.
func TestForkOfEndedRunTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		for _, run := range []string{"run1", "run2"} {
			b.submit(run, chain, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa1x") })
			b.ended(run)
		}
		for _, c := range []struct {
			wire.Command

			want string
		}{
			{wire.Command{Type: "fork", ID: "c1", RunID: "run1", NewID: "f1"}, "accepted"},
			{wire.Command{Type: "fork", ID: "c1", RunID: "run1", NewID: "f2"}, "DUPLICATE"},
			{wire.Command{Type: "fork", ID: "c1", RunID: "run2", NewID: "f3"}, "accepted"},
			{wire.Command{Type: "fork", ID: "c2", RunID: "run1", NewID: "f4"}, "accepted"},
		} {
			if r := b.tell(c.Command); code(r) != c.want {
				t.Errorf("%s: want %s, got %+v", c.NewID, c.want, r)
			}
		}
		<-time.After(time.Minute)
		for id, want := range map[string]bool{"f1": true, "f2": false, "f3": true, "f4": true} {
			if got := len(b.read(id)) > 0; got != want {
				t.Errorf("fork %s began: %t", id, got)
			}
		}
	})
}

// A run names who asked for it, as the request says. So does a fork, which the user of its command has asked for.
func TestStartedBy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("one", single, func(r *wire.RunRequest) { r.By = "ann" })
		if s, _ := b.ended("one"); s.StartedBy != "ann" {
			t.Errorf("it was started by %q", s.StartedBy)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "one", NewID: "forked", By: "ben"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		if s, _ := b.ended("forked"); s.StartedBy != "ben" {
			t.Errorf("the fork was started by %q", s.StartedBy)
		}
	})
}

// A decision about a call of a session that others drive is recorded for the hook that asked for it: the first one. A user who comes later
// is told who was first, and when. A call that doesn't wait, and any other command, is refused.
func TestDecisionOfImported(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo})
		begun := time.Now()
		start := &wire.FlowStart{FlowName: "claude", Definition: wire.RawString(""), DefinitionHash: "h", Imported: wire.ImportedIngest}
		logtest.Append(t, logtest.Claim(t, b.log, "s1", wire.RunNode), &wire.Event{Payload: start})
		hooks := logtest.Claim(t, b.log, "s1", wire.HooksNode)
		for _, call := range []string{"t1", "t2"} {
			logtest.Append(t, hooks, &wire.Event{CallID: call, Payload: &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.RawString("ls")}})
		}
		give := func(all ...wire.Command) {
			for _, c := range all {
				n := len(records(b.read("_")))
				b.command("s1", c)
				b.awaits("a record", func() bool { return len(records(b.read("_"))) > n })
			}
		}
		give(wire.Command{Type: "approve", CallID: "t1", By: "ann"}, wire.Command{Type: "deny", CallID: "t1", By: "bob"})
		logtest.Append(t, hooks,
			&wire.Event{CallID: "t1", Timestamp: 1_000, Payload: &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "ann"}},
			&wire.Event{CallID: "t2", Timestamp: 61_000, Payload: &wire.PermissionDecided{Decision: wire.DecisionDeny, By: "terminal"}},
		)
		give(wire.Command{Type: "approve", CallID: "t1"}, wire.Command{Type: "reply", PromptID: "t2"}, wire.Command{Type: "approve", CallID: "t3"}, wire.Command{Type: "pause"})
		var got []string
		for _, p := range records(b.read("_")) {
			run := p.Command.TextAt("runId")
			node := p.Command.TextAt("nodeId")
			got = append(got, fmt.Sprintf("%t %s/%s %s", p.Accepted, run, node, p.Reason))
		}
		want := []string{
			"true s1/hooks ", `false s1/hooks COMMAND_REJECTED: call "t1" was already answered by ann at ` + begun.UTC().Format(time.DateTime) + " UTC",
			`false / COMMAND_REJECTED: call "t1" was already answered by ann at 1970-01-01 00:00:01 UTC`,
			`false / COMMAND_REJECTED: call "t2" was already answered by terminal at 1970-01-01 00:01:01 UTC`,
			"false / COMMAND_REJECTED: run s1 was imported and is not executed", "false / COMMAND_REJECTED: run s1 was imported and is not executed",
		}
		if !slices.Equal(got, want) {
			t.Errorf("records:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Commands to a copy of a run are refused, also where those in its log have later positions, which are those of the installation that
// it is from.
func TestCommandsToCopy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo})
		logtest.Append(t, logtest.Claim(t, b.log, "s1", wire.RunNode),
			&wire.Event{Payload: &wire.FlowStart{FlowName: "claude", Definition: wire.RawString(""), DefinitionHash: "h", Imported: wire.ImportedCopy}},
			&wire.Event{Payload: &wire.CommandReceived{CommandID: "c1", AtPos: 1000, Accepted: true, Command: wire.RawOf(map[string]string{"type": "pause"})}},
			&wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}},
		)
		for _, verb := range []string{"resume", "bookmark"} {
			if r := b.tell(wire.Command{Type: verb, RunID: "s1", Label: "x"}); !strings.Contains(r.Reason, "was imported and is not executed") {
				t.Errorf("%s: %+v", verb, r)
			}
		}
	})
}
