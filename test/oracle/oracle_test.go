package oracle_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/oracle"
)

const incarnation = "00000000-0000-4000-8000-000000000000"

// book is a history that is written by hand, and what happened beside it.
type book struct {
	*oracle.History

	ledger *oracle.Ledger
	seqs   map[string]uint64
	epochs map[string]uint64
}

func newBook() *book {
	return &book{
		History: &oracle.History{Incarnation: incarnation, Names: subjects.Default, Snapshots: map[string][]byte{}},
		ledger:  oracle.NewLedger(), seqs: map[string]uint64{}, epochs: map[string]uint64{},
	}
}

// add stores an event behind the others.
func (b *book) add(t *testing.T, id, node, exec, call string, p wire.Payload) {
	t.Helper()
	key := id + "/" + node
	b.seqs[key]++
	switch p.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		b.epochs[key]++
	}
	e := &wire.Event{RunID: id, NodeID: node, Seq: b.seqs[key], Epoch: b.epochs[key], Timestamp: 1, ExecID: exec, CallID: call, Payload: p}
	if _, ok := p.(*wire.AgentStart); ok {
		e.SessionID = "s"
	}
	b.store(t, e)
}

func (b *book) store(t *testing.T, e *wire.Event) {
	t.Helper()
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	pos := uint64(len(b.Events) + 1)
	x := eventlog.Entry{
		Pos: pos, Time: time.Unix(int64(pos), 0), RunID: e.RunID, NodeID: e.NodeID, Kind: e.Type().Kind(),
		Subject: subjects.Default.Event(e.RunID, e.NodeID, string(e.Type().Kind())), Data: data, Event: e,
	}
	b.Events = append(b.Events, x)
	b.ledger.Acknowledged(pos, x.Subject, data)
}

// sound returns a history in which all is as it should be: run a executes one node,
// and run b is a fork of it.
func sound(t *testing.T) *book {
	t.Helper()
	b := newBook()
	definition, err := wire.Marshal(map[string]any{"name": "f", "nodes": []any{map[string]any{"id": "n", "type": "agent", "input": map[string]any{"prompt": "go"}}}})
	if err != nil {
		t.Fatal(err)
	}
	b.add(t, "a", wire.RunNode, "", "", &wire.RunClaimed{Runner: "r1", Nonce: "1"})
	b.add(t, "a", wire.RunNode, "", "", &wire.FlowStart{FlowName: "f", Definition: definition, DefinitionHash: strings.Repeat("0", 64)})
	b.add(t, "a", wire.RunNode, "n#1", "", &wire.NodeScheduled{Target: "n", Attempt: 1})
	b.add(t, "a", "n", "n#1", "", &wire.NodeClaimed{Runner: "r1", Nonce: "2"})
	b.add(t, "a", "n", "n#1", "", &wire.NodeStart{NodeType: "agent", Attempt: 1})
	b.add(t, "a", "n", "n#1", "", &wire.AgentStart{Prompt: wire.RawString("go")})
	b.add(t, "a", "n", "n#1", "c1", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("x")})
	b.add(t, "a", "n", "n#1", "c1", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("y")})
	fork := b.state(t, "a", 8)
	b.add(t, "a", wire.RunNode, "", "", &wire.CommandReceived{Command: wire.RawString("fork"), CommandID: "k", AtPos: 1, Accepted: true})
	b.add(t, "a", "n", "n#1", "", &wire.NodeComplete{Output: wire.RawString("done")})
	b.add(t, "a", wire.RunNode, "", "", &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete})
	b.add(t, "b", wire.RunNode, "", "", &wire.RunClaimed{Runner: "r1", Nonce: "3"})
	b.add(t, "b", wire.RunNode, "", "", &wire.RunForked{ParentRun: "a", ParentPos: 8, State: fork})
	b.add(t, "b", wire.RunNode, "", "", &wire.FlowAborted{Reason: "enough"})
	b.Snapshots["a"] = b.state(t, "a", 10)
	b.Bookmarks = []oracle.Bookmark{{Run: "a", Label: "l", State: b.state(t, "a", 5)}}
	key := "completion-a"
	b.Alerts = []oracle.Alert{{Subject: subjects.Default.Alert("a", wire.RunNode, "completion", key), Alert: wire.Alert{
		Key: key, Kind: "completion", RunID: "a", NodeID: wire.RunNode, Timestamp: 7, Position: wire.Position{Incarnation: incarnation, Seq: 11}, Text: "done",
	}}}
	b.Commands = []oracle.Message{{Position: 1, Subject: subjects.Default.Command("a"), Data: []byte("{}")}}
	b.ledger.Commanded(1, "a", "k")
	b.ledger.Requested("a")
	b.ledger.Shown("terminal", "done")
	b.ledger.Listens("idle")
	b.ledger.Took("ops", idOf(key), []byte("1"))
	b.ledger.Took("ops", idOf(key), []byte("1"))
	b.DeadLetters = []wire.Poison{{Stream: "WAKE_ALERTS", Service: "sink-idle", Data: letter(t, key)}}
	b.ledger.Began(oracle.Beginning{Run: "a", Node: "n", Exec: "n#1", Runner: "r1"})
	b.ledger.Worked(oracle.Work{Run: "a", Node: "n", Exec: "n#1", Call: "c1", At: time.Unix(7, 0)})
	b.ledger.Heard(1, "r1/1")
	b.ledger.Acted("a", "n", 1)
	b.says("intent c1", "result c1")
	b.record()
	return b
}

