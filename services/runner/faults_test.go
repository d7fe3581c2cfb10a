package runner_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// count returns how many of the events are of a type.
func count(entries []eventlog.Entry, t wire.Type) int {
	n := 0
	for _, e := range entries {
		if e.Event.Type() == t {
			n++
		}
	}
	return n
}

func (b *bench) command(id string, c wire.Command) {
	b.t.Helper()
	b.publish(subjects.Default.Command(id), c)
}

// A server that is away for minutes, longer than a lease lives, ends no agent and
// no run: what happened meanwhile is stored when it is back.
func TestServerAway(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			if r.NodeID == "a" {
				<-time.After(2 * time.Minute)
			}
			return echo(ctx, r)
		}}
		b.runner("r1", p)
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		b.server.Stop()
		<-time.After(4 * time.Minute)
		b.server.Start(t)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeAgentStart) != 2 {
			t.Errorf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
		}
	})
}

// What a loss of power takes costs no run, and no agent that lives: leases, snapshots, and which offer was handed to which runner.
func TestPowerCut(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("runner killed %t", killed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				slow := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
					select {
					case <-time.After(2 * time.Minute):
					case <-ctx.Done():
					}
					return echo(ctx, r)
				}}
				r1 := b.process("r1", slow)
				b.submit("run1", chain)
				b.until("run1", wire.TypeAgentStart)
				b.submit("run2", single)
				if killed {
					r1.kill()
				}
				b.server.Stop()
				b.server.Lose(t, "KV_WAKE_LEASES", "KV_WAKE_SNAPSHOTS")
				b.server.Start(t)
				<-time.After(time.Second)
				starts := 2
				if killed {
					b.process("r2", &scripted{say: echo})
					starts = 3 // that of the one that died
				}
				b.submit("run3", single)
				for _, id := range []string{"run1", "run2", "run3"} {
					state, entries := b.ended(id)
					if state.Result != wire.FlowStatusComplete {
						t.Errorf("%s ended as %s (%s):\n%s", id, state.Result, state.Error, story(entries))
					}
					if n := count(entries, wire.TypeAgentStart); id == "run1" && n > starts || count(entries, wire.TypeFlowStart) != 1 || count(entries, wire.TypeFlowComplete) != 1 {
						t.Errorf("%s has begun or ended more than once, or its agents %d times:\n%s", id, n, story(entries))
					}
				}
			})
		})
	}
}

// Consumers that a client deletes are made again: the runner goes on taking runs, nodes and commands.
func TestConsumersAreMadeAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		js := b.log.JetStream()
		for round := range 2 {
			for _, name := range []string{"WAKE_QUEUE", "WAKE_COMMANDS", "WAKE_ALERTS", "WAKE_EVENTS", "KV_WAKE_STATE", "KV_WAKE_LEASES"} {
				stream, err := js.Stream(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				for consumer := range stream.ConsumerNames(t.Context()).Name() {
					if err := stream.DeleteConsumer(t.Context(), consumer); err != nil {
						t.Error(err)
					}
				}
			}
			id := fmt.Sprintf("run%d", round)
			b.submit(id, chain)
			if state, entries := b.ended(id); state.Result != wire.FlowStatusComplete {
				t.Errorf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
			}
		}
	})
}

// A runner without room on its disk begins no node, says so, and goes on when it has room.
func TestNoRoom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		board := health.NewBoard(b.logger())
		folder := t.TempDir()
		if err := os.MkdirAll(filepath.Join(folder, ".room", "x"), 0o700); err != nil { // nothing can be written there
			t.Fatal(err)
		}
		p := &scripted{say: echo}
		b.runner("r1", p, func(c *runner.Config) { c.Health, c.Folders = board, []string{folder} })
		b.submit("run1", chain)
		<-time.After(time.Minute)
		if err := troubleOf(board, "runner: disk"); err == nil || !strings.Contains(err.Error(), "no room in "+folder) {
			t.Errorf("it says %v", err)
		}
		if n := len(p.started()); n != 0 {
			t.Errorf("%d agents were started", n)
		}
		if err := os.RemoveAll(filepath.Join(folder, ".room")); err != nil {
			t.Fatal(err)
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || troubleOf(board, "runner: disk") != nil {
			t.Errorf("run ended as %s, it says %v:\n%s", state.Result, board.Err(), story(entries))
		}
	})
}

