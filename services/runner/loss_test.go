package runner_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// The message of a resumption that no agent has got yet isn't lost with the owner
// that recorded it.
func TestMessageOutlivesOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "dead")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{}, &wire.AgentPaused{Reason: "operator"})
		l.decide(&wire.FlowPaused{Reason: wire.PauseOperator}, &wire.FlowResumed{Strategy: "crash", Message: "use the other one"})
		p := &puppet{}
		b.process("r1", p)
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: l.id})
		b.ended("run1")
		if got := p.asked(); len(got) != 1 || promptOf(got[0]) != "use the other one" {
			t.Errorf("it was asked %q", promptOf(got[0]))
		}
	})
}

// As above, of a fork.
func TestForkMessageOutlivesOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1", Message: "otherwise"}); code(r) != "accepted" {
			t.Fatal(r)
		}
		r1.gate.before("node:claimed", r1.gate.close)
		b.until("fork1", wire.TypeRunForked)
		<-time.After(time.Second)
		r1.kill()
		p := &puppet{}
		b.process("r2", p)
		b.ended("fork1")
		var asked []string
		for _, r := range p.asked() {
			if r.RunID == "fork1" {
				asked = append(asked, promptOf(r))
			}
		}
		if len(asked) != 1 || asked[0] != "otherwise" {
			t.Errorf("asked %q", asked)
		}
	})
}

// The request for a child may still be on its way, to a runner that is gone, when
// the next owner of its aborted parent takes that out of the active runs. The child
// doesn't outlive it.
func TestChildOnTheWayIsAborted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.parent("run1")
		r0 := b.process("r0", gated(nil)) // it makes the queues
		<-time.After(time.Second)
		r0.stop()
		b.submit("run1.sub#1", one)
		c, err := b.log.JetStream().Consumer(t.Context(), subjects.Default.QueueStream(), subjects.RunsConsumer)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(); err != nil { // and is gone
			t.Fatal(err)
		}
		l.decide(&wire.FlowAborted{Reason: "enough"})
		b.register("run1", "dead")
		b.process("r1", gated(nil))
		if child, entries := b.ended("run1.sub#1"); child.Status != wire.RunAborted {
			t.Errorf("the child is %s:\n%s", child.Status, story(entries))
		}
		if _, found := b.registered("run1"); found {
			t.Error("the parent is still looked for")
		}
	})
}

// parent makes the history of a run whose owner was named dead and has begun to
// start a child.
func (b *bench) parent(id string) *left {
	b.t.Helper()
	def, err := flow.Parse("test.yaml", []byte(shared(nested)))
	if err != nil {
		b.t.Fatal(err)
	}
	l := &left{b: b, id: id, owner: b.claim(id, wire.RunNode, "dead")}
	l.append(l.owner, flow.Start(def, wire.RunRequest{V: wire.Version, RunID: id, Definition: def.Raw(), Workspace: b.t.TempDir()})...)
	l.append(l.owner, &wire.Event{ExecID: "sub#1", Payload: &wire.NodeScheduled{Target: "sub", Attempt: 1}},
		&wire.Event{ExecID: "sub#1", Payload: &wire.NodeStart{Target: "sub", NodeType: "flow", Attempt: 1}})
	return l
}

// register puts a run among the active ones, as its owner does.
func (b *bench) register(id, owner string) {
	b.t.Helper()
	value, err := wire.Marshal(map[string]any{"run": id, "runner": owner, "since": 1, "incarnation": b.log.Incarnation()})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.states().Put(b.t.Context(), subjects.Default.StateKey("runner", id), value); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) registered(id string) (value []byte, found bool) {
	b.t.Helper()
	e, err := b.states().Get(b.t.Context(), subjects.Default.StateKey("runner", id))
	if err != nil {
		return nil, false
	}
	return e.Value(), true
}

func (b *bench) states() jetstream.KeyValue {
	b.t.Helper()
	kv, err := b.log.JetStream().KeyValue(b.t.Context(), subjects.Default.StateBucket())
	if err != nil {
		b.t.Fatal(err)
	}
	return kv
}

