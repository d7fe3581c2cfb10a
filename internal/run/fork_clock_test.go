package run_test

import (
	"testing"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// TestForkStartsClocks shows that an execution that a fork goes on with takes from the fork on, and keeps what was left of its time
// at the point.
func TestForkStartsClocks(t *testing.T) {
	parent := run.New("r0")
	parent.Status, parent.UpdatedAt, parent.PausedMs = wire.RunRunning, 9_000, 500
	parent.Nodes["open"] = wire.NodeState{Exec: "open#1", Execs: 1, Scheduled: 3, Started: 4, StartedAt: 2_000, PausedBefore: 200,
		PromptID: "p1", PromptAt: 3_000, Asked: []wire.Question{{ID: "m1", Since: 4_000}}}
	parent.Nodes["over"] = wire.NodeState{Exec: "over#1", Execs: 1, Scheduled: 1, Started: 2, StartedAt: 1_000, Ended: 3, EndedAt: 1_500}
	parent.Tools["open#1/t1"] = wire.ToolCall{Node: "open", CallID: "t1", State: wire.ToolApprovalRequired, Since: 2_500, AskedAt: 2_600}
	s := run.New("r1")
	for i, e := range []*wire.Event{
		{NodeID: wire.RunNode, Payload: &wire.RunClaimed{Runner: "w", Nonce: "n"}},
		{NodeID: wire.RunNode, Payload: &wire.RunForked{ParentRun: "r0", ParentPos: 9, State: encode(t, parent)}},
	} {
		e.RunID, e.Seq, e.Epoch, e.Timestamp = "r1", uint64(i+1), 1, 60_000
		if err := run.Apply(s, wire.Position{Seq: uint64(20 + i)}, e); err != nil {
			t.Fatal(err)
		}
	}
	if over := s.Nodes["over"]; over.StartedAt != 1_000 || over.EndedAt != 1_500 {
		t.Errorf("what was over took from %d to %d", over.StartedAt, over.EndedAt)
	}
	open := s.Nodes["open"]
	if open.PromptAt != 60_000 || open.Asked[0].Since != 60_000 {
		t.Errorf("it asks since %d and %d", open.PromptAt, open.Asked[0].Since)
	}
	if at := s.Tools["open#1/t1"].AskedAt; at != 60_000 {
		t.Errorf("a call waits for a decision since %d", at)
	}
	spent := 60_000 - open.StartedAt - (s.PausedMs - open.PausedBefore)
	if want := int64(9_000-2_000) - (500 - 200); open.StartedAt != 60_000 || spent != want {
		t.Errorf("it began at %d, and has spent %d ms of its time, want %d", open.StartedAt, spent, want)
	}
}
