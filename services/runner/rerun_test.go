package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// broken fails in the middle: b ends it while d is at work.
const broken = `
name: broken
nodes:
  - {id: a, type: agent, input: {prompt: a}}
  - {id: b, type: agent, input: {prompt: b}}
  - {id: c, type: agent, input: {prompt: "{{ b.text }}"}}
  - {id: d, type: agent, input: {prompt: d}}
edges:
  - {from: a, to: b}
  - {from: a, to: d}
  - {from: b, to: c}
`

// fragile is an agent for broken: b fails until it is mended, d takes until then.
type fragile struct {
	scripted

	mended atomic.Bool
}

var errBroken = errors.New("no luck")

func newFragile() *fragile {
	p := &fragile{}
	p.say = func(ctx context.Context, r agent.Request) (string, error) {
		switch {
		case p.mended.Load():
		case r.NodeID == "b":
			return "", errBroken
		case r.NodeID == "d":
			<-ctx.Done()
			return "", ctx.Err()
		}
		return echo(ctx, r)
	}
	return p
}

// failed runs broken until it has failed.
func (b *bench) fails(p agent.Provider) *process {
	b.t.Helper()
	r := b.process("r1", p)
	b.submit("run1", shared(broken))
	if state, entries := b.ended("run1"); state.Result != wire.FlowStatusFailed {
		b.t.Fatalf("run ended as %s:\n%s", state.Result, story(entries))
	}
	<-time.After(time.Second) // its owner has left
	return r
}

// completes waits for the second end of run1 and checks what was executed.
func (b *bench) completes() {
	b.t.Helper()
	b.awaits("a second end", func() bool { return count(b.read("run1"), wire.TypeFlowComplete) == 2 })
	entries := b.read("run1")
	s := b.fold("run1", entries)
	if s.Status != wire.RunComplete || s.Result != wire.FlowStatusComplete || s.Error != "" {
		b.t.Errorf("run is %s, %s (%s):\n%s", s.Status, s.Result, s.Error, story(entries))
	}
	execs := map[string]int{}
	for _, id := range []string{"a", "b", "c", "d"} {
		execs[id] = s.Nodes[id].Execs
	}
	if diff := cmp.Diff(map[string]int{"a": 1, "b": 2, "c": 1, "d": 2}, execs); diff != "" {
		b.t.Errorf("executions (-want +got):\n%s\n%s", diff, story(entries))
	}
	if n := count(entries, wire.TypeCommandReceived); n != 1 {
		b.t.Errorf("%d commands on record", n)
	}
	b.awaits("nobody to own it", func() bool { _, there := b.registered("run1"); return !there })
}

// A resumption that is there when the run fails is obeyed by the owner that it has, which goes on.
func TestRerunAtTheEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := newFragile()
		r1 := b.process("r1", p)
		r1.gate.before(string(wire.TypeFlowComplete), func() {
			p.mended.Store(true)
			b.publish(subjects.Default.Command("run1"), wire.Command{ID: "again", Type: "resume", RunID: "run1", Rerun: []string{"*"}})
			r1.gate.delay(string(wire.TypeFlowComplete), time.Second) // until it has the command
		})
		b.submit("run1", shared(broken))
		b.completes()
	})
}

// A run that has failed goes on under its id: what failed and what was withdrawn beside it is executed again, what
// completed isn't, and what follows does.
func TestRerun(t *testing.T) {
	for name, again := range map[string][]string{"named": {"b"}, "all": {"*"}} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := newFragile()
				b.fails(p)
				if r := b.tell(wire.Command{Type: "resume", RunID: "run1"}); code(r) != "NOT_RESUMABLE" || !strings.Contains(r.Reason, "--rerun") {
					t.Errorf("without a node: %+v", r)
				}
				if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Rerun: []string{"a"}}); code(r) != "COMMAND_REJECTED" || !strings.Contains(r.Reason, "b,d did") {
					t.Errorf("of a node that didn't fail: %+v", r)
				}
				p.mended.Store(true)
				if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Rerun: again}); code(r) != "accepted" {
					t.Fatalf("rerun: %+v", r)
				}
				b.awaits("a second end", func() bool { return count(b.read("run1"), wire.TypeFlowComplete) == 2 })
				entries := b.read("run1")
				s := b.fold("run1", entries)
				if s.Result != wire.FlowStatusComplete || s.Nodes["a"].Execs != 1 || s.Nodes["b"].Execs != 2 || s.Nodes["c"].Execs != 1 || s.Nodes["d"].Execs != 2 {
					t.Errorf("run ended as %s:\n%s", s.Result, story(entries))
				}
				if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Rerun: []string{"*"}}); code(r) != "NOT_RESUMABLE" {
					t.Errorf("of a run that has nothing left: %+v", r)
				}
				if n := len(records(b.read("_"))); n != 0 {
					t.Errorf("%d records under _", n)
				}
			})
		})
	}
}