// What an agent is told that has to begin afresh it is told all the same: the message
// of the resumption, and what was sent meanwhile.
func TestMessagesOfUnknownSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")})
		l.decide(&wire.FlowPaused{Reason: wire.PauseOperator}, &wire.FlowResumed{Strategy: "crash", Message: "quickly"},
			&wire.CommandReceived{CommandID: "c1", Accepted: true, AtPos: 1, Command: wire.RawOf(wire.Command{Type: "send", NodeID: "a", Message: "and well"})})
		var got []string
		p := &puppet{play: func(a *act) {
			if a.request.Resume {
				<-a.messages
				a.say(&wire.AgentError{ErrorType: wire.ErrorSessionNotFound, Message: "No conversation found", Severity: wire.SeverityError}, "")
				return
			}
			for range 2 {
				select {
				case m := <-a.messages:
					got = append(got, m.Content)
				case <-time.After(time.Minute):
				}
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		b.runner("r1", p)
		l.offer(wire.TypeNodeComplete)
		if diff := cmp.Diff([]string{"quickly", "and well"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// A child run that is too large to be asked for is its node's failure, not the end of
// its parent's owner, again and again.
func TestChildTooLarge(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(context.Context, agent.Request) (string, error) { return strings.Repeat("x", 2<<20), nil }})
		b.submit("run1", `
name: large
nodes:
  - {id: a, type: agent, input: {prompt: "x"}}
  - id: sub
    type: flow
    input:
      input: {who: "{{ a.text }}"}
      flow: {name: child, nodes: [{id: c, type: agent, input: {prompt: "child"}}]}
edges:
  - {from: a, to: sub}
`)
		state, _ := b.ended("run1")
		if state.Nodes["sub"].ErrorType != "input" || !strings.Contains(state.Error, "more than the server takes") {
			t.Errorf("run ended as %s: %q", state.Result, state.Error)
		}
	})
}

// A fork that is too large to be asked for is refused, be its parent at work or not;
// what follows in the queue of commands is obeyed.
func TestForkTooLarge(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		fork := wire.Command{Type: "fork", Message: strings.Repeat("x", int(b.nc.MaxPayload())-60)}
		b.command("run1", fork)
		b.command("run1", wire.Command{Type: "abort"})
		b.until("run1", wire.TypeFlowAborted)
		<-time.After(time.Minute) // its owner has left
		fork.At = "sfp-1"
		b.command("run1", fork)
		b.awaits("a record", func() bool { return len(records(b.read("run1"))) == 3 })
		for _, p := range []*wire.CommandReceived{records(b.read("run1"))[0], records(b.read("run1"))[2]} {
			if !strings.HasPrefix(p.Reason, string(wire.CodeTooLarge)) {
				t.Errorf("recorded as accepted %t, %q", p.Accepted, p.Reason)
			}
		}
	})
}

// A socket in the folder of a run is no reason not to fork it.
func TestForkWithSocket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		home := t.TempDir()
		b.runner("r1", gated(nil))
		b.submit("run1", one, func(r *wire.RunRequest) { r.Workspace = home })
		b.until("run1", wire.TypeAgentStart)
		s, err := net.Listen("unix", filepath.Join(home, "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := os.WriteFile(filepath.Join(home, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"})
		entries := b.until("fork1", wire.TypeRunForked)
		if _, err := os.Stat(filepath.Join(b.fold("fork1", entries).Workspace, "file")); err != nil {
			t.Error(err)
		}
	})
}

// The next owner of a run whose last message can't be folded, and so never comes to
// those who fold, goes on all the same.
func TestGarbageOfOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		if _, err := b.log.JetStream().Publish(t.Context(), subjects.Default.Event("run1", wire.RunNode, "flow"), []byte("garbage")); err != nil {
			t.Fatal(err)
		}
		b.process("r2", &scripted{say: echo})
		<-time.After(time.Minute)
		var last wire.Type
		for _, e := range b.read("run1") {
			if e.Event != nil {
				last = e.Event.Type()
			}
		}
		if last != wire.TypeFlowComplete {
			t.Errorf("the run stands still behind %s", last)
		}
	})
}