// A runner that starts while the server is away begins when that is back.
func TestBeginsLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.server.Stop()
		b.runner("r1", &scripted{say: echo})
		<-time.After(10 * time.Minute)
		b.server.Start(t)
		<-time.After(time.Minute)
		b.submit("run1", chain)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
		}
	})
}

// Commands and runs that are asked for after a restart of the server are obeyed.
func TestServerRestarts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", `
name: ask
nodes:
  - {id: q, type: ask, input: {prompt: "Deploy?"}}
`)
		entries := b.until("run1", wire.TypeInputRequested)
		ask := entries[len(entries)-1].Event.Payload.(*wire.InputRequested)
		for range 3 {
			b.server.Stop()
			<-time.After(time.Minute)
			b.server.Start(t)
			<-time.After(time.Minute)
		}
		b.command("run1", wire.Command{Type: "reply", PromptID: ask.PromptID, Content: wire.RawString("yes")})
		if state, _ := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run1 ended as %s", state.Result)
		}
		b.submit("run2", chain)
		if state, _ := b.ended("run2"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run2 ended as %s", state.Result)
		}
	})
}

// An owner that dies between its claim and flow:start has begun nothing; its
// request comes again, and the next owner begins the run (RULES 7).
func TestCrashBeforeStart(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.claim("run1", wire.RunNode, "dead")
		p := &scripted{say: echo}
		b.runner("r1", p)
		b.submit("run1", chain)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeRunClaimed) != 2 || count(entries, wire.TypeFlowStart) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
		if n := len(p.started()); n != 2 {
			t.Errorf("%d agents were started", n)
		}
	})
}

// A request stays in the queue until its run has begun, which a claim doesn't:
// a runner that claims the run, can't begin it and dies has lost nothing (RULES 7).
func TestCrashAfterClaim(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r1 := b.process("r1", &scripted{say: echo}, func(c *runner.Config) { c.Workspaces = file }) // a folder can't be made there
		b.submit("run1", one)
		b.until("run1", wire.TypeRunClaimed)
		<-time.After(5 * time.Second) // it would have given up after half a minute
		r1.kill()
		<-time.After(time.Hour)
		if entries := b.read("run1"); count(entries, wire.TypeFlowStart) != 0 {
			t.Fatalf("the run has begun:\n%s", story(entries))
		}
		b.process("r2", &scripted{say: echo})
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// An offer is judged by the log: one of an execution that has ended, that another
// one has followed, or of a run that is paused or over, leaves the queue, and
// nothing is written (RULES 7, 8).
func TestNotWanted(t *testing.T) {
	failed := &wire.NodeError{Error: "no luck", ErrorType: wire.ErrorException}
	again := &wire.Event{ExecID: "a#2", Payload: &wire.NodeScheduled{Target: "a", Attempt: 2, Input: wire.Null, Pool: "default"}}
	for name, prepare := range map[string]func(l *left){
		"ended":    func(l *left) { l.work(failed) },
		"followed": func(l *left) { l.work(failed); l.append(l.owner, again) },
		"paused":   func(l *left) { l.decide(&wire.FlowPaused{Reason: wire.PauseOperator}) },
		"over":     func(l *left) { l.decide(&wire.FlowAborted{Reason: "enough"}) },
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				l := b.leave("run1", single, "r1") // whose leases r1 may take at once
				prepare(l)
				before := len(b.read("run1"))
				p := &puppet{}
				b.runner("r1", p)
				b.publish(subjects.Default.QueueNode("default"), wire.NodeOffer{V: 1, RunID: "run1", NodeID: "a", ExecID: "a#1"})
				<-time.After(time.Minute)
				if entries := b.read("run1"); len(entries) != before || len(p.asked()) > 0 {
					t.Errorf("%d agents were started:\n%s", len(p.asked()), story(entries))
				}
				if n := b.waiting(); n != 0 {
					t.Errorf("%d messages are in the queue", n)
				}
			})
		})
	}
}

// A scheduled execution whose node another process acts for isn't offered, and
// is once none does (RULES 7).
func TestNotOfferedWhileHeld(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo}, func(c *runner.Config) { c.Pools = []string{"none"} })
		b.session("other")
		other := b.claim("run1", "a", "other")
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeNodeScheduled)
		<-time.After(10 * time.Minute)
		if n := b.waiting(); n != 0 {
			t.Errorf("%d offers of a node that is held", n)
		}
		b.giveBack(other, "other")
		<-time.After(time.Minute)
		if b.waiting() == 0 {
			t.Error("no offer of a node that is free")
		}
	})
}

// A request for a run that has begun, and an offer of a node that a worker works
// on, leave the queue at once (RULES 7).
func TestNeedless(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		p := &scripted{say: func(context.Context, agent.Request) (string, error) { <-release; return "done", nil }}
		b.runner("r1", p)
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		b.submit("run1", chain)
		b.publish(subjects.Default.QueueNode("at-r1"), wire.NodeOffer{V: 1, RunID: "run1", NodeID: "a", ExecID: "a#1"})
		<-time.After(time.Second)
		if n := b.waiting(); n != 0 {
			t.Errorf("%d messages are in the queue", n)
		}
		close(release)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeStart) != 2 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// A request that has to wait, its run being another owner's for now, holds up no
// other one (RULES 7).
func TestHeldRequest(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.session("other")
		other := b.schedule("run1", shared(one), "other")
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", one)
		<-time.After(time.Second)
		start := time.Now()
		b.submit("run2", one)
		b.ended("run2")
		if took := time.Since(start); took > time.Second {
			t.Errorf("another run took %s", took)
		}
		b.giveBack(other.owner, "other")
		b.ended("run1")
	})
}

// A node that no runner takes is offered again and again, but less and less often;
// one of a paused run is not (RULES 7).
func TestOffersAreFew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", `
name: nowhere
workspace: shared
nodes:
  - {id: a, type: agent, pool: gpu, input: {prompt: "a"}}
