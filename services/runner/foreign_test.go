package runner_test

import (
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/schedule"
	"code.wake.dev/wake/pkg/wire"
)

// takeID records a run as an ingester can: no runner has executed it, and its log says that it is complete.
func (b *bench) takeID(id string) {
	b.t.Helper()
	w := logtest.Claim(b.t, b.log, id, wire.RunNode)
	logtest.Append(b.t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "forged", Definition: wire.Null, DefinitionHash: "h", Imported: wire.ImportedIngest}})
	logtest.Append(b.t, w, &wire.Event{Payload: &wire.FlowComplete{Status: wire.FlowStatusComplete}})
}

// A run that somebody has recorded under the id of a flow node's, or of a call's, is not taken for it: what follows isn't done.
func TestForeignRunIsNoChild(t *testing.T) {
	t.Run("flow", func(t *testing.T) {
		natstest.Bubble(t, func(t *testing.T) {
			b := newBench(t)
			p := &scripted{say: echo}
			b.takeID("run1.gate#1")
			b.runner("r1", p)
			b.submit("run1", `
name: gated
nodes:
  - {id: gate, type: flow, input: {flow: {name: sub, nodes: [{id: check, type: agent, input: {prompt: check}}]}}}
  - {id: deploy, type: agent, input: {prompt: deploy}}
edges: [{from: gate, to: deploy}]
`)
			state, entries := b.ended("run1")
			if state.Result != wire.FlowStatusFailed || !strings.Contains(state.Error, "its id had been taken") || len(p.started()) != 0 {
				t.Errorf("it ended as %s (%s), and %q were started:\n%s", state.Result, state.Error, p.started(), story(entries))
			}
		})
	})
	t.Run("call", func(t *testing.T) {
		natstest.Bubble(t, func(t *testing.T) {
			b := newBench(t)
			b.takeID(askedRun)
			script := newLeading()
			b.native("r1", t.TempDir(), script)
			b.submit("run1", leading)
			b.ended("run1")
			if sent := script.Requests(); len(sent) != 2 || !strings.Contains(string(sent[1]), "its id had been taken") {
				t.Errorf("%d requests were sent, the agent was told otherwise", len(sent))
			}
		})
	})
}

// A run of a schedule begins, also if somebody has recorded one under its id.
func TestForeignRunIsNotScheduled(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		due := time.Now().Truncate(2 * time.Minute).Add(2 * time.Minute)
		id := schedule.RunID("often", due)
		b.takeID(id)
		b.runner("r1", p)
		b.runner("r2", p)
		b.addSchedule()
		<-time.After(time.Until(due) + 30*time.Second)
		if runs, starts := b.begun(p); len(runs) != 2 || runs[1] != id+"-2" || starts != 1 {
			t.Errorf("%q have begun, with %d agents", runs, starts)
		}
	})
}
