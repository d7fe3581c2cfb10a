package owner

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/purse"
	"code.wake.dev/wake/services/runner/internal/view"
)

// story folds events of the owner and of workers, in the order given.
type story struct {
	t testing.TB
	s *wire.State
}

func (y story) tell(node, exec, call string, payloads ...wire.Payload) {
	y.t.Helper()
	for _, p := range payloads {
		e := &wire.Event{RunID: y.s.RunID, NodeID: node, ExecID: exec, CallID: call, Payload: p}
		e.Epoch, e.Seq = max(y.s.Nodes[node].Epoch, 1), y.s.Nodes[node].Seq+1
		if err := run.Apply(y.s, wire.Position{Incarnation: "i", Seq: y.s.Position.Seq + 1}, e); err != nil {
			y.t.Fatal(err)
		}
	}
}

func fromJSON(t testing.TB, text string) wire.Raw {
	t.Helper()
	raw, err := wire.RawFromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// situations are states in which commands mean different things: two agents at
// work, of which one asks and one waits for approval; paused with an interrupted
// node; over.
func situations(t testing.TB) []*wire.State {
	t.Helper()
	y := story{t, run.New("r1")}
	y.tell(wire.RunNode, "", "",
		&wire.RunClaimed{Runner: "a", Nonce: "n"},
		&wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: fromJSON(t, `{"nodes":[{"id":"a","type":"agent"},{"id":"b","type":"agent"},{"id":"q","type":"ask"}],"edges":[]}`)})
	for _, node := range []string{"a", "b"} {
		y.tell(wire.RunNode, run.ExecID(node, 1), "", &wire.NodeScheduled{Target: node, Attempt: 1})
		y.tell(node, run.ExecID(node, 1), "",
			&wire.NodeClaimed{Runner: "a", Nonce: "n"}, &wire.NodeStart{NodeType: "agent", Attempt: 1})
	}
	y.tell("a", "a#1", "", &wire.CCMessage{Text: "which?", Priority: wire.PriorityQuestion})
	y.tell("b", "b#1", "t1", &wire.ToolIntent{ToolName: "Bash"}, &wire.PermissionRequired{ToolName: "Bash"})
	working := run.Clone(y.s)
	y.tell(wire.RunNode, "", "", &wire.FlowPaused{Reason: wire.PauseOperator})
	y.tell("a", "a#1", "", &wire.NodeError{Error: "outcome unknown", ErrorType: "interrupted"})
	paused := run.Clone(y.s)
	y.tell(wire.RunNode, "", "", &wire.FlowAborted{Reason: "enough"})
	return []*wire.State{working, paused, y.s}
}

// FuzzCommand gives an owner any command, in each of a few situations: it is
// rejected with a reason and has no effect, or accepted; either way the record can be
// written, read back and folded, and the same command does nothing a second time.
func FuzzCommand(f *testing.F) {
	states := situations(f)
	for _, text := range []string{
		`{"type":"send","message":"go on","nodeId":"a","id":"c1"}`, `{"type":"send","message":"x","execId":"b#1"}`, `{"type":"send"}`,
		`{"type":"steer","message":"that one"}`, `{"type":"reply","promptId":"p","content":{"a":[1]}}`,
		`{"type":"approve","callId":"t1","by":"ann"}`, `{"type":"deny","callId":"t1","nodeId":"b","note":"no"}`,
		`{"type":"pause","reason":"lunch"}`, `{"type":"abort","resumable":true}`, `{"type":"abort","id":"c2"}`,
		`{"type":"resume","rerun":["a"],"strategy":"manual","autoRun":false,"overrides":{"model":"x","a":{"limits":{"maxCostUsd":1}}}}`,
		`{"type":"resume","fail":["a"]}`, `{"type":"bookmark","label":"here","force":true}`, `{"type":"bookmark","label":"sfp-9"}`,
		`{"type":7}`, `[]`, `"send"`, `not json`, "\x81\xa4type\xa5pause", "\xc1", "\xff\xfe{", `{"type":"pause","type":"abort"}`, `{"runId":"r2","type":"pause"}`,
	} {
		f.Add(uint8(0), []byte(text))
		f.Add(uint8(1), []byte(text))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		s := run.Clone(states[int(which)%len(states)])
		if _, cmd, err := command.Record(eventlog.Entry{Data: data}); err == nil && cmd.Type == "fork" {
			return // needs a log
		}
		first := judged(t, s, data)
		again := judged(t, s, data)
		if _, cmd, _ := command.Record(eventlog.Entry{Data: data}); cmd.ID != "" && first.Accepted && again.Accepted {
			t.Fatalf("%q acts twice", data)
		}
	})
}

// judged answers a command, checks the answer and folds it.
func judged(t *testing.T, s *wire.State, data []byte) *wire.CommandReceived {
	t.Helper()
	pos := s.CommandPos + 7
	events, err := (&owner{cfg: &Config{Purse: purse.New(nil)}, view: view.Of(s)}).answerCommand(t.Context(), eventlog.Entry{Pos: pos, Data: data})
	if err != nil {
		t.Fatalf("%q ends the owner: %v", data, err)
	}
	record, ok := events[0].Payload.(*wire.CommandReceived)
	if !ok || record.AtPos != pos || record.CommandID == "" {
		t.Fatalf("%q is recorded as %+v", data, events[0].Payload)
	}
	if record.Accepted != (record.Reason == "") || !record.Accepted && (len(events) > 1 || !strings.Contains(record.Reason, ": ")) {
		t.Fatalf("%q: accepted %t, reason %q, %d effects", data, record.Accepted, record.Reason, len(events)-1)
	}
	for _, e := range events {
		n := s.Nodes[wire.RunNode]
		e.RunID, e.NodeID, e.Epoch, e.Seq = s.RunID, wire.RunNode, n.Epoch, n.Seq+1
		encoded, err := wire.Encode(e)
		if err != nil {
			t.Fatalf("%q: the %s can't be written: %v", data, e.Type(), err)
		}
		back, err := wire.Decode(encoded)
		if err != nil {
			t.Fatalf("%q: the %s can't be read: %v", data, e.Type(), err)
		}
		if err := run.Apply(s, wire.Position{Incarnation: "i", Seq: s.Position.Seq + 1}, back); err != nil {
			t.Fatalf("%q: the %s can't be folded: %v", data, e.Type(), err)
		}
	}
	if s.CommandPos != pos {
		t.Fatalf("%q: commands are read up to %d, not %d", data, s.CommandPos, pos)
	}
	return record
}