`)
		b.until("run1", wire.TypeNodeScheduled)
		<-time.After(time.Hour)
		n := b.waiting()
		if n < 5 || n > 30 {
			t.Errorf("after an hour the node has been offered %d times", n)
		}
		b.command("run1", wire.Command{Type: "pause"})
		<-time.After(20 * time.Minute)
		if more := b.waiting() - n; more > 1 {
			t.Errorf("the node of a paused run was offered %d times", more)
		}
		b.command("run1", wire.Command{Type: "resume"})
		b.until("run1", wire.TypeFlowResumed)
		b.runner("r2", &scripted{say: echo}, func(c *runner.Config) { c.Pools = []string{"gpu"} })
		if state, entries := b.ended("run1"); count(entries, wire.TypeNodeStart) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
		<-time.After(10 * time.Minute)
		if n := b.waiting(); n != 0 {
			t.Errorf("%d offers are left", n)
		}
	})
}

// One slot is enough for all queues: those without work keep it from no other
// (RULES 10).
func TestOneSlot(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo}, func(c *runner.Config) { c.MaxAgents, c.Pools = 1, []string{"default", "other"} })
		start := time.Now()
		b.submit("run1", chain)
		b.ended("run1")
		if took := time.Since(start); took > time.Second {
			t.Errorf("two nodes took %s", took)
		}
	})
}

// Owners, their set and ask nodes and their children take no slot: all of that goes
// on while the only one is taken (RULES 10).
func TestOwnersTakeNoSlot(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		p := gated(release)
		b.runner("r1", p, func(c *runner.Config) { c.MaxAgents = 1 })
		b.submit("busy", one)
		b.until("busy", wire.TypeAgentStart)
		b.submit("run1", `
name: parent
nodes:
  - {id: s, type: set, input: {set: {n: 1}}}
  - id: sub
    type: flow
    input:
      flow:
        name: child
        nodes:
          - {id: q, type: ask, input: {prompt: "Deploy?"}}
edges:
  - {from: s, to: sub}