// An owner that died when it had asked for a fork, and before that was on record,
// has not refused it: its successor finds its own fork, though its parent has gone on.
func TestForkAskedTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		at := b.until("run1", wire.TypeNodeStart)
		b.until("run1", wire.TypeAgentStart)
		const id = "fork-578304c7a833cb7c63a3" // of command f to run1
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: id, Fork: &wire.ForkRequest{ParentRun: "run1", ParentPos: at[len(at)-1].Pos}})
		b.until(id, wire.TypeRunForked)
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", ID: "f"}); code(r) != "accepted" {
			t.Errorf("it is %+v", r)
		}
		if n := count(b.read(id), wire.TypeRunForked); n != 1 {
			t.Errorf("%d forks", n)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", ID: "g", NewID: id}); code(r) != string(wire.CodeCommandRejected) {
			t.Errorf("another one of the id is %+v", r)
		}
	})
}

// A run whose id is as long as it may be has children all the same.
func TestChildOfLongID(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		id := strings.Repeat("r", subjects.MaxID)
		b.submit(id, nested, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa5world") })
		if state, _ := b.ended(id); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s: %s", state.Result, state.Error)
		}
	})
}

// A runner that is told to end while it claims a node begins nothing there: a command
// would be cut off, and no log would say what it has done.
func TestDrainBeginsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", &scripted{say: echo})
		r1.gate.delay("node:claimed", time.Second)
		b.submit("run1", "\nname: x\nworkspace: shared\nnodes:\n  - {id: a, type: exec, input: {command: \"true\"}}\n")
		b.until("run1", wire.TypeNodeScheduled)
		<-time.After(500 * time.Millisecond) // the claim is under way
		r1.stop()
		if entries := b.read("run1"); b.holderOf("run1", "a") != "" || count(entries, wire.TypeNodeStart) != 0 {
			t.Errorf("begun:\n%s", story(entries))
		}
	})
}

// A worker that was cut off takes its lease again if no worker holds it any more; but the
// node was another's meanwhile. It gives up, although its agent says nothing.
func TestComesBackToReleasedLease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		closed := make(chan struct{})
		z := &puppet{play: func(a *act) {
			a.turn()
			<-a.ctx.Done()
			close(closed)
		}}
		r1 := b.process("r1", z)
		b.submit("run1", single)
		b.until("run1", wire.TypeTurnStart)
		<-time.After(time.Second)
		r1.gate.close()
		p2 := &puppet{play: waitsFirst}
		r2 := b.process("r2", p2)
		b.until("run1", wire.TypeAgentResumed)
		<-time.After(time.Second)
		r2.stop()
		r1.gate.open()
		select {
		case <-closed:
		case <-time.After(5 * time.Minute):
			t.Errorf("it still holds the node:\n%s", story(b.read("run1")))
		}
	})
}

// An agent that says what is too large to be stored, and can't be moved, is not
// started again and again.
func TestTooLargeToStore(t *testing.T) {
	huge := strings.Repeat("x", 300_000) // in the envelope

	for name, p := range map[string]wire.Payload{
		"a call":   &wire.ToolIntent{ToolName: "Bash"},
		"an error": &wire.AgentError{ErrorType: "x", Message: "x", Severity: wire.SeverityError},
		"the end":  &wire.AgentComplete{Result: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				agent := &puppet{play: func(a *act) {
					a.turn()
					if a.say(p, huge) {
						a.say(&wire.AgentComplete{Result: "done"}, "")
					}
				}}
				b.runner("r1", agent)
				b.submit("run1", single)
				<-time.After(10 * time.Minute)
				entries := b.read("run1")
				if n := len(agent.asked()); n != 1 || count(entries, wire.TypeFlowComplete) != 1 {
					t.Errorf("%d starts:\n%s", n, story(entries))
				}
			})
		})
	}
}

// A command whose ids are too large for its record is refused, and doesn't end its
// run's owner, again and again.
func TestCommandOfHugeExecution(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		huge := strings.Repeat("x", 300_000)
		b.command("run1", wire.Command{Type: "send", Message: "x", ExecID: huge})
		b.command("run1", wire.Command{Type: "send", Message: "x", ID: huge})
		b.command("run1", wire.Command{Type: "abort"})
		b.until("run1", wire.TypeFlowAborted)
		for i, p := range records(b.read("run1")) {
			if refused := strings.HasPrefix(p.Reason, string(wire.CodeBadRequest)); refused != (i < 2) || len(p.CommandID) > 20 {
				t.Errorf("command %d of id %.20q is on record as accepted %t, %.100q", i, p.CommandID, p.Accepted, p.Reason)
			}
		}
	})
}
