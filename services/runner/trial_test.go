package runner_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
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
