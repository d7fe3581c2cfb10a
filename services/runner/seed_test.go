package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// F12: the conditions of a flow hold in a run as in the scheduler: a path that
// leads nowhere is false, objects and lists are compared deeply, and, or and not
// combine, and expressions compute.
func TestF12Conditions(t *testing.T) {
	a, err := txtar.ParseFile("../../internal/flow/testdata/runs/f12_when.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range a.Files {
		files[f.Name] = f.Data
	}
	want, err := wire.RawFromJSON(files["outcome.json"])
	if err != nil {
		t.Fatal(err)
	}
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", string(files["flow.yaml"]))
		state, _ := b.ended("run1")
		outputs := map[string]any{}
		for node, output := range state.Outputs {
			outputs[node] = output.Any()
		}
		if diff := cmp.Diff(want.Get("outputs").Any(), any(outputs)); diff != "" {
			t.Error(diff)
		}
		if len(outputs) != 19 || state.Result != wire.FlowStatusComplete {
			t.Errorf("the run ended as %s with %d outputs", state.Result, len(outputs))
		}
	})
}

// S1: after a crash what was read stays as it is, and the write that waited for
// approval is sealed: its result is the last thing that the agent had, an error,
// and the file is as it was.
func TestS1Crash(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		file := filepath.Join(t.TempDir(), "notes.txt")
		if err := os.WriteFile(file, []byte("as it was"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := &puppet{play: func(a *act) {
			a.turn()
			a.intend("read")
			a.say(&wire.AgentTool{ToolName: "fs_read", ToolInput: wire.Null, ToolOutput: wire.RawString("as it was")}, "read")
			a.intend("write")
			a.say(&wire.PermissionRequired{ToolName: "fs_write"}, "write")
			if !a.request.Options.Decide(a.ctx, agent.Permission{CallID: "write", ToolName: "fs_write"}).Allow {
				return
			}
			if err := os.WriteFile(file, []byte("overwritten"), 0o600); err != nil {
				t.Error(err)
			}
		}}
		r1 := b.process("r1", before)
		b.submit("run1", shared(strings.Replace(one, `prompt: "a"`, `prompt: "a", permissionMode: default`, 1)))
		asked := len(b.until("run1", wire.TypePermissionRequired))
		r1.kill()
		after := &puppet{}
		b.process("r2", after)
		_, entries := b.ended("run1")
		rest := entries[asked:]
		if got := calls(rest); got != "write tool:sealed\nwrite agent:tool\n" {
			t.Errorf("of calls it says:\n%s", got)
		}
		if p := first[*wire.ToolSealed](t, rest); p.From != wire.ToolApprovalRequired {
			t.Errorf("sealed from %s", p.From)
		}
		result := first[*wire.AgentTool](t, rest)
		if status := result.ToolOutput.TextAt("data", "status"); result.Error == "" || status != string(wire.ToolSealedState) {
			t.Errorf("its result is %+v", result)
		}
		if p := first[*wire.AgentResumed](t, rest); p.Strategy != "crash" || !slices.Equal(p.Sealed, []string{"write"}) {
			t.Errorf("resumed: %+v", p)
		}
		if r := after.asked()[0]; !r.Resume || !strings.Contains(promptOf(r), "waited for approval") {
			t.Errorf("it goes on with %+v", r)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "as it was" {
			t.Errorf("the file says %q, %v", text, err)
		}
	})
}

// S4: strategy manual seals nothing and loses nothing: the call stays open, the
// list of things to do intact, and no agent goes on before a person has dealt with
// the call. Then the agent asks for permission again, as before.
func TestS4Manual(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", strings.Replace(single, `prompt: "do it"`, `prompt: "do it", permissionMode: default`, 1), "dead")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{},
			&wire.TodoChanged{Items: []wire.Todo{{ID: "1", Content: "build", Status: "completed"}, {ID: "2", Content: "test", Status: "in_progress"}}})
		l.call("c1", &wire.PermissionRequired{ToolName: "Tool-c1"})
		l.decide(&wire.FlowPaused{Reason: wire.PauseOperator})
		todos := b.fold("run1", b.read("run1")).Todos
		p := &puppet{}
		b.runner("r1", p)
		before := len(b.read("run1"))
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "run1"})
		b.after("run1", before, wire.TypeRunClaimed)
		<-time.After(time.Second) // until commands are served
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Strategy: "manual"}); code(r) != "COMMAND_REJECTED" || !strings.Contains(r.Reason, "c1") {
			t.Errorf("with an open call: %+v", r)
		}
		no := false
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Strategy: "manual", AutoRun: &no}); code(r) != "accepted" {
			t.Fatalf("without going on: %+v", r)
		}
		resumed := first[*wire.AgentResumed](t, b.until("run1", wire.TypeAgentResumed))
		<-time.After(time.Minute)
		entries := b.read("run1")
		s := b.fold("run1", entries)
		if resumed.Strategy != "manual" || len(resumed.Sealed) != 0 || count(entries, wire.TypeToolSealed) != 0 {
			t.Errorf("resumed: %+v:\n%s", resumed, story(entries))
		}
		if len(s.Tools) != 1 || s.Tools["a#1/c1"].State != wire.ToolApprovalRequired || s.Status != wire.RunPaused || len(p.asked()) != 0 {
			t.Errorf("the run is %s with the calls %+v, %d agents were started", s.Status, s.Tools, len(p.asked()))
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1"}); code(r) != "accepted" {
			t.Fatalf("then: %+v", r)
		}
		state, _ := b.ended("run1")
		if diff := cmp.Diff(todos, state.Todos); diff != "" || len(todos) != 2 {
			t.Error(len(todos), diff)
		}
		if p.asked()[0].Options.Decide == nil {
			t.Error("the agent asks nobody any more")
		}
	})
}