`)
		entries := b.until("run1.sub#1", wire.TypeInputRequested)
		b.command("run1.sub#1", wire.Command{Type: "reply", PromptID: first[*wire.InputRequested](t, entries).PromptID, Content: wire.RawString("yes")})
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || len(p.started()) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
		close(release)
		b.ended("busy")
	})
}

// No more agents run at once than there are slots (RULES 10).
func TestMaxAgents(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		running := make(chan struct{}, 2) // full: one too many
		p := &scripted{say: func(context.Context, agent.Request) (string, error) {
			select {
			case running <- struct{}{}:
			default:
				t.Error("a third agent runs")
			}
			<-time.After(time.Minute)
			<-running
			return "done", nil
		}}
		b.runner("r1", p, func(c *runner.Config) { c.MaxAgents = 2 })
		b.submit("run1", each, withInput(t, map[string]any{"list": []string{"a", "b", "c", "d", "e"}}))
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || len(p.started()) != 6 {
			t.Errorf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
		}
	})
}

const each = `
name: each
nodes:
  - {id: list, type: set, input: {set: {n: 1}}}
  - {id: work, type: agent, input: {prompt: "do {{ it }}"}}
  - {id: sum, type: agent, input: {prompt: "{{ work.iterations[1].output.text }}"}}
edges:
  - {from: list, to: work, forEach: {in: "{{ input.list }}", as: it}}
  - {from: work, to: sum}
workspace: shared
`

func withInput(t *testing.T, v any) func(*wire.RunRequest) {
	t.Helper()
	input, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return func(r *wire.RunRequest) { r.Input = input }
}

// The items of a forEach run on all runners of the pool, each as a node of its own
// with a seq and a session of its own (RULES 9).
func TestForEachOverRunners(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := [2]*scripted{}
		for i, id := range []string{"r1", "r2"} {
			p[i] = &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
				<-time.After(time.Second)
				return echo(ctx, r)
			}}
			b.runner(id, p[i], func(c *runner.Config) { c.MaxAgents = 2 })
		}
		b.submit("run1", each, withInput(t, map[string]any{"list": []string{"a", "b", "c", "d"}}))
		state, entries := b.ended("run1")
		if text := state.Outputs["sum"].TextAt("text"); text != "<<do b>>" {
			t.Errorf("sum said %q:\n%s", text, story(entries))
		}
		all := slices.Concat(p[0].started(), p[1].started())
		slices.Sort(all)
		if want := []string{"sum#1", "work/0#1", "work/1#1", "work/2#1", "work/3#1"}; !slices.Equal(all, want) {
			t.Errorf("started %v", all)
		}
		if len(p[0].started()) == 0 || len(p[1].started()) == 0 {
			t.Errorf("r1 has worked on %v, r2 on %v", p[0].started(), p[1].started())
		}
		sessions, seq := map[string]string{}, map[string]uint64{}
		for _, e := range entries {
			if e.Event.Seq != seq[e.NodeID]+1 {
				t.Errorf("%s: seq %d follows %d", e.NodeID, e.Event.Seq, seq[e.NodeID])
			}
			seq[e.NodeID] = e.Event.Seq
			if e.Event.Type() != wire.TypeAgentStart {
				continue
			}
			if other, there := sessions[e.Event.SessionID]; there {
				t.Errorf("%s and %s have one session", other, e.NodeID)
			}
			sessions[e.Event.SessionID] = e.NodeID
		}
		if len(sessions) != 5 {
			t.Errorf("sessions of %v", sessions)
		}
	})
}

// Many offers of the same execution to two runners are one execution.
func TestOfferedTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var all [2]*scripted
		for i, id := range []string{"r1", "r2"} {
			all[i] = &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
				<-time.After(time.Minute)
				return echo(ctx, r)
			}}
			b.runner(id, all[i])
		}
		b.submit("run1", strings.Replace(chain, "name: chain", "name: chain\nworkspace: shared", 1))
		b.until("run1", wire.TypeNodeScheduled)
		for range 20 {
			b.publish(subjects.Default.QueueNode("default"), wire.NodeOffer{V: 1, RunID: "run1", NodeID: "a", ExecID: "a#1"})
		}
		state, entries := b.ended("run1")
		if n := len(all[0].started()) + len(all[1].started()); n != 2 || state.Result != wire.FlowStatusComplete {
			t.Errorf("%d agents were started; the run ended as %s:\n%s", n, state.Result, story(entries))
		}
	})
}

// listens says what it is told, until it is told to stop.
func listens(s *session, say func(wire.Payload) bool) {
	for {
		select {
		case m := <-s.messages:
			if !say(&wire.UserMessage{Source: "command", CommandID: m.CommandID, Content: m.Content}) {
				return
			}
			if m.Content == "stop" {
				say(&wire.AgentComplete{Result: "told"})
				return
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// A message reaches the agent that it was sent to, once, and no other.
func TestSend(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{play: listens})
		b.submit("run1", `
