package runner_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

const forgedFlow = `
name: asks
nodes:
  - {id: a, type: exec, input: {command: "echo one"}}
  - {id: q, type: ask, input: {prompt: "Go on?"}}
  - {id: b, type: exec, input: {command: [echo, "{{ outputs.a.stdout }}"]}}
edges: [{from: a, to: q}, {from: q, to: b}]
`

// A snapshot that something other than wake has stored is neither resumed nor forked from: the log tells what has been.
func TestForgedSnapshot(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		stop := b.runner("r1", agent.Provider(nil))
		b.submit("run1", forgedFlow)
		asked := b.until("run1", wire.TypeInputRequested)
		prompt := asked[len(asked)-1].Event.Payload.(*wire.InputRequested).PromptID
		stop()
		stamped, err := eventlog.Open(t.Context(), b.nc, eventlog.Options{Logger: b.logger(), Stamp: seal.NewStamp(), Service: "runner"})
		if err != nil {
			t.Fatal(err)
		}
		b.background(stamped.Run)
		b.log = stamped
		state := run.New("run1")
		if err := snapshot.Fold(t.Context(), b.log, state, 0); err != nil {
			t.Fatal(err)
		}
		forged := run.Clone(state)
		forged.Outputs["a"] = rawOf(map[string]any{"stdout": "forged", "exitCode": 0})
		value, err := wire.Marshal(forged)
		if err != nil {
			t.Fatal(err)
		}
		snapshots, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.SnapshotsBucket())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := snapshots.Put(t.Context(), "run1", value); err != nil {
			t.Fatal(err)
		}
		b.runner("r2", agent.Provider(nil))
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		for _, id := range []string{"run1", "fork1"} {
			if r := b.tell(wire.Command{Type: "reply", RunID: id, PromptID: prompt, Content: wire.RawString("yes")}); code(r) != "accepted" {
				t.Fatalf("%+v", r)
			}
			ended, entries := b.ended(id)
			if said := ended.Outputs["b"].TextAt("stdout"); strings.TrimSpace(said) != "one" {
				t.Errorf("%s went on from %q:\n%s", id, said, story(entries))
			}
		}
		letters, err := b.log.JetStream().Stream(t.Context(), subjects.Default.DeadLetterStream())
		if err != nil {
			t.Fatal(err)
		}
		if info, err := letters.Info(t.Context()); err != nil || info.State.Msgs != 1 {
			t.Errorf("%d dead letters, %v: want one", info.State.Msgs, err)
		}
	})
}
