package runner_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/snapshotter"
)

// taken is a session that a person has had with an agent elsewhere.
const taken = `{"type":"user","uuid":"u1","sessionId":"s1","timestamp":"2026-01-01T00:00:00.000Z","message":{"role":"user","content":"Do it."}}
{"type":"assistant","uuid":"u2","parentUuid":"u1","sessionId":"s1","timestamp":"2026-01-01T00:00:01.000Z","message":{"id":"m1","role":"assistant","model":"m","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}
{"type":"user","uuid":"u3","parentUuid":"u2","sessionId":"s1","timestamp":"2026-01-01T00:00:02.000Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"one"}]}}
{"type":"assistant","uuid":"u4","parentUuid":"u3","sessionId":"s1","timestamp":"2026-01-01T00:00:03.000Z","message":{"id":"m2","role":"assistant","model":"m","content":[{"type":"text","text":"Done."}]}}
`

// A fork of what was taken in is executed: its agent goes on with the session.
func TestForkOfIngested(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{}
		b.runner("r1", p)
		if _, err := ingest.Run(t.Context(), b.log, strings.NewReader(taken), ingest.Options{RunID: "run1", Runner: "test", Format: ingest.Transcript}); err != nil {
			t.Fatal(err)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1", Message: "again"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		state, entries := b.ended("fork1")
		if state.Result != wire.FlowStatusComplete || state.Imported != "" {
			t.Errorf("the fork ended as %s (%s):\n%s", state.Result, state.Imported, story(entries))
		}
		var r agent.Request
		if asked := p.asked(); len(asked) == 1 {
			r = asked[0]
		}
		if r.ForkOf != "s1" || r.ForkAt != "u3" || promptOf(r) != "again" {
			t.Errorf("the agent was asked %+v", r)
		}
	})
}

// An agent whose session has no points begins a fork with all of it: where more came behind the point, that is on record.
func TestForkIsInexact(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{play: func(a *act) {
			a.turn()
			for _, id := range []string{"c1", "c2"} {
				a.intend(id)
				a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString(id), ToolOutput: wire.RawString("ok")}, id)
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}})
		b.submit("run1", single)
		_, entries := b.ended("run1")
		for _, e := range entries {
			if e.Event.Type() != wire.TypeAgentTool {
				continue
			}
			id := "fork-" + e.Event.CallID
			if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: id, At: fmt.Sprint(e.Pos)}); code(r) != "accepted" {
				t.Fatalf("%+v", r)
			}
			_, forked := b.ended(id)
			warned := 0
			for _, f := range forked {
				if p, is := f.Event.Payload.(*wire.AgentError); is && p.ErrorType == agent.ErrorForkInexact && p.Severity == wire.SeverityWarning {
					warned++
				}
			}
			if want := map[string]int{"c1": 1}[e.Event.CallID]; warned != want {
				t.Errorf("forked behind %s: %d warnings, want %d:\n%s", e.Event.CallID, warned, want, story(forked))
			}
		}
	})
}

// A run whose events the stream has dropped is forked at its points as before: the recorder has them, for the owner of the fork and
// for its agent.
func TestForkOfDropped(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		logtest.Init(t, b.nc, topology.Config{MaxAge: 6 * time.Minute})
		record, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, b.open(), b.logger())
		if err != nil {
			t.Fatal(err)
		}
		logtest.Go(t, record.Run)
		snapshots, err := snapshotter.New(snapshotter.Config{}, b.open(), b.logger())
		if err != nil {
			t.Fatal(err)
		}
		logtest.Go(t, snapshots.Run)
		root := t.TempDir()
		s := newScenes(t, root)
		b.runner("r1", nil, s.on(root))
		b.submit("run1", journey)
		parent, entries := b.ended("run1")
		want := parent.Outputs["b"].TextAt("stdout")
		<-time.After(7 * time.Minute)
		if first, _, err := b.log.Bounds(t.Context()); err != nil || first <= entries[len(entries)-1].Pos {
			t.Fatalf("the stream begins at %d, %v", first, err)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1", At: "sfp-3"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		state, entries := b.ended("fork1")
		if text := state.Outputs["b"].TextAt("stdout"); state.Result != wire.FlowStatusComplete || text != want {
			t.Errorf("ended as %s (%s), %q, want %q:\n%s", state.Result, state.Error, text, want, story(entries))
		}
		got, there := s.of("fork1"), s.of("run1")[2]
		if len(got) == 0 {
			t.Fatalf("the agent asked nothing:\n%s", story(entries))
		}
		if diff := cmp.Diff(there.messages, got[0].messages); diff != "" {
			t.Errorf("the request (-parent +fork):\n%s", diff)
		}
		if diff := cmp.Diff(there.folder, got[0].folder); diff != "" {
			t.Errorf("the folder (-parent +fork):\n%s", diff)
		}
	})
}

// The flows that nodes begin work in the folder of their run, and those of a fork in that of the fork, also where nodes have
// folders of their own: else both runs would work in one.
func TestForkOfNodesFolders(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{}
		b.runner("r1", p)
		b.submit("run1", "workspace: node"+nested, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa5world") })
		_, entries := b.ended("run1")
		begun := entries[1].Pos
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1", At: fmt.Sprint(begun)}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		state, entries := b.ended("fork1")
		if state.Result != wire.FlowStatusComplete {
			t.Fatalf("the fork ended as %s:\n%s", state.Result, story(entries))
		}
		folders := map[string]bool{}
		asked := p.asked()
		for _, r := range asked {
			folders[r.Options.Cwd] = true
		}
		if len(asked) != 4 || len(folders) != 4 {
			t.Errorf("the agents of two runs, two each, were asked %d times in the folders %v", len(asked), folders)
		}
	})
}
