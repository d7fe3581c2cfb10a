package ledger_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// TestLedger adds up what events say, each of an execution of its own unless it says otherwise.
func TestLedger(t *testing.T) {
	call := func(id string, in, out int64) *wire.Event {
		return &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: id, Model: "opus", InputTokens: in, OutputTokens: out}}
	}
	priced := func(id string, in, out int64, usd float64) *wire.Event {
		return &wire.Event{ExecID: "a#1", Payload: &wire.Usage{
			MessageID: id, Model: "opus", InputTokens: in, OutputTokens: out, CostUsd: &usd, CostSource: "wake 2026-11",
		}}
	}
	of := func(e *wire.Event, parent string) *wire.Event {
		e.Parent, e.AgentID = parent, "sub"
		return e
	}
	recovered := func(e *wire.Event) *wire.Event {
		e.Payload.(*wire.Usage).Source = wire.SourceRecovered
		return e
	}
	begin := &wire.Event{ExecID: "a#1", Payload: &wire.AgentStart{}}
	result := func(usd float64, models map[string]wire.ModelUsage) *wire.Event {
		return &wire.Event{ExecID: "a#1", Payload: &wire.TurnEnd{
			TurnCostUsd: &usd, ModelUsage: models, Usage: &wire.TokenUsage{InputTokens: 5, OutputTokens: 1},
		}}
	}
	total := func(usd float64, models map[string]wire.ModelUsage) *wire.Event {
		return &wire.Event{ExecID: "a#1", Payload: &wire.AgentComplete{TotalCostUsd: &usd, ModelUsage: models}}
	}
	opus := func(in, out int64, usd float64) map[string]wire.ModelUsage {
		return map[string]wire.ModelUsage{"opus[1m]": {InputTokens: in, OutputTokens: out, CostUsd: &usd}}
	}
	for name, test := range map[string]struct {
		events []*wire.Event
		want   wire.Spending
		basis  string
	}{
		"calls count at once": {
			[]*wire.Event{begin, call("m1", 10, 1), call("m2", 20, 2)},
			wire.Spending{Calls: 2, InputTokens: 30, OutputTokens: 3, Unpriced: 2},
			wire.CostPartly,
		},
		"a message told again doesn't": {
			[]*wire.Event{begin, call("m1", 10, 1), call("m2", 20, 2), call("m1", 10, 9)},
			wire.Spending{Calls: 2, InputTokens: 30, OutputTokens: 3, Unpriced: 2},
			wire.CostPartly,
		},
		"a result replaces calls": {
			[]*wire.Event{begin, call("m1", 10, 1), result(0.5, opus(25, 4, 0.5))},
			wire.Spending{Calls: 1, InputTokens: 25, OutputTokens: 4, CostUsd: 0.5},
			wire.CostReported,
		},
		"also by less than they told": {
			[]*wire.Event{begin, call("m1", 10, 5), result(0.5, opus(10, 2, 0.5))},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 2, CostUsd: 0.5},
			wire.CostReported,
		},
		"a result replaces only what is behind the last one": {
			[]*wire.Event{begin, call("m1", 10, 1), result(0.5, opus(10, 1, 0.5)), call("m2", 20, 2), result(0.25, opus(20, 3, 0.25))},
			wire.Spending{Calls: 2, InputTokens: 30, OutputTokens: 4, CostUsd: 0.75},
			wire.CostReported,
		},
		"a second result of the same calls adds nothing": {
			[]*wire.Event{begin, call("m1", 10, 1), result(0.5, opus(10, 1, 0.5)), result(0, nil)},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 1, CostUsd: 0.5},
			wire.CostReported,
		},
		"a total counts by what it is more": {
			[]*wire.Event{begin, call("m1", 10, 1), result(0.5, opus(10, 1, 0.5)), total(0.7, opus(10, 1, 0.7))},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 1, CostUsd: 0.7},
			wire.CostReported,
		},
		"an agent that tells only at its end": {
			[]*wire.Event{begin, call("m1", 10, 1), total(0.7, opus(30, 3, 0.7))},
			wire.Spending{Calls: 1, InputTokens: 30, OutputTokens: 3, CostUsd: 0.7},
			wire.CostReported,
		},
		"a sub-agent's calls are in the result": {
			[]*wire.Event{begin, call("m1", 10, 1), of(call("s1", 7, 2), "t1"), result(0.5, opus(17, 3, 0.5))},
			wire.Spending{Calls: 2, InputTokens: 17, OutputTokens: 3, CostUsd: 0.5},
			wire.CostReported,
		},
		"a process begun anew tells of its own calls": {
			[]*wire.Event{begin, call("m1", 10, 1), begin, call("m2", 20, 2), result(0.5, opus(20, 2, 0.5))},
			wire.Spending{Calls: 2, InputTokens: 30, OutputTokens: 3, CostUsd: 0.5, Unpriced: 1},
			wire.CostPartly,
		},
		"and not of those that were recovered": {
			[]*wire.Event{begin, recovered(call("m1", 10, 1)), call("m2", 20, 2), result(0.5, opus(20, 2, 0.5))},
			wire.Spending{Calls: 2, InputTokens: 30, OutputTokens: 3, CostUsd: 0.5, Unpriced: 1},
			wire.CostPartly,
		},
		"computed costs": {
			[]*wire.Event{begin, priced("m1", 10, 1, 0.1), priced("m2", 10, 1, 0.2)},
			wire.Spending{Calls: 2, InputTokens: 20, OutputTokens: 2, CostUsd: 0.3, ComputedUsd: 0.3},
			wire.CostComputed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l ledger.Ledger
			var sum wire.Spending
			for _, e := range test.events {
				for _, x := range l.Apply(e) {
					sum = ledger.Add(sum, x.Spending)
				}
			}
			if diff := cmp.Diff(test.want, sum, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Error(diff)
			}
			if basis := ledger.Basis(sum.CostUsd, sum.ComputedUsd, sum.Unpriced); basis != test.basis {
				t.Errorf("basis %q, want %q", basis, test.basis)
			}
		})
	}
}