// A run that is held by strategy manual is left by answers to its open calls: it goes on by itself then,
// and the agent knows the answer.
func TestS4ManualIsLeft(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", strings.Replace(single, `prompt: "do it"`, `prompt: "do it", permissionMode: default`, 1), "dead")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		l.call("c1", &wire.PermissionRequired{ToolName: "Tool-c1"})
		l.call("c2", &wire.PermissionRequired{ToolName: "Tool-c2"})
		l.decide(&wire.FlowPaused{Reason: wire.PauseOperator})
		p := &puppet{}
		b.runner("r1", p)
		before := len(b.read("run1"))
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "run1"})
		b.after("run1", before, wire.TypeRunClaimed)
		<-time.After(time.Second) // until commands are served
		no := false
		for _, c := range []struct {
			wire.Command

			want string
		}{
			{wire.Command{Type: "resume", Strategy: "manual", AutoRun: &no}, "accepted"},
			{wire.Command{Type: "approve", CallID: "c1"}, "accepted"},
			{wire.Command{Type: "resume", Strategy: "manual"}, "COMMAND_REJECTED"}, // the other one is open
			{wire.Command{Type: "deny", CallID: "c2", Note: "not on a Friday"}, "accepted"},
		} {
			c.RunID = "run1"
			if r := b.tell(c.Command); code(r) != c.want {
				t.Fatalf("%+v: %+v", c.Command, r)
			}
		}
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || len(state.Tools) != 0 || len(state.Inbox) != 0 {
			t.Errorf("the run ended as %s with %+v, %+v:\n%s", state.Result, state.Tools, state.Inbox, story(entries))
		}
		told := promptOf(p.asked()[0])
		if !strings.Contains(told, "approved and interrupted before it began") || !strings.Contains(told, "not on a Friday") {
			t.Errorf("the agent is told %q", told)
		}
	})
}

// Strategy manual is chosen after a crash in the middle of a call, while no runner has the run: it is taken over paused, the call stays as
// it was, and the answer to it lets the run go on; the agent is told.
func TestManualAfterACrash(t *testing.T) {
	for answer, want := range map[string]string{"approve": "may be made again", "deny": "don't make it again. Said to that: look first"} {
		t.Run(answer, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				r1 := b.process("r1", &puppet{play: func(a *act) {
					a.turn()
					a.intend("c1")
					a.say(&wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting}, "c1")
					<-a.ctx.Done()
				}})
				b.submit("run1", shared(one))
				b.until("run1", wire.TypeToolState)
				<-time.After(time.Second)
				r1.kill()
				no := false
				b.publish(subjects.Default.Command("run1"), wire.Command{ID: "p", Type: "pause", RunID: "run1"})
				b.publish(subjects.Default.Command("run1"), wire.Command{ID: "m", Type: "resume", RunID: "run1", Strategy: "manual", AutoRun: &no})
				p := &puppet{}
				b.process("r2", p)
				<-time.After(3 * time.Minute)
				entries := b.read("run1")
				s := b.fold("run1", entries)
				if s.Status != wire.RunPaused || !s.Held || len(s.Tools) != 1 || count(entries, wire.TypeToolSealed) != 0 || len(p.asked()) != 0 {
					t.Fatalf("the run is %s (held: %t) with %+v, %d agents were started:\n%s", s.Status, s.Held, s.Tools, len(p.asked()), story(entries))
				}
				if r := b.tell(wire.Command{Type: answer, RunID: "run1", CallID: "c1", Note: "look first"}); code(r) != "accepted" {
					t.Fatalf("%s: %+v", answer, r)
				}
				state, entries := b.ended("run1")
				if state.Result != wire.FlowStatusComplete || len(state.Tools) != 0 || len(state.Inbox) != 0 {
					t.Errorf("the run ended as %s with %+v, %+v:\n%s", state.Result, state.Tools, state.Inbox, story(entries))
				}
				if told := promptOf(p.asked()[0]); !strings.Contains(told, "Tool-c1") && !strings.Contains(told, "c1") || !strings.Contains(told, want) {
					t.Errorf("the agent is told %q", told)
				}
			})
		})
	}
}

