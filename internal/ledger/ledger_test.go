package ledger_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

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
	cached := func(id, model string, in, created, read int64) *wire.Event {
		e := call(id, in, 1)
		u := e.Payload.(*wire.Usage)
		u.Model, u.CacheCreationInputTokens, u.CacheReadInputTokens = model, &created, &read
		return e
	}
	// settled is a result without a cost of its own.
	settled := func(prices string, usage *wire.TokenUsage, models map[string]wire.ModelUsage) *wire.Event {
		return &wire.Event{ExecID: "a#1", Payload: &wire.TurnEnd{Usage: usage, ModelUsage: models, CostSource: prices}}
	}
	for name, test := range map[string]struct {
		events []*wire.Event
		want   wire.Spending
		basis  string
	}{
		"tokens of the cache, of each model": {
			[]*wire.Event{begin, cached("m1", "opus", 10, 100, 1000), cached("m2", "haiku", 20, 200, 2000), result(0.5, map[string]wire.ModelUsage{
				"opus":  {InputTokens: 10, OutputTokens: 2, CacheCreationInputTokens: new(int64(150)), CacheReadInputTokens: new(int64(1500))},
				"haiku": {InputTokens: 20, OutputTokens: 1, CacheCreationInputTokens: new(int64(200)), CacheReadInputTokens: new(int64(1900))},
			})},
			wire.Spending{Calls: 2, InputTokens: 30, OutputTokens: 3, CacheCreationInputTokens: 350, CacheReadInputTokens: 3400, CostUsd: 0.5},
			wire.CostReported,
		},
		"a cost that is told takes the place of a computed one": {
			[]*wire.Event{begin, priced("m1", 10, 1, 0.1), result(0.5, opus(10, 1, 0.5))},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 1, CostUsd: 0.5},
			wire.CostReported,
		},
		"a result that tells nothing settles nothing": {
			[]*wire.Event{begin, priced("m1", 10, 1, 0.1), settled("", &wire.TokenUsage{InputTokens: 99}, nil), result(0, nil)},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 1, CostUsd: 0.1, ComputedUsd: 0.1},
			wire.CostComputed,
		},
		"a result without a cost leaves that of the calls, and what is beyond them is unknown": {
			[]*wire.Event{begin, priced("m1", 10, 1, 0.1), settled("", nil, map[string]wire.ModelUsage{
				"opus": {InputTokens: 10, OutputTokens: 1}, "haiku": {InputTokens: 0, OutputTokens: 2},
			})},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 3, CostUsd: 0.1, ComputedUsd: 0.1, Unpriced: 1},
			wire.CostPartly,
		},
		"an agent that tells nothing but its output": {
			[]*wire.Event{begin, settled("", &wire.TokenUsage{OutputTokens: 4}, nil)},
			wire.Spending{OutputTokens: 4, Unpriced: 1},
			wire.CostPartly,
		},
		"an agent that tells nothing but its input": {
			[]*wire.Event{begin, settled("", &wire.TokenUsage{InputTokens: 4}, nil)},
			wire.Spending{InputTokens: 4, Unpriced: 1},
			wire.CostPartly,
		},
		"an agent that tells nothing": {[]*wire.Event{begin, settled("", &wire.TokenUsage{}, nil)}, wire.Spending{}, ""},
		"a cost that wake has computed of a result": {
			[]*wire.Event{begin, call("m1", 10, 1), settled("wake 2026-11", nil, opus(12, 1, 0.3))},
			wire.Spending{Calls: 1, InputTokens: 12, OutputTokens: 1, CostUsd: 0.3, ComputedUsd: 0.3, Unpriced: 1},
			wire.CostPartly,
		},
		"a cost below zero is none": {
			[]*wire.Event{begin, priced("m1", 10, 1, 0.1), result(-3, nil)},
			wire.Spending{Calls: 1, InputTokens: 10, OutputTokens: 1, CostUsd: 0.1, ComputedUsd: 0.1},
			wire.CostComputed,
		},
		"what a sub-agent that works apart cost": {
			[]*wire.Event{begin, of(result(0.25, opus(7, 7, 0.25)), "t1"), of(result(0, opus(7, 7, 0)), "t1")},
			wire.Spending{CostUsd: 0.25},
			wire.CostReported,
		},
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