// says has the agent of the node say things.
func (b *book) says(marks ...string) {
	for _, m := range marks {
		b.ledger.Said(oracle.Saying{Run: "a", Exec: "n#1", Agent: 1, Mark: m})
	}
}

// counts stores what the agent says of its tokens.
func (b *book) counts(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		b.add(t, "a", "n", "n#1", "", &wire.Usage{MessageID: id})
	}
}

// idOf returns the id under which sinks get the alert of a key.
func idOf(key string) string { return incarnation + "-" + key + "-7" }

// letter returns what is given up of the alert of a key.
func letter(t *testing.T, key string) []byte {
	t.Helper()
	data, err := wire.Marshal(map[string]any{"id": idOf(key)})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// record makes replay and record what they should be.
func (b *book) record() {
	b.Replayed, b.Recorded = slices.Clone(b.Events), nil
	for _, e := range b.Events {
		b.Recorded = append(b.Recorded, oracle.Row{Position: e.Pos, Run: e.RunID, Node: e.NodeID, Data: e.Data})
	}
	b.Index.Position = uint64(len(b.Events))
}

// state folds a run up to a position.
func (b *book) state(t *testing.T, id string, to uint64) wire.Raw {
	t.Helper()
	s := run.New(id)
	for _, e := range b.Events {
		if e.RunID != id || e.Pos > to {
			continue
		}
		if err := run.Apply(s, wire.Position{Incarnation: incarnation, Seq: e.Pos}, e.Event); err != nil {
			t.Fatal(err)
		}
	}
	data, err := wire.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func judge(b *book) oracle.Report {
	return oracle.Judge(b.History, b.ledger, oracle.Options{Recorder: "given"})
}

func TestSound(t *testing.T) {
	r := judge(sound(t))
	for _, v := range r.Violations {
		t.Error(v)
	}
	if r.Runs != 2 || r.Forks != 1 || r.Executions != 2 || r.Events != 14 {
		t.Errorf("%+v", r)
	}
}

// Each planted bug is found, under the name of what it violates.
func TestPlanted(t *testing.T) {
	for _, x := range []struct {
		name  string
		plant func(t *testing.T, b *book)
		want  []oracle.Invariant // one of them must be found
	}{
		{"an acknowledged event is dropped", func(_ *testing.T, b *book) { b.Events = b.Events[:13] }, []oracle.Invariant{oracle.AcknowledgedIsStored}},
		{"another event is where one was acknowledged", func(_ *testing.T, b *book) {
			b.ledger.Acknowledged(3, b.Events[2].Subject, b.Events[4].Data)
		}, []oracle.Invariant{oracle.AcknowledgedIsStored}},
		{"an event in the middle is dropped", func(_ *testing.T, b *book) { b.Events = slices.Delete(b.Events, 6, 7) }, []oracle.Invariant{oracle.InOrder}},
		{"an event is stored twice", func(t *testing.T, b *book) { b.store(t, b.Events[13].Event) }, []oracle.Invariant{oracle.StoredOnce}},
		{"two events are exchanged", func(_ *testing.T, b *book) { exchange(b, 6, 7) }, []oracle.Invariant{oracle.InOrder}},
		{"a former writer adds something", func(t *testing.T, b *book) {
			b.add(t, "b", wire.RunNode, "", "", &wire.RunClaimed{Runner: "r2", Nonce: "9"})
			b.epochs["b/_run"]--
			b.add(t, "b", wire.RunNode, "", "", &wire.StorageFailure{Message: "late"})
		}, []oracle.Invariant{oracle.OneWriter}},
		{"a writer adds something without a claim", func(t *testing.T, b *book) {
			b.epochs["b/_run"]++
			b.add(t, "b", wire.RunNode, "", "", &wire.StorageFailure{Message: "unclaimed"})
		}, []oracle.Invariant{oracle.OneWriter}},
		{"an event is under a foreign run", func(_ *testing.T, b *book) {
			b.Events[7].Subject, b.Events[7].RunID = subjects.Default.Event("b", "n", "tool"), "b"
		}, []oracle.Invariant{oracle.OwnRun}},
		{"a snapshot is of the position before", func(t *testing.T, b *book) { b.Snapshots["a"] = shifted(t, b.Snapshots["a"], -1) }, []oracle.Invariant{oracle.SnapshotIsFold}},
		{"a snapshot is of the position behind", func(t *testing.T, b *book) { b.Snapshots["a"] = shifted(t, b.Snapshots["a"], 1) }, []oracle.Invariant{oracle.SnapshotIsFold}},
		{"a bookmark is of another run", func(_ *testing.T, b *book) { b.Bookmarks[0].Run = "b" }, []oracle.Invariant{oracle.SnapshotIsFold}},
		{"the history isn't allowed", func(t *testing.T, b *book) {
			b.add(t, "b", wire.RunNode, "x#1", "", &wire.NodeComplete{Target: "x", Output: wire.Null})
		}, []oracle.Invariant{oracle.FoldAccepts}},
		{"a replay changes a byte", func(_ *testing.T, b *book) {
			b.Replayed[5].Data = append(bytes.Clone(b.Replayed[5].Data[:20]), b.Replayed[5].Data[19:]...)
		}, []oracle.Invariant{oracle.ReplayIsLog}},
		{"a replay ends early", func(_ *testing.T, b *book) { b.Replayed = b.Replayed[:13] }, []oracle.Invariant{oracle.ReplayIsLog}},
		{"a fork has one event more", func(t *testing.T, b *book) { refork(t, b, b.state(t, "a", 9)) }, []oracle.Invariant{oracle.ForkIsParent}},
		{"a fork has one event less", func(t *testing.T, b *book) { refork(t, b, b.state(t, "a", 7)) }, []oracle.Invariant{oracle.ForkIsParent}},
		{"a completed execution begins again", func(t *testing.T, b *book) {
			b.add(t, "a", "n", "n#1", "", &wire.NodeStart{NodeType: "agent", Attempt: 1})
		}, []oracle.Invariant{oracle.ExecutedOnce}},
		{"an execution ends twice", func(t *testing.T, b *book) {
			b.add(t, "a", "n", "n#1", "", &wire.NodeError{Error: "late"})
		}, []oracle.Invariant{oracle.ExecutedOnce}},
		{"an execution was never scheduled", func(t *testing.T, b *book) {
			b.add(t, "a", "n", "n#2", "", &wire.NodeStart{NodeType: "agent", Attempt: 1})
		}, []oracle.Invariant{oracle.ExecutedOnce}},
		{"an agent begins too often", func(_ *testing.T, b *book) {
			for range 2 {
				b.ledger.Began(oracle.Beginning{Run: "a", Node: "n", Exec: "n#1", Runner: "r2"})
			}
		}, []oracle.Invariant{oracle.ExecutedOnce}},
		{"a call is made twice", func(_ *testing.T, b *book) {
			b.ledger.Worked(oracle.Work{Run: "a", Node: "n", Exec: "n#1", Call: "c1", At: time.Unix(8, 0)})
		}, []oracle.Invariant{oracle.WorkedOnce}},
		{"a command is run twice", func(_ *testing.T, b *book) { runTwice(b, false) }, []oracle.Invariant{oracle.WorkedOnce}},
		{"a command that may run again does", func(_ *testing.T, b *book) { runTwice(b, true) }, nil},
		{"a call is made before its intent is stored", func(_ *testing.T, b *book) {
			b.ledger.Worked(oracle.Work{Run: "a", Node: "n", Exec: "n#1", Call: "c2", At: time.Unix(8, 0)})
		}, []oracle.Invariant{oracle.WorkedOnce}},
		{"a call that changes nothing is made before its intent is stored", func(_ *testing.T, b *book) {
			b.ledger.Worked(oracle.Work{Run: "a", Node: "n", Exec: "n#1", Call: "c2", Safe: true, At: time.Unix(8, 0)})
		}, nil},
		{"a call is made behind the end", func(_ *testing.T, b *book) {
			b.ledger.Worked(oracle.Work{Run: "a", Node: "n", Exec: "n#1", Call: "c1", At: time.Unix(1000, 0)})
		}, []oracle.Invariant{oracle.WorkedOnce}},
		{"two agents act at the same time", func(_ *testing.T, b *book) {
			b.ledger.Acted("a", "n", 2)
			b.ledger.Acted("a", "n", 1)
		}, []oracle.Invariant{oracle.OneAgent}},
		{"two runners speak to an agent", func(_ *testing.T, b *book) {
			b.ledger.Heard(1, "r1/2")
			b.ledger.Heard(1, "r1/1")
		}, []oracle.Invariant{oracle.OneRunner}},
		{"what an agent said between two things isn't on record", func(t *testing.T, b *book) {
			b.counts(t, "2")
			b.says("usage 1", "usage 2")
		}, []oracle.Invariant{oracle.SaidOnce}},
		{"what an agent said is on record twice", func(t *testing.T, b *book) {
			b.counts(t, "1", "1")
			b.says("usage 1")
		}, []oracle.Invariant{oracle.SaidOnce}},
		{"what an agent said last is on record first", func(t *testing.T, b *book) {
			b.counts(t, "2", "1")
			b.says("usage 1", "usage 2")
		}, []oracle.Invariant{oracle.SaidOnce}},
		{"what an agent said as a text isn't on record", func(t *testing.T, b *book) {
			b.add(t, "a", "n", "n#1", "", &wire.AgentText{Content: "§1-2§ x §1-4§ y", Block: 1})
			b.says("§1-2§", "§1-3§", "§1-4§")
		}, []oracle.Invariant{oracle.SaidOnce}},
		{"an agent is left", func(_ *testing.T, b *book) { b.ledger.Left([]string{"keeper"}) }, []oracle.Invariant{oracle.ComesToAnEnd}},
		{"an alert is stored twice", func(_ *testing.T, b *book) { b.Alerts = append(b.Alerts, b.Alerts[0]) }, []oracle.Invariant{oracle.AlertedOnce}},
		{"an alert is shown twice", func(_ *testing.T, b *book) { b.ledger.Shown("terminal", "done") }, []oracle.Invariant{oracle.AlertedOnce}},
		{"an alert has no event", func(_ *testing.T, b *book) { b.Alerts[0].Position.Seq = 99 }, []oracle.Invariant{oracle.AlertedOnce}},
		{"an alert tells of a gap", func(_ *testing.T, b *book) { b.Alerts[0].Kind = "seq_gap" }, []oracle.Invariant{oracle.AlertedOnce}},
		{"an alert isn't raised", func(_ *testing.T, b *book) { b.Alerts = nil }, []oracle.Invariant{oracle.AlertedOnce}},
		{"an alert isn't sent to a sink", func(_ *testing.T, b *book) { b.ledger.Listens("other") }, []oracle.Invariant{oracle.DeliveredOnce}},
		{"what is given up is no dead letter", func(_ *testing.T, b *book) { b.DeadLetters = nil }, []oracle.Invariant{oracle.DeliveredOnce}},
		{"a sink is sent what isn't stored", func(_ *testing.T, b *book) { b.ledger.Took("ops", idOf("error-9"), nil) }, []oracle.Invariant{oracle.DeliveredOnce}},
		{"a sink is sent something else again", func(_ *testing.T, b *book) { b.ledger.Took("ops", idOf("completion-a"), []byte("2")) }, []oracle.Invariant{oracle.DeliveredOnce}},
		{"a sink is sent what comes before", func(_ *testing.T, b *book) {
			a := b.Alerts[0]
			a.Key = "error-2"
			b.Alerts = append(b.Alerts, a)
			b.ledger.Took("ops", idOf("error-2"), nil)
			b.ledger.Took("idle", idOf("error-2"), nil)
			b.ledger.Took("ops", idOf("completion-a"), []byte("1"))
		}, []oracle.Invariant{oracle.DeliveredOnce}},
		{"an agent is told twice", func(t *testing.T, b *book) {
			for range 2 {
				b.add(t, "a", "n", "n#1", "", &wire.UserMessage{Source: "command", CommandID: "m", Content: "go"})
			}
		}, []oracle.Invariant{oracle.ToldOnce}},
		{"the record lacks an event", func(_ *testing.T, b *book) { b.Recorded = slices.Delete(b.Recorded, 4, 5) }, []oracle.Invariant{oracle.RecordedAll}},
		{"the record has other bytes", func(_ *testing.T, b *book) { b.Recorded[4].Data = b.Recorded[5].Data }, []oracle.Invariant{oracle.RecordedAll}},
		{"the recorder's position is off by one", func(_ *testing.T, b *book) { b.Index.Position-- }, []oracle.Invariant{oracle.RecordedAll}},
		{"a command isn't on record", func(_ *testing.T, b *book) {
			b.Commands = append(b.Commands, oracle.Message{Position: 2, Subject: subjects.Default.Command("a")})
		}, []oracle.Invariant{oracle.CommandOnRecord}},
		{"a command is obeyed twice", func(t *testing.T, b *book) {
			b.add(t, "a", wire.RunNode, "", "", &wire.CommandReceived{Command: wire.RawString("fork"), CommandID: "k", AtPos: 1, Accepted: true})
		}, []oracle.Invariant{oracle.CommandOnRecord}},
		{"a command reaches a foreign run", func(_ *testing.T, b *book) { b.Commands[0].Subject = subjects.Default.Command("b") }, []oracle.Invariant{oracle.CommandOnRecord}},
		{"an acknowledged command is gone", func(_ *testing.T, b *book) { b.Commands = nil }, []oracle.Invariant{oracle.CommandOnRecord}},
		{"poison is dropped", func(_ *testing.T, b *book) {
			b.Events = append(b.Events, eventlog.Entry{Pos: 15, Subject: "wake.events.x.y.flow", Kind: wire.KindFlow, Data: []byte("\xc1"), Err: wire.ErrSyntax})
		}, []oracle.Invariant{oracle.NothingDropped}},
		{"a stored event is a dead letter too", func(_ *testing.T, b *book) {
			b.DeadLetters = append(b.DeadLetters, wire.Poison{Stream: "WAKE_EVENTS", Service: "eventlog", Data: b.Events[3].Data})
		}, []oracle.Invariant{oracle.StoredOnce}},
		{"a run doesn't end", func(t *testing.T, b *book) {
			b.add(t, "c", wire.RunNode, "", "", &wire.RunClaimed{Runner: "r1", Nonce: "4"})
		}, []oracle.Invariant{oracle.ComesToAnEnd}},
		{"a run that was asked for doesn't begin", func(_ *testing.T, b *book) { b.ledger.Requested("z") }, []oracle.Invariant{oracle.ComesToAnEnd}},
		{"a run whose request was lost with the queue doesn't begin", func(_ *testing.T, b *book) {
			b.ledger.Requested("z")
			b.ledger.LostQueue()
		}, nil},
		{"a run that was asked for behind a lost queue doesn't begin", func(_ *testing.T, b *book) {
			b.ledger.LostQueue()
			b.ledger.Requested("z")
		}, []oracle.Invariant{oracle.ComesToAnEnd}},
		{"a registration is left", func(_ *testing.T, b *book) { b.Registered = []string{"runner.a"} }, []oracle.Invariant{oracle.ComesToAnEnd}},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := sound(t)
			x.plant(t, b)
			r := judge(b)
			if len(x.want)+len(r.Violations) == 0 {
				return
			}
			for _, v := range r.Violations {
				if slices.Contains(x.want, v.Invariant) {
					return
				}
			}
			t.Errorf("found %v, want %v", r.Violations, x.want)
		})
	}
}