// Strategy crash that starts no agent seals what is open, and says so; the run stays paused.
func TestHeldCrashSeals(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "dead")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		l.call("c1")
		l.decide(&wire.FlowPaused{Reason: wire.PauseOperator})
		p := &puppet{}
		b.runner("r1", p)
		before := len(b.read("run1"))
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "run1"})
		b.after("run1", before, wire.TypeRunClaimed)
		<-time.After(time.Second) // until commands are served
		no := false
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Strategy: "crash", AutoRun: &no}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		resumed := first[*wire.AgentResumed](t, b.until("run1", wire.TypeAgentResumed))
		<-time.After(time.Minute)
		entries := b.read("run1")
		s := b.fold("run1", entries)
		if !slices.Equal(resumed.Sealed, []string{"c1"}) || count(entries, wire.TypeToolSealed) != 1 || len(s.Tools) != 0 || s.Status != wire.RunPaused || len(p.asked()) != 0 {
			t.Errorf("resumed %+v; the run is %s with the calls %+v, %d agents were started:\n%s", resumed, s.Status, s.Tools, len(p.asked()), story(entries))
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1"}); code(r) != "accepted" {
			t.Fatalf("then: %+v", r)
		}
		if state, _ := b.ended("run1"); state.Result != wire.FlowStatusComplete || !strings.Contains(promptOf(p.asked()[0]), "Tool-c1") {
			t.Errorf("the run ended as %s, its agent was told %q", state.Result, promptOf(p.asked()[0]))
		}
	})
}

// S8: what an agent says while storage is away, its end with it, is kept and stored
// when storage is back, in order and once.
func TestS8DoneIsKept(t *testing.T) {
	for _, away := range []time.Duration{5 * time.Second, time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &puppet{play: func(a *act) {
					a.turn()
					a.say(&wire.AgentTextDelta{Content: "before", Block: 1}, "")
					<-time.After(time.Second)
					b.server.Stop()
					a.say(&wire.AgentTextDelta{Content: "chunk", Block: 1}, "")
					a.say(&wire.AgentComplete{Result: "done"}, "")
				}}
				b.runner("r1", p)
				b.submit("run1", single)
				b.until("run1", wire.TypeAgentTextDelta)
				<-time.After(away)
				b.server.Start(t)
				state, entries := b.ended("run1")
				var told []string
				for _, e := range entries {
					switch p := e.Event.Payload.(type) {
					case *wire.AgentTextDelta:
						told = append(told, p.Content)
					case *wire.AgentComplete:
						told = append(told, p.Result)
					}
				}
				if diff := cmp.Diff([]string{"before", "chunk", "done"}, told); diff != "" || len(p.asked()) != 1 || state.Result != wire.FlowStatusComplete {
					t.Errorf("%d sessions, the run ended as %s: %s\n%s", len(p.asked()), state.Result, diff, story(entries))
				}
			})
		})
	}
}

// hears says which messages it gets until it is told to stop; before its session
// nth it acknowledges none.
func hears(nth int) func(*act) {
	return func(a *act) {
		a.turn()
		for {
			select {
			case m := <-a.messages:
				if a.nth < nth {
					continue
				}
				a.say(&wire.UserMessage{Content: m.Content, Source: "command", CommandID: m.CommandID}, "")
				if m.Content == "stop" {
					a.say(&wire.AgentComplete{Result: "told"}, "")
					return
				}
			case <-a.interrupted:
				a.say(&wire.AgentPaused{}, "")
				return
			case <-a.ctx.Done():
				return
			}
		}
	}
}

