package flow_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// driver is a log of one run in memory, with its owner and its workers.
type driver struct {
	t     rapid.TB
	d     *flow.Definition
	s     *wire.State
	now   int64
	log   []*wire.Event
	wake  int64
	check bool // that every prefix of a decision leads to the same log
}

func start(t rapid.TB, d *flow.Definition, request wire.RunRequest) *driver {
	t.Helper()
	dr := &driver{t: t, d: d, s: run.New("r1"), now: 1000, check: true}
	dr.append("_run", &wire.Event{Payload: &wire.RunClaimed{Runner: "w1", Nonce: "n"}})
	for _, e := range flow.Start(d, request) {
		dr.append("_run", e)
	}
	return dr
}

// append stores an event as a writer would.
func (dr *driver) append(node string, e *wire.Event) {
	dr.t.Helper()
	stamped := *e
	n := dr.s.Nodes[node]
	stamped.RunID, stamped.NodeID, stamped.Seq, stamped.Epoch, stamped.Timestamp = "r1", node, n.Seq+1, max(n.Epoch, 1), dr.now
	b, err := wire.Encode(&stamped)
	if err != nil {
		dr.t.Fatalf("%s %s: %v", node, e.Type(), err)
	}
	decoded, err := wire.Decode(b)
	if err != nil {
		dr.t.Fatal(err)
	}
	if err := run.Apply(dr.s, wire.Position{Seq: uint64(len(dr.log) + 1)}, decoded); err != nil {
		dr.t.Fatal(err)
	}
	dr.log = append(dr.log, decoded)
}

// settle lets the owner decide until there is nothing to decide.
func (dr *driver) settle() {
	dr.t.Helper()
	for {
		events := dr.decide()
		if len(events) == 0 {
			return
		}
		for _, e := range events {
			dr.append("_run", e)
		}
	}
}

func (dr *driver) decide() []*wire.Event {
	dr.t.Helper()
	before := encode(dr.t, dr.s)
	decision, err := flow.Decide(dr.d, dr.s, dr.now, nil)
	if err != nil {
		dr.t.Fatal(err)
	}
	if !bytes.Equal(before, encode(dr.t, dr.s)) {
		dr.t.Fatal("Decide changed the state it was given")
	}
	if dr.wake = decision.Wake; dr.wake != 0 && dr.wake <= dr.now {
		dr.t.Fatalf("wake at %d, and it is %d", dr.wake, dr.now)
	}
	if dr.check {
		dr.checkPrefixes(decision.Events)
	}
	return decision.Events
}

// checkPrefixes stores only the first events of a decision, as a crash does, and
// lets another owner decide: it has to go on with the rest. A patch may be
// written once more: it changes nothing then.
func (dr *driver) checkPrefixes(events []*wire.Event) {
	dr.t.Helper()
	if len(events) == 0 {
		return
	}
	part := &driver{t: dr.t, d: dr.d, s: run.Clone(dr.s), now: dr.now, log: slices.Clone(dr.log)}
	for i, e := range events {
		part.append("_run", e)
		rest, got := withoutPatches(dr.t, events[i+1:]), withoutPatches(dr.t, part.decide())
		if len(got) > len(rest) {
			got = got[:len(rest)] // the decision was cut to its bound
		}
		if diff := cmp.Diff(rest, got, cmpopts.EquateEmpty()); diff != "" {
			dr.t.Fatalf("after %d of %d events of a decision others follow (-want +got):\n%s", i+1, len(events), diff)
		}
	}
}

func withoutPatches(t rapid.TB, events []*wire.Event) []string {
	var out []string
	for _, e := range events {
		if e.Type() != wire.TypeStatePatch {
			out = append(out, brief(t, e))
		}
	}
	return out
}

// begin lets a worker take the open execution of a node.
func (dr *driver) begin(node string) string {
	dr.t.Helper()
	n := dr.s.Nodes[node]
	if !n.Open() {
		dr.t.Fatalf("node %q has no open execution", node)
	}
	if n.Epoch == 0 {
		dr.append(node, &wire.Event{Payload: &wire.NodeClaimed{Runner: "w2", Nonce: "n"}})
	}
	if n.Started < n.Scheduled {
		dr.append(node, &wire.Event{ExecID: n.Exec, Payload: &wire.NodeStart{NodeType: string(dr.d.Node(node).Type), Attempt: n.Attempt}})
	}
	return n.Exec
}

