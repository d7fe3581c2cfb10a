package ledger_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// TestReconciliation explains in what calls and results differ.
func TestReconciliation(t *testing.T) {
	event := func(p wire.Payload) *wire.Event { return &wire.Event{NodeID: "a", ExecID: "a#1", Payload: p} }
	usage := func(id, model, source string, in int64) *wire.Event {
		return event(&wire.Usage{MessageID: id, Model: model, InputTokens: in, OutputTokens: 1, Source: source})
	}
	usd := 0.5
	result := func(models map[string]wire.ModelUsage) *wire.Event {
		return event(&wire.TurnEnd{TurnCostUsd: &usd, ModelUsage: models})
	}
	var r ledger.Reconciliation
	for _, e := range []*wire.Event{
		event(&wire.AgentStart{}), usage("m0", "opus", wire.SourceRecovered, 7), usage("m1", "opus", "", 10), usage("m2", "haiku", "", 9),
		result(map[string]wire.ModelUsage{"opus[1m]": {InputTokens: 30, OutputTokens: 3}, "haiku": {InputTokens: 4, OutputTokens: 1}, "small": {InputTokens: 2, OutputTokens: 2}}),
		usage("m3", "opus", "", 20), event(&wire.NodeError{Error: "killed"}),
	} {
		r.Apply(e)
	}
	var got []string
	for _, row := range r.Rows() {
		got = append(got, row.Model+": "+row.Calls.String()+"; "+row.Results.String()+"; "+row.Ledger.String())
		for _, why := range row.Why {
			got = append(got, "  "+why)
		}
	}
	want := `haiku: 9 in, 1 out; 4 in, 1 out; 4 in, 1 out
  results tell of 5 in, 0 out less than the output: a result doesn't count what its program gave up, or counts a call otherwise
opus: 37 in, 3 out; 30 in, 3 out; 57 in, 5 out
  1 calls (7 in, 1 out) were read in the session's file: no result tells of them, since the process that made them was gone
  1 calls (20 in, 1 out) have no result: the agent was ended before it, or is at work, or its file has none
  results tell of 20 in, 2 out more than the output shows: calls of sub-agents, of a compaction, or tries that it doesn't tell of
small: 0 in, 0 out; 2 in, 2 out; 2 in, 2 out
  results tell of 2 in, 2 out of this model, and the output of no call to it: a small model, a compaction or sub-agents whose calls it doesn't show`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("%s", text)
	}
}