// messages lists what was accepted and what was heard, in the order of the log.
func messages(entries []eventlog.Entry) (all []string) {
	for _, e := range entries {
		switch p := e.Event.Payload.(type) {
		case *wire.CommandReceived:
			if text := p.Command.TextAt("message"); p.Accepted && text != "" {
				all = append(all, "received "+text)
			}
		case *wire.UserMessage:
			all = append(all, "heard "+p.Content)
		}
	}
	return all
}

// S9: the queue of messages is the inbox of the run. A message is on record before
// its agent gets it and leaves the inbox when the agent says that it has it; one
// to a paused run is a reminder: it starts no agent, and is heard when the run goes
// on; what an agent hasn't acknowledged when its runner dies is given to it again,
// in order.
func TestS9Queue(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: hears(3)}
		r1 := b.process("r1", p)
		b.submit("run1", single)
		b.until("run1", wire.TypeTurnStart)
		b.command("run1", wire.Command{Type: "pause"})
		b.until("run1", wire.TypeAgentPaused)
		if r := b.tell(wire.Command{Type: "send", RunID: "run1", Message: "one"}); code(r) != "accepted" {
			t.Fatalf("send to a paused run: %+v", r)
		}
		<-time.After(time.Minute)
		if s := b.fold("run1", b.read("run1")); len(p.asked()) != 1 || len(s.Inbox) != 1 || s.Status != wire.RunPaused {
			t.Errorf("reminded, the run is %s with inbox %v and %d sessions", s.Status, s.Inbox, len(p.asked()))
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1"}); code(r) != "accepted" {
			t.Fatalf("resume: %+v", r)
		}
		b.awaits("the second session", func() bool { return count(b.read("run1"), wire.TypeTurnStart) == 2 })
		for _, m := range []string{"two", "three"} {
			if r := b.tell(wire.Command{Type: "send", RunID: "run1", Message: m}); code(r) != "accepted" {
				t.Fatalf("send: %+v", r)
			}
		}
		<-time.After(time.Second) // the agent has got them and acknowledges nothing
		r1.kill()
		if s := b.fold("run1", b.read("run1")); len(s.Inbox) != 3 {
			t.Errorf("not acknowledged, but in the inbox are %v", s.Inbox)
		}
		b.process("r2", p)
		b.awaits("three messages", func() bool { return count(b.read("run1"), wire.TypeUserMessage) == 3 })
		b.tell(wire.Command{Type: "send", RunID: "run1", Message: "stop"})
		state, entries := b.ended("run1")
		want := []string{
			"received one", "received two", "received three", "heard one", "heard two", "heard three", "received stop", "heard stop",
		}
		if diff := cmp.Diff(want, messages(entries)); diff != "" || len(state.Inbox) != 0 {
			t.Errorf("left are %v: %s", state.Inbox, diff)
		}
	})
}

const five = `
name: five
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}, policy: {continueOnError: true}}
  - {id: c, type: agent, input: {prompt: "c"}}
  - {id: d, type: agent, input: {prompt: "d"}}
  - {id: e, type: agent, input: {prompt: "e"}}
`

// crew is an agent that counts how many of it are at work.
type crew struct {
	mu        sync.Mutex
	now, peak int
}

func (c *crew) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.peak = max(c.peak, c.now)
}

// S10: of five agents side by side two are at work at once, which is what their
// runner has room for; the failure of one is nothing to the others.
func TestS10Slots(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var c crew
		p := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			c.add(1)
			defer c.add(-1)
			<-time.After(time.Minute)
			if r.NodeID == "b" {
				return "", errors.New("b fails")
			}
			return echo(ctx, r)
		}}
		b.runner("r1", p, func(c *runner.Config) { c.MaxAgents = 2 })
		b.submit("run1", five)
		state, entries := b.ended("run1")
		if c.peak != 2 || len(p.started()) != 5 || state.Result != wire.FlowStatusComplete {
			t.Errorf("at most %d at once, %v were started, the run ended as %s:\n%s", c.peak, p.started(), state.Result, story(entries))
		}
		for _, node := range []string{"a", "c", "d", "e"} {
			if text := state.Outputs[node].TextAt("text"); text != "<"+node+">" {
				t.Errorf("%s says %q", node, text)
			}
		}
		if text := state.Outputs["b"].TextAt("error"); text != "b fails" {
			t.Errorf("b: %v", state.Outputs["b"].Any())
		}
	})
}

