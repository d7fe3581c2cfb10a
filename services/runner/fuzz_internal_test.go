package runner

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"wake/internal/eventlog"
	"wake/internal/keys"
	"wake/internal/run"
	"wake/pkg/subjects"
	"wake/pkg/wire"
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
		if _, cmd, err := parseCommand(eventlog.Entry{Data: data}); err == nil && cmd.Type == "fork" {
			return // needs a log
		}
		first := judged(t, s, data)
		again := judged(t, s, data)
		if _, cmd, _ := parseCommand(eventlog.Entry{Data: data}); cmd.ID != "" && first.Accepted && again.Accepted {
			t.Fatalf("%q acts twice", data)
		}
	})
}

// judged answers a command, checks the answer and folds it.
func judged(t *testing.T, s *wire.State, data []byte) *wire.CommandReceived {
	t.Helper()
	pos := s.CommandPos + 7
	events, err := (&owner{view: &view{state: s}}).answer(t.Context(), eventlog.Entry{Pos: pos, Data: data})
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

// FuzzRegistration puts anything in the place of a run's registration: what can
// be read comes back as it was written, what can't is as good as none, and the
// registration that its owner writes next counts.
func FuzzRegistration(f *testing.F) {
	for _, text := range []string{
		`{"run":"r1","runner":"a","folder":"a","since":1700000000000,"released":3,"incarnation":"i"}`, `{"run":"","incarnation":""}`, `{}`, `[]`, `{"since":1.5}`,
	} {
		f.Add([]byte(fromJSON(f, text)))
	}
	f.Add([]byte("{\"run\":\"r1\"}"))
	f.Add([]byte("\xc1"))
	f.Fuzz(func(t *testing.T, value []byte) {
		g := &registry{names: subjects.Default, runs: map[string]known{}}
		good := registration{Run: "r1", Runner: "b", Folder: "b", Since: 5, Incarnation: "i"}
		g.keep(g.key("r1"), known{registration: good, revision: 1})
		g.note(keys.Entry{Key: g.key("r1"), Value: value, Revision: 2})
		reg, ok := g.get("r1")
		readable := wire.Unmarshal(value, new(registration)) == nil
		if ok != readable || ok != (len(g.list()) == 1) {
			t.Fatalf("%q: readable %t, found %t, and listed are %v", value, readable, ok, g.list())
		}
		var again registration
		if ok {
			encoded, err := wire.Marshal(reg)
			if err != nil {
				t.Fatalf("%q: %+v can't be written: %v", value, reg, err)
			}
			if err := wire.Unmarshal(encoded, &again); err != nil || again != reg {
				t.Fatalf("%q: %+v comes back as %+v, %v", value, reg, again, err)
			}
		}
		encoded, err := wire.Marshal(good)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(encoded, value) && (!ok || reg != good) {
			t.Fatalf("%+v was read as %+v", good, reg)
		}
		g.note(keys.Entry{Key: g.key("r1"), Value: encoded, Revision: 3})
		if reg, _ := g.get("r1"); !cmp.Equal(reg, good) {
			t.Fatalf("behind %q it is %+v", value, reg)
		}
	})
}
