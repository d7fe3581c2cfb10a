package providers_test

import (
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// runOf makes what an agent has told a run of one node, as its runner would.
func (x *trial) runOf(events []*wire.Event) (entries []eventlog.Entry) {
	x.t.Helper()
	def, err := flow.Parse("flow.yaml", []byte("name: one\nnodes: [{id: n, type: agent, input: {prompt: Do it.}}]\n"))
	if err != nil {
		x.t.Fatal(err)
	}
	seqs := map[string]uint64{}
	add := func(node string, e *wire.Event) {
		seqs[node]++
		e.RunID, e.NodeID, e.Seq, e.Epoch = "r", node, seqs[node], 1
		if e.Timestamp == 0 {
			e.Timestamp = time.Now().UnixMilli()
		}
		if e.ExecID == "" && node != wire.RunNode {
			e.ExecID = "n#1"
		}
		entries = append(entries, eventlog.Entry{Pos: uint64(len(entries) + 1), RunID: "r", Time: time.UnixMilli(e.Timestamp), Event: e})
	}
	add(wire.RunNode, &wire.Event{Payload: &wire.RunClaimed{Runner: "r", Nonce: "n"}})
	add(wire.RunNode, &wire.Event{Payload: &wire.FlowStart{FlowName: def.Name, Definition: def.Raw(), DefinitionHash: def.Hash()}})
	add(wire.RunNode, &wire.Event{ExecID: "n#1", Payload: &wire.NodeScheduled{Target: "n", Attempt: 1}})
	add("n", &wire.Event{Payload: &wire.NodeClaimed{Runner: "r", Nonce: "n"}})
	add("n", &wire.Event{Payload: &wire.NodeStart{NodeType: string(flow.TypeAgent), Attempt: 1}})
	var outcome agent.Outcome
	for _, e := range events {
		outcome.Observe(e)
		add("n", e)
	}
	if failed := outcome.Error(); failed != nil {
		add("n", &wire.Event{Payload: &wire.NodeError{Error: failed.Message, ErrorType: failed.ErrorType}})
	} else {
		add("n", &wire.Event{Payload: &wire.NodeComplete{Output: wire.RawString("done")}})
	}
	return entries
}

// stateOf is the state of a run; nil: it has events that can't be.
func (x *trial) stateOf(entries []eventlog.Entry) *wire.State {
	s := run.New("r")
	for _, e := range entries {
		if err := run.Apply(s, wire.Position{Seq: e.Pos}, e.Event); err != nil {
			x.t.Logf("%s: %v", x.name, err)
			return nil
		}
	}
	return s
}

// isAlarming reports whether a run raises an alert of an error.
func isAlarming(entries []eventlog.Entry) bool {
	return slices.ContainsFunc(alerter.Backtest(alerter.Defaults(), entries), func(a wire.Alert) bool { return a.Severity == wire.SeverityError })
}

// kahnEnd is the state of KAHN in which the agent of a run ends; "": its lines aren't KAHN's.
func (x *trial) kahnEnd(entries []eventlog.Entry) (end kahn.Status) {
	x.t.Helper()
	p := kahn.NewProjector(kahn.Projection{})
	for _, e := range entries {
		lines, err := p.Add(e.Pos, e.Event)
		if err != nil {
			x.t.Errorf("%s: %v", x.name, err)
			return ""
		}
		for _, line := range lines {
			parsed, err := kahn.Parse(line)
			if err != nil {
				x.t.Errorf("%s: %s: %v", x.name, line, err)
				return ""
			}
			if step, ok := parsed.Body.(*kahn.Transition); ok {
				end = step.To
			}
		}
	}
	return end
}