name: pair
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
`)
		for n := 0; n < 2; n = count(b.read("run1"), wire.TypeAgentStart) {
			<-time.After(time.Second)
		}
		b.command("run1", wire.Command{Type: "send", ID: "c1", Message: "to whom?"})
		b.command("run1", wire.Command{Type: "send", ID: "c2", NodeID: "a", Message: "hello"})
		b.command("run1", wire.Command{Type: "send", ID: "c2", NodeID: "a", Message: "hello"})
		b.command("run1", wire.Command{Type: "send", ID: "c3", NodeID: "b", ExecID: "b#1", Message: "stop"})
		b.command("run1", wire.Command{Type: "send", ID: "c4", NodeID: "a", ExecID: "a#7", Message: "nobody"})
		b.until("run1", wire.TypeNodeComplete)
		<-time.After(time.Second) // the owner has to have heard of it too
		b.command("run1", wire.Command{Type: "send", ID: "c5", Message: "stop"})
		state, entries := b.ended("run1")
		var heard, accepted []string
		for _, e := range entries {
			switch p := e.Event.Payload.(type) {
			case *wire.UserMessage:
				heard = append(heard, e.NodeID+" "+p.CommandID)
			case *wire.CommandReceived:
				if p.Accepted {
					accepted = append(accepted, p.CommandID)
				}
			}
		}
		slices.Sort(heard)
		if want := []string{"a c2", "a c5", "b c3"}; !slices.Equal(heard, want) {
			t.Errorf("heard %v, want %v:\n%s", heard, want, story(entries))
		}
		if want := []string{"c2", "c3", "c5"}; !slices.Equal(accepted, want) || len(state.Inbox) != 0 {
			t.Errorf("accepted %v, want %v; %d in the inbox", accepted, want, len(state.Inbox))
		}
	})
}

// A message to the one live agent that doesn't listen isn't another agent's.
func TestSendIsNotPassedOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		heard := make(chan string, 10)
		b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
			select {
			case m := <-s.messages: // it has it, and doesn't say so
				heard <- s.request.NodeID + " " + m.Content
			case <-time.After(time.Minute):
			}
			say(&wire.AgentComplete{Result: "done"})
		}})
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		b.command("run1", wire.Command{Type: "send", Message: "psst"})
		b.ended("run1")
		close(heard)
		for h := range heard {
			if h != "a psst" {
				t.Errorf("heard %q", h)
			}
		}
	})
}

// An abort reaches an agent that takes no messages though one was sent to it.
func TestAbortOfDeafAgent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{play: func(s *session, _ func(wire.Payload) bool) {
			for range cap(s.messages) { // sending blocks from now on
				s.messages <- agent.Message{}
			}
			<-s.ctx.Done()
		}})
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		for range 3 {
			b.command("run1", wire.Command{Type: "send", Message: "hello?"})
		}
		<-time.After(time.Second)
		b.command("run1", wire.Command{Type: "abort"})
		start := time.Now()
		b.until("run1", wire.TypeAgentAborted)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// Whatever a client publishes as a command is on record, and the run goes on.
func TestBadCommands(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		id := strings.Repeat("long", 40) // of which the subject has a hash only
		b.runner("r1", &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			<-time.After(time.Minute)
			return echo(ctx, r)
		}})
		b.submit(id, chain)
		b.until(id, wire.TypeAgentStart)
		bad := []string{
			"", "garbage", "\xc1\xff\xfe", "{", `{"type":7}`, `{"type":"dance"}`, `{"type":"send"}`, `[]`, "7", `{"type":"abort","runId":"other"}`,
			`{"type":"send","nodeId":"a","execId":"\u0000\n","message":"x"}`, `{"type":"send","id":"` + strings.Repeat("i", 100_000) + `","message":""}`,
			`{"type":"reply","promptId":"` + strings.Repeat("p", 300_000) + `"}`, strings.Repeat("[", 100_000),
		}
		for _, data := range bad {
			if _, err := b.log.JetStream().Publish(t.Context(), subjects.Default.Command(id), []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		state, entries := b.ended(id)
		if n := count(entries, wire.TypeCommandReceived); n != len(bad) || len(state.Inbox) != 0 {
			t.Errorf("%d of %d commands are on record, %d accepted:\n%s", n, len(bad), len(state.Inbox), story(entries))
		}
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeRunClaimed) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// oneProcessor keeps a goroutine of the client out of the way: ObjectStore.Put may
// leave one behind if there are several (docs/known-bugs.md).
func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// An input that is too large for an event reaches the agent whole, and so does
// the output of a child run.
func TestLargeValues(t *testing.T) {
	oneProcessor(t)
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		who := strings.Repeat("x", 400_000)
		b.submit("run1", nested, withInput(t, map[string]any{"who": who}))
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete {
			t.Fatalf("run ended as %s (%.200s):\n%s", state.Result, state.Error, story(entries))
		}
		for _, e := range entries {
			if e.Event.Type() != wire.TypeAgentComplete {
				continue
			}
			whole, err := b.log.Inline(t.Context(), e.Event)
			if err != nil {
				t.Fatal(err)
			}
			if p := whole.Payload.(*wire.AgentComplete); p.Result != "<<child of "+who+">>" {
				t.Errorf("%s said %.30q…, %d bytes", e.NodeID, p.Result, len(p.Result))
			}
		}
	})
}

// A node that ended just before its time limit, its agent taking time to go,
// has one outcome.
func TestLimitWhileClosing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{
			say: func(ctx context.Context, r agent.Request) (string, error) {
				<-time.After(4 * time.Second)
				return echo(ctx, r)
			},
			closing: func() { <-time.After(3 * time.Second) },
		})
		b.submit("run1", `