// S10: what waits for room when the run is aborted never begins, and leaves the
// queue.
func TestS10Clear(t *testing.T) {
	for name, queued := range map[string]bool{"": false, "workspace: shared": true} { // whose nodes any runner may take
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := gated(nil)
				b.runner("r1", p, func(c *runner.Config) { c.MaxAgents = 2 })
				b.submit("run1", name+five)
				b.awaits("two agents", func() bool { return count(b.read("run1"), wire.TypeAgentStart) == 2 })
				<-time.After(time.Minute)
				if n := b.waiting(); queued && n < 3 || !queued && n != 0 {
					t.Errorf("%d offers wait in the queue", n)
				}
				b.command("run1", wire.Command{Type: "abort"})
				b.ended("run1")
				<-time.After(10 * time.Minute)
				entries := b.read("run1")
				if len(p.started()) != 2 || count(entries, wire.TypeNodeStart) != 2 || b.waiting() != 0 {
					t.Errorf("%v were started, %d offers wait:\n%s", p.started(), b.waiting(), story(entries))
				}
			})
		})
	}
}

// runningList is what the runner keeps of what was running, empty if nothing.
func (b *bench) runningList(id string) (runs, nodes []string) {
	b.t.Helper()
	kv, err := b.log.JetStream().KeyValue(b.t.Context(), subjects.Default.StateBucket())
	if err != nil {
		b.t.Fatal(err)
	}
	e, err := kv.Get(b.t.Context(), subjects.Default.StateKey("drain", id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	var list struct {
		Runs  []string `json:"runs"`
		Nodes []string `json:"nodes"`
	}
	if err := wire.Unmarshal(e.Value(), &list); err != nil {
		b.t.Fatal(err)
	}
	return list.Runs, list.Nodes
}

// S13: an agent that does nothing ends at once and keeps no list; a run in which no agent is
// at work is handed over as it is, and listed; an agent at work that is deaf is
// interrupted when its 100 ms are over.
func TestS13Shutdown(t *testing.T) {
	const asks = `
name: asks
nodes:
  - {id: a, type: ask, input: {prompt: "?"}}
`
	tests := []struct {
		name, flow  string
		until       wire.Type
		runs, nodes []string
		paused      string // reason of agent:paused
	}{
		{name: "empty"},
		{name: "ready", flow: asks, until: wire.TypeInputRequested, runs: []string{"run1"}},
		{name: "working", flow: single, until: wire.TypeTurnStart, runs: []string{"run1"}, nodes: []string{"run1/a#1"}, paused: "forced"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &puppet{play: func(a *act) {
					a.turn()
					<-a.ctx.Done()
				}}
				stop := b.runner("r1", p, func(c *runner.Config) { c.DrainTimeout = 100 * time.Millisecond })
				if tt.flow != "" {
					b.submit("run1", tt.flow)
					b.until("run1", tt.until)
				}
				<-time.After(time.Second)
				start := time.Now()
				stop()
				if took := time.Since(start); took > time.Second {
					t.Errorf("ending took %s", took)
				}
				runs, nodes := b.runningList("r1")
				if diff := cmp.Diff([][]string{tt.runs, tt.nodes}, [][]string{orNil(runs), orNil(nodes)}); diff != "" {
					t.Error(diff)
				}
				entries := b.read("run1")
				if n := count(entries, wire.TypeAgentPaused); (n == 1) != (tt.paused != "") {
					t.Errorf("%d agents were interrupted:\n%s", n, story(entries))
				} else if n == 1 && first[*wire.AgentPaused](t, entries).Reason != tt.paused {
					t.Errorf("interrupted: %+v", first[*wire.AgentPaused](t, entries))
				}
			})
		})
	}
}

func orNil(s []string) []string {
	if len(s) == 0 {
		return nil
	}
	return s
}