// exchange swaps what stands at two places.
func exchange(b *book, i, j int) {
	b.Events[i], b.Events[j] = b.Events[j], b.Events[i]
	b.Events[i].Pos, b.Events[j].Pos = b.Events[j].Pos, b.Events[i].Pos
}

// shifted returns a state that says that it is of another position.
func shifted(t *testing.T, state []byte, by int64) []byte {
	t.Helper()
	s, err := run.Decode(state)
	if err != nil {
		t.Fatal(err)
	}
	s.Position.Seq = uint64(int64(s.Position.Seq) + by)
	if state, err = wire.Marshal(s); err != nil {
		t.Fatal(err)
	}
	return state
}

// refork gives the fork another inherited state.
func refork(t *testing.T, b *book, state wire.Raw) {
	t.Helper()
	e := &b.Events[12]
	p := *e.Event.Payload.(*wire.RunForked)
	p.State = state
	event := *e.Event
	event.Payload = &p
	data, err := wire.Encode(&event)
	if err != nil {
		t.Fatal(err)
	}
	e.Event, e.Data = &event, data
}

// runTwice has the command of an exec node run twice.
func runTwice(b *book, idempotent bool) {
	for range 2 {
		b.ledger.Ran(oracle.Command{Run: "a", Node: "n", Exec: "n#1", Idempotent: idempotent})
	}
}