// do obeys one line of a script:
//
//	NODE completes JSON           a worker starts the open execution and ends it
//	NODE fails TYPE TEXT [JSON]   … badly, perhaps with an output
//	NODE starts                   … only starts it
//	NODE uses TOKENS REASON       its agent has called a model, which stopped for a reason
//	send NODE TEXT                a message, and the node's agent gets it
//	reply PROMPT JSON             an answer
//	pause, resume, wait           wait: until the owner wants to be woken
//	later MS                      that much later
func (dr *driver) do(line string) {
	dr.t.Helper()
	word, rest, _ := strings.Cut(line, " ")
	verb, arg, _ := strings.Cut(rest, " ")
	switch {
	case word == "pause":
		dr.append("_run", &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}})
	case word == "resume":
		p := &wire.FlowResumed{Strategy: "crash"}
		switch verb {
		case "rerun":
			p.Rerun = strings.Fields(arg)
		case "fail":
			p.Fail = strings.Fields(arg)
		case "limits":
			p.Limits = raw(dr.t, arg)
		}
		dr.append("_run", &wire.Event{Payload: p})
	case word == "later":
		ms, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			dr.t.Fatal(err)
		}
		dr.now += ms
	case word == "wait":
		if dr.wake == 0 {
			dr.t.Fatal("nobody wants to be woken")
		}
		dr.now = dr.wake
	case word == "reply":
		dr.command(fmt.Sprintf(`{"type":"reply","promptId":%q,"content":%s,"by":"me"}`, verb, arg))
	case word == "send":
		exec := dr.begin(verb)
		id := dr.command(fmt.Sprintf(`{"type":"send","nodeId":%q,"execId":%q,"message":%q}`, verb, exec, arg))
		dr.append(verb, &wire.Event{ExecID: exec, Payload: &wire.UserMessage{Content: arg, Source: "command", CommandID: id}})
	case verb == "starts":
		dr.begin(word)
	case verb == "uses":
		dr.callModel(word, arg)
	case verb == "completes":
		if dr.d.Node(word).Type == flow.TypeFlow { // the owner records the end of a child
			dr.append("_run", &wire.Event{ExecID: dr.s.Nodes[word].Exec, Payload: &wire.NodeComplete{Target: word, Output: raw(dr.t, arg)}})
			return
		}
		exec := dr.begin(word)
		dr.append(word, &wire.Event{ExecID: exec, Payload: &wire.NodeComplete{Output: raw(dr.t, arg)}})
	case verb == "fails":
		dr.fails(word, arg)
	default:
		dr.t.Fatalf("script: %q", line)
	}
}

func (dr *driver) callModel(node, arg string) {
	dr.t.Helper()
	exec := dr.begin(node)
	tokens, reason, _ := strings.Cut(arg, " ")
	n, err := strconv.ParseInt(tokens, 10, 64)
	if err != nil {
		dr.t.Fatal(err)
	}
	if dr.s.Nodes[node].Turns == 0 {
		dr.append(node, &wire.Event{ExecID: exec, Payload: &wire.TurnStart{}})
	}
	dr.append(node, &wire.Event{ExecID: exec, Payload: &wire.Usage{MessageID: fmt.Sprintf("m%d", len(dr.log)), InputTokens: n, StopReason: reason}})
}

func (dr *driver) fails(node, arg string) {
	dr.t.Helper()
	errorType, text, _ := strings.Cut(arg, " ")
	e := &wire.NodeError{ErrorType: errorType, Error: text}
	if text, output, ok := strings.Cut(text, " {"); ok {
		e.Error, e.Output = text, raw(dr.t, "{"+output)
	}
	dr.append(node, &wire.Event{ExecID: dr.begin(node), Payload: e})
}

func (dr *driver) command(src string) (id string) {
	dr.t.Helper()
	id = fmt.Sprintf("c%d", len(dr.log))
	dr.append("_run", &wire.Event{Payload: &wire.CommandReceived{
		Command: raw(dr.t, src), CommandID: id, AtPos: uint64(len(dr.log)), Accepted: true,
	}})
	return id
}

func raw(t rapid.TB, src string) wire.Raw {
	t.Helper()
	v, err := wire.RawFromJSON([]byte(src))
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	return v
}

func encode(t rapid.TB, v any) wire.Raw {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// brief is an event on a line: where, what, which execution, and the payload.
func brief(t rapid.TB, e *wire.Event) string {
	t.Helper()
	stamped := *e
	if stamped.RunID == "" {
		stamped.RunID, stamped.NodeID, stamped.Seq, stamped.Epoch = "r1", "_run", 1, 1
	}
	b, err := wire.EncodeJSON(&stamped)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"v", "type", "runId", "nodeId", "seq", "epoch", "timestamp", "execId", "definition", "definitionHash"} {
		delete(m, key)
	}
	payload, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join([]string{stamped.NodeID, string(e.Type()), stamped.ExecID, string(payload)}, " ")
}