// S13: a list that names what isn't there any more begins nothing when its runner
// is back, and is cleared.
func TestS13ListOfTheMissing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		r1.stop()
		if runs, _ := b.runningList("r1"); !slices.Equal(runs, []string{"run1"}) {
			t.Fatalf("the list is %v", runs)
		}
		b.process("r2", &scripted{say: echo})
		b.ended("run1")
		<-time.After(time.Minute)
		before := len(b.read("run1"))
		back := &scripted{say: echo}
		b.process("r1", back)
		b.awaits("a cleared list", func() bool { runs, _ := b.runningList("r1"); return runs == nil })
		<-time.After(time.Minute)
		if after := b.read("run1"); len(after) != before || len(back.started()) != 0 {
			t.Errorf("r1 started %v and wrote:\n%s", back.started(), story(after[before:]))
		}
	})
}

// The complete example of seeds/003, by a program: an agent whose runner has ended
// it is looked up, resumed from the store without going on, listened to anew, kept,
// forked twice and spoken to; then it goes on with another model, asks, and is done.
func TestSeed003(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			switch {
			case a.request.RunID != "agt-demo":
				m := <-a.messages
				a.say(&wire.UserMessage{Content: m.Content, Source: "command", CommandID: m.CommandID}, "")
			case a.nth == 1:
				a.intend("c1")
				<-a.ctx.Done()
				return
			default:
				a.intend("c2")
				a.say(&wire.PermissionRequired{ToolName: "Bash"}, "c2")
				v := a.request.Options.Decide(a.ctx, agent.Permission{CallID: "c2", ToolName: "Bash"})
				a.say(&wire.PermissionDecided{Decision: wire.DecisionAllow, By: v.By}, "c2")
				a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null}, "c2")
				a.say(&wire.AgentTextDelta{Content: "It is built.", Block: 1}, "")
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		r1 := b.process("r1", p)
		b.submit("agt-demo", single)
		b.until("agt-demo", wire.TypeToolIntent)
		b.command("agt-demo", wire.Command{Type: "pause"})
		b.until("agt-demo", wire.TypeAgentPaused)
		r1.kill()
		b.process("r2", p)
		<-time.After(time.Minute)

		logtest.Serve(t, b.log)
		c, err := client.Open(t.Context(), b.nc, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if there, err := c.Exists(t.Context(), "agt-demo"); err != nil || !there {
			t.Fatalf("it exists: %t, %v", there, err)
		}
		a, err := c.ResumeFromStore(t.Context(), "agt-demo", client.ResumeOptions{Strategy: "crash", AutoRun: new(false)})
		if err != nil {
			t.Fatal(err)
		}
		b.until("agt-demo", wire.TypeAgentResumed)
		if s := b.fold("agt-demo", b.read("agt-demo")); s.Status != wire.RunPaused || len(s.Tools) != 0 {
			t.Errorf("the run is %s with open calls %v", s.Status, s.Tools)
		}
		b.forks(a, p)

		heard := map[string]string{}
		listen := func(kind string, say func(client.Event) string) {
			if err := a.On(kind, func(e client.Event) { heard[kind] += say(e) }); err != nil {
				t.Error(err)
			}
		}
		listen("agent_resumed", func(e client.Event) string { return e.Strategy + " " + strings.Join(e.Sealed, " ") + ";" })
		listen("tool_executed", func(e client.Event) string { return e.Call.Name })
		listen("error", func(e client.Event) string { return e.Message })
		listen("permission_required", func(e client.Event) string {
			if err := e.Respond(true, ""); err != nil {
				t.Error(err)
			}
			return e.Call.Name
		})
		config := client.Config{Template: "one", Model: "opus", Sandbox: client.Sandbox{Kind: "local", WorkDir: t.TempDir(), EnforceBoundary: true}}
		if _, err := c.Resume(t.Context(), a.ID, config, client.ResumeOptions{Message: "go on"}); err != nil {
			t.Fatal(err)
		}
		if state, err := a.Wait(t.Context()); err != nil || state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %+v, %v", state, err)
		}
		want := map[string]string{"agent_resumed": "crash c1;crash ;", "tool_executed": "Bash", "permission_required": "Bash"}
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Error(diff)
		}
		last := p.asked()[len(p.asked())-1]
		if o := last.Options; o.Model != "opus" || o.PermissionMode != "default" || o.Cwd != config.Sandbox.WorkDir || !strings.HasPrefix(promptOf(last), "go on") {
			t.Errorf("it went on with %+v", last)
		}
		var said strings.Builder
		for e, err := range a.Subscribe(t.Context(), []client.Channel{client.Progress}, client.SubscribeOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			said.WriteString(e.Event.Delta)
			if e.Event.Type == "done" {
				said.WriteString("(" + e.Event.Reason + ")")
			}
		}
		if said.String() != "(interrupted)It is built.(completed)" {
			t.Errorf("it said %q", said.String())
		}
	})
}

