package runner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
	"code.wake.dev/wake/services/runner/internal/registry"
)

// found makes a run that has begun, and whose owner is gone.
func (b *bench) found(id, source string) {
	b.t.Helper()
	def, err := flow.Parse("test.yaml", []byte(source))
	if err != nil {
		b.t.Fatal(err)
	}
	l := &left{b: b, id: id, owner: b.claim(id, wire.RunNode, "dead")}
	l.append(l.owner, flow.Start(def, wire.RunRequest{V: wire.Version, RunID: id, Definition: def.Raw(), Workspace: b.t.TempDir()})...)
	b.register(id, "dead")
}

// trials is how many trials the registration of a run counts.
func (b *bench) trials(id string) int {
	b.t.Helper()
	value, _ := b.registered(id)
	var reg registry.Registration
	if err := wire.Unmarshal(value, &reg); err != nil {
		b.t.Fatal(err)
	}
	return reg.Trials
}

// dies waits until the process sends a text, and ends it then.
func (p *process) dies(text string) {
	p.b.t.Helper()
	cut := make(chan struct{})
	p.gate.before(text, func() { p.gate.close(); close(cut) })
	<-cut
	p.kill()
}

// A run that ends each process that takes it over is set aside by the fourth, whichever machines they
// are on, and those that were taken over beside it aren't. Who resumes it begins the count again.
func TestEndedItsRunners(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		worker := gated(release)
		b.found("poison", shared("name: poison\nnodes:\n  - {id: venom, type: set, input: {output: 1}}\n"))
		for i := range 5 {
			b.found(fmt.Sprintf("good%d", i), single)
		}
		for i := range 3 {
			p := b.process(fmt.Sprintf("r%d", i), worker)
			p.dies("venom")
			if n := b.trials("poison"); n != i+1 {
				t.Errorf("after %d processes the count is %d", i+1, n)
			}
		}
		last := b.process("r9", worker)
		last.gate.before("venom", func() { t.Error("it was tried once more") })
		entries := b.until("poison", wire.TypeFlowPaused)
		state := b.fold("poison", entries)
		paused := entries[len(entries)-1].Event.Payload.(*wire.FlowPaused)
		if state.Status != wire.RunPaused || state.Reason != wire.PauseEndedItsRunner || !strings.HasPrefix(paused.Message, "3 processes in a row") ||
			!strings.Contains(paused.Message, "runner r2") || !strings.Contains(paused.Message, "wake resume poison") {
			t.Errorf("%s (%s): %s", state.Status, state.Reason, paused.Message)
		}
		for i := range 5 {
			b.until(fmt.Sprintf("good%d", i), wire.TypeAgentStart)
		}
		close(release)
		for i := range 5 {
			if state, entries := b.ended(fmt.Sprintf("good%d", i)); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) > 0 {
				t.Errorf("good%d ended as %s:\n%s", i, state.Result, story(entries))
			}
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if n := b.trials("poison"); n != 0 {
			t.Errorf("the count is still %d", n)
		}
		last.gate.before("", nil)
		b.command("poison", wire.Command{Type: "resume"})
		if state, entries := b.ended("poison"); state.Result != wire.FlowStatusComplete {
			t.Errorf("ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// Runs that were tried before are tried one at a time: a process that ends meanwhile counts against the one alone.
func TestTriedAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		const runs = 5
		for i := range runs {
			id := fmt.Sprintf("run%d", i)
			b.found(id, shared("name: poison\nnodes:\n  - {id: venom, type: set, input: {output: 1}}\n"))
			b.registerTried(id, 1)
		}
		b.process("r1", &scripted{say: echo}).dies("venom")
		tried := 0
		for i := range runs {
			if b.trials(fmt.Sprintf("run%d", i)) > 1 {
				tried++
			}
		}
		if tried != 1 {
			t.Errorf("the end of one process counts against %d runs", tried)
		}
	})
}

// registerTried registers a run that so many processes have tried to take over.
func (b *bench) registerTried(id string, trials int) {
	b.t.Helper()
	value, err := wire.Marshal(registry.Registration{Run: id, Runner: "dead", Process: "dead", Since: 1, Trials: trials, Incarnation: b.log.Incarnation()})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.states().Put(b.t.Context(), subjects.Default.StateKey("runner", id), value); err != nil {
		b.t.Fatal(err)
	}
}

// Processes that are killed while they take over many healthy runs, or later, however often, set none aside.
func TestKilledWhileTakingOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		const runs = 6
		for i := range runs {
			b.found(fmt.Sprintf("good%d", i), single)
		}
		for i := range 6 {
			id := fmt.Sprintf("r%d", i)
			p := b.process(id, gated(nil))
			if i < 2 {
				p.dies(fmt.Sprintf("good%d._run", i))
				continue
			}
			b.awaits("all runs taken over", func() bool {
				for i := range runs {
					if b.owner(fmt.Sprintf("good%d", i)) != id {
						return false
					}
				}
				return true
			})
			<-time.After(time.Second)
			p.kill()
		}
		b.process("r9", &scripted{say: echo})
		for i := range runs {
			if state, entries := b.ended(fmt.Sprintf("good%d", i)); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) > 0 {
				t.Errorf("good%d ended as %s:\n%s", i, state.Result, story(entries))
			}
		}
	})
}

