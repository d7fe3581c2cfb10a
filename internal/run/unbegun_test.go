package run_test

import (
	"testing"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// TestUnbegun follows a command that its worker gives back before it has begun: the state knows it until a process claims the execution.
func TestUnbegun(t *testing.T) {
	s := run.New("r")
	s.Status = wire.RunRunning
	s.Nodes["a"] = wire.NodeState{Exec: "a#1", Execs: 1, Scheduled: 1, Started: 2, Epoch: 1, Seq: 1}
	for i, step := range []struct {
		claim wire.NodeClaimed
		want  bool
	}{
		{wire.NodeClaimed{Process: "p1"}, false},
		{wire.NodeClaimed{Unbegun: true}, true},
		{wire.NodeClaimed{}, true}, // an anchor
		{wire.NodeClaimed{Process: "p2"}, false},
		{wire.NodeClaimed{}, false},
	} {
		p := step.claim
		p.Runner, p.Nonce = "w", "n"
		e := &wire.Event{RunID: "r", NodeID: "a", ExecID: "a#1", Seq: uint64(i + 2), Epoch: uint64(i + 2), Timestamp: 1, Payload: &p}
		if err := run.Apply(s, wire.Position{Seq: uint64(10 + i)}, e); err != nil {
			t.Fatal(err)
		}
		if got := s.Nodes["a"].Unbegun; got != step.want {
			t.Errorf("behind claim %d it is known not to have begun: %t, want %t", i, got, step.want)
		}
	}
}