name: slow
nodes:
  - {id: a, type: agent, input: {prompt: "a"}, policy: {timeoutMs: 5000}}
`)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeComplete)+count(entries, wire.TypeNodeError) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

const one = `
name: one
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
`

// While storage is away, the agent goes on at once after the result of a tool, which is
// stored later with a note of that. It begins no tool while another worker might
// hold its lease: one that is idempotent waits; the intent of one with side effects
// ends it, nothing says that the node has failed, and when storage is back the agent
// goes on in the same execution.
func TestPersistTimeout(t *testing.T) {
	play := func(last wire.Payload, b *bench) func(*session, func(wire.Payload) bool) {
		return func(s *session, say func(wire.Payload) bool) {
			if s.request.Resume {
				say(&wire.AgentComplete{Result: "done"})
				return
			}
			say(&wire.TurnStart{})
			b.server.Stop()
			<-time.After(time.Millisecond) // the client learns of it: else what follows is taken as stored in time
			asked := time.Now()
			if !say(last) {
				return
			}
			if must, ok := last.(*wire.ToolIntent); (!ok || must.Idempotent) && time.Since(asked) > time.Second {
				b.t.Errorf("the agent waited for storage for %s", time.Since(asked))
			}
			if last.Type() == wire.TypeAgentTool {
				<-time.After(time.Minute)
				b.server.Start(b.t)
				<-time.After(time.Minute)
			}
			_ = say(&wire.AgentTool{ToolName: "Read", ToolInput: wire.Raw{0x80}, ToolOutput: wire.RawString("ok")}) && say(&wire.AgentComplete{Result: "done"})
		}
	}
	hash := strings.Repeat("0", 64)
	for name, last := range map[string]wire.Payload{
		"result": &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Raw{0x80}, ToolOutput: wire.RawString("ok")},
		"intent": &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Raw{0x80}, InputHash: hash, Idempotent: true},
		"effect": &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Raw{0x80}, InputHash: hash},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &scripted{play: play(last, b)}
				b.runner("r1", p)
				b.submit("run1", one)
				if name != "result" {
					<-time.After(2 * time.Minute)
					b.server.Start(t)
				}
				if name == "effect" {
					state, entries := b.ended("run1")
					if state.Result != wire.FlowStatusComplete || len(p.started()) != 2 || count(entries, wire.TypeNodeStart) != 1 ||
						count(entries, wire.TypeNodeError) != 0 || count(entries, wire.TypeAgentResumed) != 1 {
						t.Errorf("the run ended as %s:\n%s", state.Result, story(entries))
					}
					if count(entries, wire.TypeToolIntent) != count(entries, wire.TypeToolSealed) {
						t.Errorf("the intent was not sealed:\n%s", story(entries))
					}
					return
				}
				state, entries := b.ended("run1")
				if state.Result != wire.FlowStatusComplete || count(entries, last.Type()) == 0 || count(entries, wire.TypeStorageFailure) != 1 {
					t.Errorf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
				}
				for _, e := range entries {
					if f, ok := e.Event.Payload.(*wire.StorageFailure); ok && f.UntilMs != 0 && f.UntilMs-f.SinceMs < 30_000 {
						t.Errorf("storage was away from %d to %d: %s\n%s", f.SinceMs, f.UntilMs, f.Message, story(entries))
					}
				}
			})
		})
	}
}

// TestSilentStorage has a server say nothing for a minute, with its connection open: it is away like one that is gone. What only reads begins
// soon, also if the log is the agent's memory, and when the server is back that is on record at once.
func TestSilentStorage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		script := &apitest.Script{}
		for i := range 30 {
			script.Replies = append(script.Replies, apitest.Message(apitest.Call(fmt.Sprint("t", i), "glob", `{"pattern":"x"}`)))
		}
		script.Replies = append(script.Replies, apitest.Message(apitest.Text("Nothing.")))
		p := &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: &http.Client{Transport: thinking{script}}}
		r1 := b.process("r1", nil, func(c *runner.Config) { c.Providers = map[string]agent.Provider{"native": p} })
		r1.gate.delay(string(wire.TypeCheckpoint), time.Minute)
		b.submit("run1", strings.Replace(one, `prompt: "a"`, `provider: native, model: m, prompt: "a"`, 1))
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeAgentStart) != 1 {
			t.Errorf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
		}
		var silent, begun int64
		for _, e := range entries {
			switch p := e.Event.Payload.(type) {
			case *wire.Checkpoint:
				silent = cmp.Or(silent, e.Event.Timestamp)
			case *wire.ToolState:
				begun = cmp.Or(begun, e.Event.Timestamp)
			case *wire.StorageFailure:
				if took := p.UntilMs - p.SinceMs; p.SinceMs != silent || took < 60_000 || took > 70_000 {
					t.Errorf("silent from %d on, and on record is that it was from %d until %d", silent, p.SinceMs, p.UntilMs)
				}
			}
		}
		if late := begun - silent; late < 0 || late > 3000 {
			t.Errorf("the call began %d ms late", late)
		}
		if n := count(entries, wire.TypeStorageFailure); n != 1 {
			t.Errorf("%d times away:\n%s", n, story(entries))
		}
	})
}

// thinking is a model that takes its time.
type thinking struct{ http.RoundTripper }

func (m thinking) RoundTrip(r *http.Request) (*http.Response, error) {
	<-time.After(3 * time.Second)
	return m.RoundTripper.RoundTrip(r)
}

// Runs that are asked for while runners come and go are all done, once each.
func TestRunnersComeAndGo(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		shared := strings.Replace(chain, "name: chain", "name: chain\nworkspace: shared", 1)
		stop := b.runner("r0", p)
		ids := []string{"a1", "a2", "a3", "a4"}
		for _, id := range ids {
			b.submit(id, shared)
			b.ended(id)
			next := b.runner("r-"+id, p)
			stop()
			stop = next
		}
		if n := len(p.started()); n != 2*len(ids) {
			t.Errorf("%d agents were started", n)
		}
		synctest.Wait()
		if n := b.waiting(); n != 0 {
			t.Errorf("%d messages are in the queue", n)
		}
	})
}

// troubleOf is why a part can't work, or nil.
func troubleOf(b *health.Board, part string) error {
	for _, t := range b.Troubles() {
		if t.Part == part {
			return t.Err
		}
	}
	return nil
}