// forks takes snapshots of a paused agent and forks it twice.
func (b *bench) forks(a *client.Agent, p *puppet) {
	b.t.Helper()
	ctx := b.t.Context()
	label, err := a.Snapshot(ctx, "pre-release-audit")
	if err != nil || label != "pre-release-audit" {
		b.t.Errorf("snapshot %q, %v", label, err)
	}
	if label, err := a.Snapshot(ctx, ""); err != nil || label != "sfp-2" {
		b.t.Errorf("snapshot without a label: %q, %v", label, err)
	}
	labelled, err := a.Fork(ctx, label)
	if err != nil {
		b.t.Fatal(err)
	}
	latest, err := a.Fork(ctx, "")
	if err != nil || latest.ID == labelled.ID || labelled.ID == a.ID {
		b.t.Fatalf("forks %+v and %+v, %v", labelled, latest, err)
	}
	for _, f := range []*client.Agent{labelled, latest} {
		if err := f.Send(ctx, "a new task of "+f.ID); err != nil {
			b.t.Errorf("send to fork %s: %v", f.ID, err)
		}
		state, entries := b.ended(f.ID)
		heard := first[*wire.UserMessage](b.t, entries).Content
		if heard != "a new task of "+f.ID || len(state.Lineage) != 1 || state.Lineage[0].RunID != a.ID || state.Result != wire.FlowStatusComplete {
			b.t.Errorf("fork %s ended as %s of %+v and heard %q", f.ID, state.Result, state.Lineage, heard)
		}
	}
	for _, r := range p.asked()[1:] {
		if r.ForkOf != p.asked()[0].SessionID || r.SessionID == r.ForkOf {
			b.t.Errorf("a fork's session: %+v", r)
		}
	}
}

// Sandbox.workDir of seeds/003: a run goes on in another folder, here one that its
// own was lost for, and stays there.
func TestResumeElsewhere(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		dir := t.TempDir()
		r1 := b.process("r1", gated(nil), func(c *runner.Config) { c.Workspaces = dir })
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		if err := os.RemoveAll(filepath.Join(dir, "run1")); err != nil {
			t.Fatal(err)
		}
		p := &puppet{}
		b.process("r2", p)
		b.until("run1", wire.TypeFlowPaused)
		elsewhere := t.TempDir()
		overrides := func(v any) wire.Raw {
			raw, err := wire.Marshal(map[string]any{"workspace": v})
			if err != nil {
				t.Fatal(err)
			}
			return raw
		}
		for _, bad := range []any{"here", "", 7, nil} {
			if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Overrides: overrides(bad)}); code(r) != "BAD_REQUEST" {
				t.Errorf("in %v: %+v", bad, r)
			}
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Overrides: overrides(elsewhere)}); code(r) != "accepted" {
			t.Fatalf("elsewhere: %+v", r)
		}
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || state.Workspace != elsewhere || len(p.asked()) != 2 || count(entries, wire.TypeFlowPaused) != 1 {
			t.Errorf("run ended as %s in %s:\n%s", state.Result, state.Workspace, story(entries))
		}
		for _, r := range p.asked() {
			if r.Options.Cwd != elsewhere {
				t.Errorf("%s worked in %s", r.NodeID, r.Options.Cwd)
			}
		}
		b.submit("run2", strings.Replace(one, "\nnodes:", "\nworkspace: node\nnodes:", 1))
		b.ended("run2")
		if r := b.tell(wire.Command{Type: "fork", RunID: "run2", Overrides: overrides(elsewhere)}); code(r) != "BAD_REQUEST" {
			t.Errorf("of a run without a folder: %+v", r)
		}
	})
}

// A node whose agent this runner doesn't have fails and says so in a word that
// programs understand (issue 3, 8).
func TestUnknownProvider(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{}, func(c *runner.Config) { c.Providers = map[string]agent.Provider{"other": c.Providers["claude"]} })
		b.submit("run1", one)
		state, _ := b.ended("run1")
		if n := state.Nodes["a"]; state.Result != wire.FlowStatusFailed || n.ErrorType != wire.ErrorNoProvider || !strings.Contains(n.Error, `"claude"`) {
			t.Errorf("the run ended as %s, a with %q: %s", state.Result, n.ErrorType, n.Error)
		}
	})
}
