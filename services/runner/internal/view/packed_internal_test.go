package view

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// A state that was packed is what it was. Views of a run share it as long as it is of the same position, and its definition is that of
// other runs of the flow.
func TestPacked(t *testing.T) {
	d, err := flow.Parse("flow.yaml", []byte("name: f\nnodes:\n  - {id: a, type: agent, input: {prompt: wait}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	runs := &Runs{events: NewFeed()}
	fold := func(pos uint64) *wire.State {
		s := run.New("r")
		s.Position = wire.Position{Incarnation: "i", Seq: pos}
		s.Definition = append(wire.Raw(nil), d.Raw()...)
		s.Nodes["a"] = wire.NodeState{Exec: "a#1", Session: "s", Input: wire.RawString("wait")}
		s.Inbox = append(s.Inbox, wire.InboxEntry{ID: "c", Command: wire.RawString("x")})
		return s
	}
	open := func(pos uint64) *View { return &View{runs: runs, sub: runs.events.Subscribe("r"), state: fold(pos)} }
	owner, worker, late := open(7), open(7), open(6)
	for _, v := range []*View{owner, worker, late} {
		v.Pack()
		v.Pack()
	}
	if owner.packed == nil || owner.packed != worker.packed || late.packed == owner.packed {
		t.Errorf("two views at one position share a state: %t; a third at another one: %t", owner.packed == worker.packed, late.packed == owner.packed)
	}
	if a, b := owner.packed.definition, late.packed.definition; &a[0] != &b[0] {
		t.Error("each has a definition of its own")
	}
	if diff := cmp.Diff(fold(7), worker.State()); diff != "" {
		t.Errorf("unpacked, it is another one (-want +got):\n%s", diff)
	}
	worker.State().Nodes["a"] = wire.NodeState{}
	if diff := cmp.Diff(fold(7), owner.State()); diff != "" {
		t.Errorf("what one view folds is in the other's state (-want +got):\n%s", diff)
	}
	owner.Pack()
	runs.events.Deliver(eventlog.Entry{RunID: "r", Pos: 8})
	if owner.sub.packedAt(owner.packed.position) != nil {
		t.Error("what was packed before an event is kept behind it")
	}
}

// A view that joins a run begins with what another one has shared and what has come since then, unless that is much: neither of them sees
// what the other folds, and what comes then comes to both.
func TestShared(t *testing.T) {
	runs := &Runs{events: NewFeed(), logger: slog.New(slog.DiscardHandler)}
	owner := &View{runs: runs, sub: runs.events.Subscribe("r"), state: run.New("r")}
	owner.State().Nodes["a"] = wire.NodeState{Exec: "a#1"}
	entry := func(pos uint64) eventlog.Entry {
		return eventlog.Entry{RunID: "r", Pos: pos, Err: errors.New("no fold takes it")}
	}
	join := func() *View {
		t.Helper()
		v := runs.Join(t.Context(), "r")
		if v == nil {
			t.Fatal("nothing is shared")
		}
		return v
	}
	owner.Share()
	worker := join()
	if diff := cmp.Diff(owner.State(), worker.State()); diff != "" {
		t.Errorf("what joins has another state (-owner +worker):\n%s", diff)
	}
	worker.State().Nodes["a"], owner.State().Nodes["b"] = wire.NodeState{Exec: "a#2"}, wire.NodeState{Exec: "b#1"}
	if owner, worker, third := owner.State().Nodes["a"].Exec, worker.State().Nodes["b"].Exec, join().State().Nodes["a"].Exec; owner != "a#1" || worker != "" || third != "a#1" {
		t.Errorf("they change each other's state: the owner has %q, the worker %q, a view that joins then %q", owner, worker, third)
	}

	runs.events.Deliver(entry(8))
	if got := worker.sub.Take(); len(got) != 1 || got[0].Pos != 8 {
		t.Errorf("to the view that has joined comes %v", got)
	}
	if got := join(); got.seen != 8 || got.HasMore() {
		t.Errorf("a view that joins behind an event has seen %d", got.seen)
	}
	if owner.Share(); join().seen != 8 {
		t.Error("a view that is still to fold an event shares its state")
	}
	owner.sub.Take()
	if owner.Share(); join().seen != 0 {
		t.Error("a view that has folded everything doesn't share its state")
	}
	for pos := range uint64(maxBehind) {
		runs.events.Deliver(entry(9 + pos))
	}
	if got := join(); got.seen != 8+maxBehind {
		t.Errorf("a view that joins behind many events has seen %d", got.seen)
	}
	runs.events.Deliver(entry(9 + maxBehind))
	if runs.Join(t.Context(), "r") != nil {
		t.Error("all that comes is kept")
	}
	owner.sub.Take()
	owner.Share()
	join()
	if owner.Unshare(); runs.Join(t.Context(), "r") != nil {
		t.Error("what isn't shared any more is")
	}
	for range 2 {
		owner.Share()
		if owner.Pack(); runs.Join(t.Context(), "r") != nil {
			t.Error("a state that was packed is kept as it was, too")
		}
	}
}
