package run_test

import (
	"fmt"
	"testing"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// busy is a run in the middle of its work: n nodes done, one agent at it.
func busy(b *testing.B, n int) (*wire.State, uint64) {
	b.Helper()
	s := run.New("r1")
	var pos, seq uint64
	apply := func(node, exec string, p wire.Payload) {
		b.Helper()
		pos++
		nseq := s.Nodes[node].Seq + 1
		e := &wire.Event{RunID: "r1", NodeID: node, Seq: nseq, Epoch: 1, Timestamp: int64(pos), ExecID: exec, SessionID: "s", Payload: p}
		if err := run.Apply(s, wire.Position{Seq: pos}, e); err != nil {
			b.Fatal(err)
		}
		seq = nseq
	}
	apply("_run", "", &wire.RunClaimed{Runner: "w", Nonce: "n"})
	apply("_run", "", &wire.FlowStart{DefinitionHash: "h", Definition: wire.Null})
	for i := range n {
		id := fmt.Sprintf("n%d", i)
		apply("_run", id+"#1", &wire.NodeScheduled{Target: id, Attempt: 1})
		apply(id, "", &wire.NodeClaimed{Runner: "w", Nonce: "n"})
		apply(id, id+"#1", &wire.NodeStart{NodeType: "agent"})
		apply(id, id+"#1", &wire.NodeComplete{Output: wire.RawString("some output of moderate length")})
	}
	apply("_run", "coder#1", &wire.NodeScheduled{Target: "coder", Attempt: 1})
	apply("coder", "", &wire.NodeClaimed{Runner: "w", Nonce: "n"})
	apply("coder", "coder#1", &wire.NodeStart{NodeType: "agent"})
	return s, seq
}

// One tool call and the usage of its model call: four events.
func BenchmarkApply(b *testing.B) {
	s, _ := busy(b, 20)
	pos, seq := s.Position.Seq, s.Nodes["coder"].Seq
	turn := []wire.Payload{
		&wire.TurnStart{},
		&wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("ls")},
		&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("ls"), ToolOutput: wire.RawString("x")},
		&wire.Usage{MessageID: "m", InputTokens: 1, OutputTokens: 1},
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range turn {
			pos++
			seq++
			e := wire.Event{RunID: "r1", NodeID: "coder", Seq: seq, Epoch: 1, ExecID: "coder#1", CallID: "t1", Payload: p}
			if err := run.Apply(s, wire.Position{Seq: pos}, &e); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// Kinds that the fold ignores cost nothing.
func BenchmarkApplyDelta(b *testing.B) {
	s, _ := busy(b, 20)
	e := &wire.Event{RunID: "r1", NodeID: "coder", Seq: 99, Epoch: 1, Payload: &wire.AgentTextDelta{Content: "x"}}
	b.ReportAllocs()
	for b.Loop() {
		if err := run.Apply(s, wire.Position{Seq: 1 << 40}, e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClone(b *testing.B) {
	s, _ := busy(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		run.Clone(s)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s, _ := busy(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		raw, err := wire.Marshal(s)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(raw)))
	}
}