// ownsOnly has a runner own runs and execute no node.
func ownsOnly(c *runner.Config) { c.Pools = []string{"none"} }

// venomous ends each process that begins its agent, as a defect of the worker does, once that has begun a call.
func (b *bench) venomous(id string) {
	b.t.Helper()
	begun := make(chan struct{})
	p := b.process(id, &scripted{play: func(s *session, say func(wire.Payload) bool) {
		say(&wire.TurnStart{})
		close(begun)
		<-s.ctx.Done()
	}})
	<-begun
	p.kill()
	p.end()
}

// aside waits until a run is set aside, behind the first n of its events, and returns what it says.
func (b *bench) aside(id string, n int) string {
	b.t.Helper()
	entries := b.after(id, n, wire.TypeFlowPaused)
	if s := b.fold(id, b.read(id)); s.Status != wire.RunPaused || s.Reason != wire.PauseEndedItsRunner {
		b.t.Fatalf("%s (%s):\n%s", s.Status, s.Reason, story(entries))
	}
	return entries[len(entries)-1].Event.Payload.(*wire.FlowPaused).Message
}

// A node that ends each process that executes it is found, whichever runner owns its run: its run is set aside after three,
// and says which node it is. Who resumes it begins the count again.
func TestNodeEndsItsRunners(t *testing.T) {
	for name, owned := range map[string]bool{"owned elsewhere": true, "owned by the same": false} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				if owned {
					b.process("owner", &scripted{say: echo}, ownsOnly)
				}
				b.submit("poison", single)
				for round, before := range []int{0, 0} {
					if round > 0 {
						before = len(b.read("poison"))
						b.command("poison", wire.Command{Type: "resume"})
					}
					for i := range 3 {
						b.venomous(fmt.Sprintf("r%d-%d", round, i))
					}
					last := &scripted{say: echo}
					stop := b.runner(fmt.Sprintf("r%d-9", round), last)
					text := b.aside("poison", before)
					<-time.After(5 * time.Minute)
					if len(last.started()) > 0 {
						t.Errorf("it was begun once more:\n%s", story(b.read("poison")))
					}
					if !strings.Contains(text, "node a: 3 processes in a row") || !strings.Contains(text, fmt.Sprintf("runner r%d-2", round)) ||
						!strings.Contains(text, "wake resume poison") {
						t.Error(text)
					}
					stop()
				}
				b.command("poison", wire.Command{Type: "resume"})
				b.runner("good", &scripted{say: echo})
				if state, entries := b.ended("poison"); state.Result != wire.FlowStatusComplete {
					t.Errorf("ended as %s:\n%s", state.Result, story(entries))
				}
			})
		})
	}
}

// Processes that end beside a node that gets on, or that leave it in order, or that are killed when they have lived with it
// for a while, however often, set nothing aside.
func TestNodeEndsNobody(t *testing.T) {
	for name, play := range map[string]func(b *bench, id string){
		"gets on": func(b *bench, id string) {
			got := make(chan struct{})
			p := b.process(id, &scripted{play: func(s *session, say func(wire.Payload) bool) {
				say(&wire.TurnStart{})
				say(&wire.ToolIntent{ToolName: "read", ToolInput: wire.Null})
				say(&wire.AgentTool{ToolName: "read", ToolInput: wire.Null, ToolOutput: wire.Null})
				close(got)
				<-s.ctx.Done()
			}})
			<-got
			<-time.After(time.Second)
			p.kill()
			p.end()
		},
		"drained": func(b *bench, id string) {
			q := gated(nil)
			p := b.process(id, q)
			b.awaits("it is begun", func() bool { return len(q.started()) == 1 })
			p.stop()
		},
		"lived with it": func(b *bench, id string) {
			q := gated(nil)
			p := b.process(id, q)
			b.awaits("it is begun", func() bool { return len(q.started()) == 1 })
			<-time.After(2 * time.Minute)
			p.kill()
			p.end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.process("owner", &scripted{say: echo}, ownsOnly)
				b.submit("run1", single)
				for i := range 5 {
					play(b, fmt.Sprintf("r%d", i))
				}
				b.runner("good", &scripted{say: echo})
				if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) > 0 {
					t.Errorf("ended as %s:\n%s", state.Result, story(entries))
				}
			})
		})
	}
}

// Nodes that were at work beside one that ends its processes aren't taken for it: those that may be it are tried one by one.
func TestNodesTriedAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("owner", &scripted{say: echo}, ownsOnly)
		const quiet = 2
		for i := range quiet {
			b.submit(fmt.Sprintf("quiet%d", i), single)
		}
		b.submit("poison", single)
		set := false
		for i := 0; i < 20 && !set; i++ {
			begun := make(chan struct{})
			p := b.process(fmt.Sprintf("r%d", i), &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
				if r.RunID == "poison" {
					<-time.After(time.Second)
					close(begun)
				}
				<-ctx.Done()
				return "", ctx.Err()
			}})
			select {
			case <-begun:
			case <-time.After(10 * time.Minute):
				set = true
			}
			p.kill()
			p.end()
		}
		b.aside("poison", 0)
		b.runner("good", &scripted{say: echo})
		for i := range quiet {
			id := fmt.Sprintf("quiet%d", i)
			if state, entries := b.ended(id); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) > 0 {
				t.Errorf("%s ended as %s:\n%s", id, state.Result, story(entries))
			}
		}
	})
}