// TestSharesOfModels shows how the models of a result share its cost: as it says they did, else the one that was used most has cost it all,
// and together always exactly that much.
func TestSharesOfModels(t *testing.T) {
	usage := func(model string, in int64) *wire.Event {
		return &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: model, Model: model, InputTokens: in}}
	}
	of := func(in int64, usd float64) wire.ModelUsage {
		return wire.ModelUsage{InputTokens: in, CostUsd: &usd}
	}
	for name, test := range map[string]struct {
		total  *float64
		models map[string]wire.ModelUsage
		want   map[string]float64
	}{
		"as they say":            {new(1.0), map[string]wire.ModelUsage{"a": of(1, 0.25), "b": of(9, 0.75)}, map[string]float64{"a": 0.25, "b": 0.75}},
		"in proportion":          {new(2.0), map[string]wire.ModelUsage{"a": of(1, 0.25), "b": of(9, 0.75)}, map[string]float64{"a": 0.5, "b": 1.5}},
		"one for nothing":        {new(2.0), map[string]wire.ModelUsage{"a": of(1, 0.5), "b": of(9, 0)}, map[string]float64{"a": 2, "b": 0}},
		"the one that used most": {new(2.0), map[string]wire.ModelUsage{"a": of(1, 0), "b": of(9, 0)}, map[string]float64{"a": 0, "b": 2}},
		"without a total":        {nil, map[string]wire.ModelUsage{"a": of(1, 0.25), "b": of(9, 0.5)}, map[string]float64{"a": 0.25, "b": 0.5}},
		"of calls alone":         {new(2.0), nil, map[string]float64{"a": 0, "b": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var l ledger.Ledger
			got := map[string]float64{}
			for _, e := range []*wire.Event{
				{ExecID: "a#1", Payload: &wire.AgentStart{}}, usage("a", 1), usage("b", 9),
				{ExecID: "a#1", Payload: &wire.TurnEnd{TurnCostUsd: test.total, ModelUsage: test.models}},
			} {
				for _, x := range l.Apply(e) {
					got[x.Model] += x.CostUsd
				}
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestManyMessages shows that a message counts once as long as its ledger knows it, and that models beyond those that one knows count together.
func TestManyMessages(t *testing.T) {
	var l ledger.Ledger
	calls := int64(0)
	tell := func(i int) {
		for _, x := range l.Apply(&wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: fmt.Sprint(i), Model: fmt.Sprint("m", i), InputTokens: 1}}) {
			calls += x.Calls
		}
	}
	const many = 1000
	for i := range many {
		tell(i)
		tell(i)
		tell(max(0, i-15)) // of 16 that it knows the first
	}
	if calls != many {
		t.Errorf("%d calls of %d messages", calls, many)
	}
	if len(l.Counted) >= many || len(l.Unsettled) >= many {
		t.Errorf("the ledger remembers %d messages and %d models", len(l.Counted), len(l.Unsettled))
	}
	var sum wire.Spending
	for _, s := range l.Unsettled {
		sum = ledger.Add(sum, s)
	}
	if sum.InputTokens != many || sum.Unpriced != many {
		t.Errorf("unsettled are %d tokens of %d calls without a price, want %d of each", sum.InputTokens, sum.Unpriced, many)
	}
}

// Sums of what agents tell stay within their bounds, and none is less than nothing.
func TestHostileTokens(t *testing.T) {
	absurd := []int64{math.MinInt64, -5_000_000, 0, 7, math.MaxInt64}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom(absurd)
		var l ledger.Ledger
		var sum wire.Spending
		for i := range rapid.IntRange(1, 12).Draw(t, "calls") {
			var p wire.Payload = &wire.Usage{
				Model: "m", MessageID: fmt.Sprint(i), InputTokens: n.Draw(t, "in"), OutputTokens: n.Draw(t, "out"),
				CacheReadInputTokens: new(n.Draw(t, "read")), CacheCreationInputTokens: new(n.Draw(t, "made")),
			}
			if rapid.IntRange(0, 3).Draw(t, "result") == 0 {
				p = &wire.TurnEnd{ModelUsage: map[string]wire.ModelUsage{"m": {InputTokens: n.Draw(t, "in"), OutputTokens: n.Draw(t, "out")}}}
			}
			for _, x := range l.Apply(&wire.Event{NodeID: "a", ExecID: "a#1", Payload: p}) {
				sum = ledger.Add(sum, x.Spending)
			}
			for _, v := range []int64{sum.InputTokens, sum.OutputTokens, sum.CacheReadInputTokens, sum.CacheCreationInputTokens, ledger.TokensIn(sum)} {
				if v < 0 || v > 3*ledger.MaxTokens {
					t.Fatalf("%+v", sum)
				}
			}
		}
	})
}