// The runner that lets a run go on may die between any two steps.
func TestRerunOwnerDies(t *testing.T) {
	for name, text := range map[string]string{
		"before it registers":             "PUB $KV.WAKE_STATE.runner.",
		"before it claims":                "run:claimed",
		"between claim and resumption":    "flow:resumed",
		"between resumption and schedule": "node:scheduled",
		"before its end":                  "flow:complete",
		"before it leaves the registry":   "KV-Operation: PURGE",
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := newFragile()
				r1 := b.fails(p)
				p.mended.Store(true)
				gone := make(chan struct{})
				r1.gate.before(text, func() { r1.gate.close(); close(gone) })
				b.command("run1", wire.Command{Type: "resume", Rerun: []string{"b"}})
				<-gone
				r1.kill()
				b.process("r2", p)
				b.completes()
			})
		})
	}
}

// Two who let the same run go on at once let it go on once, and what others say to it at that time is answered once.
func TestRerunTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := newFragile()
		b.fails(p)
		b.process("r2", p)
		p.mended.Store(true)
		for i := range 10 {
			kind := wire.Command{Type: "resume", Rerun: []string{"b"}}
			if i%2 == 0 {
				kind = wire.Command{Type: "approve", CallID: "none"}
			}
			b.command("run1", kind)
		}
		b.awaits("all records", func() bool { return len(records(b.read("run1"))) == 10 })
		<-time.After(5 * time.Minute)
		entries := b.read("run1")
		accepted := slices.DeleteFunc(records(entries), func(r *wire.CommandReceived) bool { return !r.Accepted })
		if len(accepted) != 1 || len(records(entries)) != 10 || len(records(b.read("_"))) != 0 {
			t.Errorf("accepted are %+v:\n%s", accepted, story(entries))
		}
		if s := b.fold("run1", entries); s.Result != wire.FlowStatusComplete || s.Nodes["b"].Execs != 2 {
			t.Errorf("run ended as %s:\n%s", s.Result, story(entries))
		}
	})
}

// A command of a run that failed is executed again in the folder of the run, items of a forEach by themselves.
func TestRerunCommand(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", `
name: build
nodes:
  - {id: first, type: exec, input: {command: "echo once >> first"}}
  - {id: each, type: exec, input: {command: "[ $PART != 2 ] || cat mended", env: {PART: "{{ part }}"}}}
  - {id: last, type: exec, input: {command: "cat first mended"}}
edges:
  - {from: first, to: each, forEach: {in: "{{ [1, 2, 3] }}", as: part}}
  - {from: each, to: last}
`)
	state, entries := b.ended("run1")
	if state.Result != wire.FlowStatusFailed || !strings.HasPrefix(state.Nodes["each/1"].Exec, "each/1#") {
		t.Fatalf("run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
	}
	if err := os.WriteFile(filepath.Join(state.Workspace, "mended"), []byte("mended\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Rerun: []string{"each/1"}}); code(r) != "accepted" {
		t.Fatalf("rerun: %+v", r)
	}
	b.awaits("a second end", func() bool { return count(b.read("run1"), wire.TypeFlowComplete) == 2 })
	entries = b.read("run1")
	state = b.fold("run1", entries)
	if out := state.Outputs["last"].TextAt("stdout"); out != "once\nmended\n" || state.Result != wire.FlowStatusComplete {
		t.Errorf("run ended as %s (%s) with %q:\n%s", state.Result, state.Error, out, story(entries))
	}
	if state.Nodes["first"].Execs != 1 || state.Nodes["each/1"].Execs != 2 {
		t.Errorf("executions are %+v", state.Nodes)
	}
}
