package run_test

import (
	"bytes"
	"testing"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzState reads anything as a state and folds anything as the next event of it,
// as whoever reads a damaged bucket or log does. What can be read has one
// encoding; an event that is refused changes nothing; one that is folded makes of a
// state, of its copy and of what was read back the same bytes, and of the state that
// was copied none.
func FuzzState(f *testing.F) {
	marshal := func(v any) []byte {
		b, err := wire.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	fromJSON := func(text string) []byte {
		raw, err := wire.RawFromJSON([]byte(text))
		if err != nil {
			f.Fatal(err)
		}
		return raw
	}
	encode := func(e *wire.Event) []byte {
		e.RunID, e.Epoch = "r1", 1
		b, err := wire.Encode(e)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	s := run.New("r1")
	events := []*wire.Event{
		{NodeID: wire.RunNode, Seq: 1, Payload: &wire.RunClaimed{Runner: "w", Nonce: "n"}},
		{NodeID: wire.RunNode, Seq: 2, Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: fromJSON(`{"nodes":[{"id":"a"}]}`)}},
		{NodeID: wire.RunNode, Seq: 3, ExecID: "a#1", Payload: &wire.NodeScheduled{Target: "a", Attempt: 1}},
		{NodeID: "a", Seq: 1, ExecID: "a#1", Payload: &wire.NodeClaimed{Runner: "w", Nonce: "m"}},
		{NodeID: "a", Seq: 2, ExecID: "a#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
		{NodeID: "a", Seq: 3, ExecID: "a#1", CallID: "t1", Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: fromJSON(`{"command":"ls"}`)}},
		{NodeID: "a", Seq: 4, ExecID: "a#1", CallID: "t1", Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: fromJSON(`{"command":"ls"}`), ToolOutput: fromJSON(`"a"`)}},
		{NodeID: wire.RunNode, Seq: 4, Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "a.b", Value: fromJSON(`{"n":1}`)}}},
		{NodeID: wire.RunNode, Seq: 5, Payload: &wire.CommandReceived{Command: fromJSON(`{"type":"send","message":"x","nodeId":"a"}`), CommandID: "c", AtPos: 3, Accepted: true}},
		{NodeID: "a", Seq: 5, ExecID: "a#1", Payload: &wire.NodeComplete{Output: fromJSON(`"ok"`)}},
	}
	for i, e := range events {
		f.Add(marshal(s), encode(e))
		if err := run.Apply(s, wire.Position{Incarnation: "i", Seq: uint64(i) + 1}, e); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(fromJSON(`{"v":1}`), encode(events[0]))
	f.Add(fromJSON(`{"v":2,"runId":"r1"}`), encode(events[0]))
	f.Add(fromJSON(`{"v":1,"runId":"r1","status":"running","state":7,"nodes":null,"tools":{"x":{}},"inbox":null,"nodeStatus":{"a":"?"}}`), encode(events[7]))
	f.Fuzz(func(t *testing.T, state, event []byte) {
		s, err := run.Decode(state)
		if err != nil {
			return
		}
		before := bytesOf(t, s)
		again, err := run.Decode(before)
		if err != nil || !bytes.Equal(bytesOf(t, again), before) {
			t.Fatalf("%x is read back as another state: %v", before, err)
		}
		e, err := wire.Decode(event)
		if err != nil {
			return
		}
		pos := wire.Position{Incarnation: s.Position.Incarnation, Seq: s.Position.Seq + 1}
		clone := run.Clone(s)
		if err := run.Apply(clone, pos, e); err != nil && !bytes.Equal(bytesOf(t, clone), before) {
			t.Fatalf("%v: and the state changed", err)
		}
		if !bytes.Equal(bytesOf(t, s), before) {
			t.Fatalf("%s changed what was copied", e.Type())
		}
		_ = run.Apply(again, pos, e)
		if a, b := bytesOf(t, clone), bytesOf(t, again); !bytes.Equal(a, b) {
			t.Fatalf("%s makes two states\n%x\n%x", e.Type(), a, b)
		}
		if _, err := run.Decode(bytesOf(t, clone)); err != nil {
			t.Fatalf("behind %s the state can't be read: %v", e.Type(), err)
		}
	})
}

func bytesOf(t *testing.T, s *wire.State) []byte {
	t.Helper()
	b, err := wire.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
