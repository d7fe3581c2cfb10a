package native_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/pkg/wire"
)

// dear gives an agent a model that asks 1000 USD for a million tokens: 0.11 for a reply of
// the script.
func (b *bench) dear() {
	b.request.Options.Prices = map[string]agent.Price{"m": {Input: 1000, Output: 1000}}
}

// told lists what turns cost, and what they have cost so far, as it is on record.
func told(events []*wire.Event) string {
	var list []string
	for _, p := range of[*wire.Usage](events) {
		if (p.CostUsd != nil) != (p.CostSource == wire.PricesOptions) {
			list = append(list, "a call by prices from "+p.CostSource)
		}
	}
	for _, p := range of[*wire.TurnEnd](events) {
		s, models := p.Subtype, ""
		if (p.TotalCostUsd != nil) != (p.CostSource == wire.PricesOptions) {
			s += " by prices from " + p.CostSource
		}
		if p.TurnCostUsd != nil {
			s += fmt.Sprintf(" %.2f", *p.TurnCostUsd)
		}
		if p.TotalCostUsd != nil {
			s += fmt.Sprintf(" of %.2f", *p.TotalCostUsd)
		}
		for name, m := range p.ModelUsage {
			models = fmt.Sprintf(" %s %d", name, m.InputTokens+m.OutputTokens)
			if m.CostUsd != nil {
				models += fmt.Sprintf(" %.2f", *m.CostUsd)
			}
		}
		list = append(list, s+models)
	}
	for _, p := range of[*wire.AgentComplete](events) {
		if p.TotalCostUsd != nil {
			list = append(list, fmt.Sprintf("all %.2f", *p.TotalCostUsd))
		}
	}
	return strings.Join(list, ", ")
}

// TestBudget has agents spend: each turn says what it cost, and the budget ends the agent
// at the end of a turn that has reached it, unless it has come to its own end by that.
func TestBudget(t *testing.T) {
	look := func(id string) apitest.Reply { return apitest.Message(apitest.Call(id, "glob", `{"pattern":"*"}`)) }
	done := apitest.Message(apitest.Text("ok"))
	const turn = "success 0.11"
	for _, test := range []struct {
		name    string
		budget  float64
		replies []apitest.Reply
		free    bool // prices aren't known
		outcome string
		told    string
	}{
		{"none", 0, []apitest.Reply{look("t"), done}, false, "ok", turn + " of 0.11 scripted 110 0.11, " + turn + " of 0.22 scripted 110 0.11, all 0.22"},
		{"not known", 0, []apitest.Reply{look("t"), done}, true, "ok", "success scripted 110, success scripted 110"},
		{"enough", 0.23, []apitest.Reply{look("t"), done}, false, "ok", turn + " of 0.11 scripted 110 0.11, " + turn + " of 0.22 scripted 110 0.11, all 0.22"},
		{"reached at the end", 0.2, []apitest.Reply{look("t"), done}, false, "ok", turn + " of 0.11 scripted 110 0.11, " + turn + " of 0.22 scripted 110 0.11, all 0.22"},
		{
			"too little", 0.2,
			[]apitest.Reply{look("t"), look("u"), done},
			false,
			"error_max_budget_usd: the agent has spent $0.2200, and its budget is $0.2000",
			turn + " of 0.11 scripted 110 0.11, " + turn + " of 0.22 scripted 110 0.11, error_max_budget_usd of 0.22",
		},
		{
			"cut answers", 0.1,
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("1")}, Stop: "max_tokens"}, done},
			false,
			"error_max_budget_usd: the agent has spent $0.1100, and its budget is $0.1000", turn + " of 0.11 scripted 110 0.11, error_max_budget_usd of 0.11",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.replies...)
			if !test.free {
				b.dear()
			}
			b.request.Options.MaxBudgetUsd = test.budget
			b.run()
			if got := outcome(b.log); got != test.outcome {
				t.Errorf("outcome %q, want %q", got, test.outcome)
			}
			if diff := cmp.Diff(test.told, told(b.log)); diff != "" {
				t.Errorf("costs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBudgetOfUnknown refuses a budget that can't be kept, and prices that are none.
func TestBudgetOfUnknown(t *testing.T) {
	b := newBench(t)
	b.request.Options.MaxBudgetUsd = 1
	_, err := b.provider().Start(t.Context(), b.request)
	if err == nil || !strings.Contains(err.Error(), `the price of m isn't known: give it as prices: {"m": {input: USD, output: USD}}, per million tokens, or use maxTurns`) {
		t.Errorf("error %v", err)
	}
	b.request.Options.Prices = map[string]agent.Price{"m": {Input: math.NaN()}}
	if _, err := b.provider().Start(t.Context(), b.request); err == nil || !strings.Contains(err.Error(), "native: prices of m: ") {
		t.Errorf("error %v", err)
	}
	uncounted := apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`))
	uncounted.Input, uncounted.Output = -1, -1
	b = newBench(t, uncounted)
	b.request.Options.MaxBudgetUsd = 1
	b.dear()
	if got := outcome(b.run()); !strings.HasPrefix(got, "cost_unknown: ") {
		t.Errorf("of an API that doesn't count tokens: outcome %q", got)
	}
	b = newBench(t, apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)))
	b.each = func(_ agent.Session, e *wire.Event) bool { return e.Type() != wire.TypeTurnStart || e.Turn == 1 }
	b.run()
	b.each, b.request.Options.MaxBudgetUsd = nil, 1
	b.dear()
	b.resume("")
	if got := outcome(b.run()); !strings.Contains(got, "cost_unknown: maxBudgetUsd can't be kept, since the prices of the agent's model calls are not known: 1 so far") {
		t.Errorf("outcome %q", got)
	}
}

// TestBudgetKilledAnywhere kills an agent before each event is stored: what it has spent
// counts once, also for a message that was lost or rolled back, and its budget ends it all the same.
func TestBudgetKilledAnywhere(t *testing.T) {
	start := func() *bench {
		b := newBench(t,
			apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Call("u", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Text("ok")))
		b.script.ByTurn = true
		b.dear()
		b.request.Options.MaxBudgetUsd = 0.2
		return b
	}
	whole := start()
	whole.run()
	for n := 1; n < len(whole.log); n++ {
		b := start()
		b.each = func(agent.Session, *wire.Event) bool { return len(b.log) < n }
		b.run()
		b.each = nil
		b.resume("")
		b.run()
		paid, turns := 0.0, 0.0
		for _, p := range of[*wire.Usage](b.log) {
			paid += *p.CostUsd
		}
		for _, p := range of[*wire.TurnEnd](b.log) {
			if p.TurnCostUsd != nil {
				turns += *p.TurnCostUsd
			}
		}
		if math.Abs(paid-0.22) > 1e-9 || math.Abs(turns-paid) > 1e-9 {
			t.Errorf("killed after event %d (%s): paid %.2f, told %q", n, b.log[n-1].Type(), paid, told(b.log))
		}
		if got := outcome(b.log); !strings.HasPrefix(got, wire.ErrorMaxBudget) {
			t.Errorf("killed after event %d (%s): outcome %q", n, b.log[n-1].Type(), got)
		}
	}
	b := start()
	b.each = func(_ agent.Session, e *wire.Event) bool { return e.Turn < 2 }
	b.run()
	b.store(&wire.Event{ExecID: "n#1", Payload: &wire.LogTruncated{AtSeq: 3}})
	b.each = nil
	b.resume("")
	if got := told(b.run()); !strings.HasPrefix(got, "success 0.11 of 0.22") {
		t.Errorf("after a roll-back: %q", got)
	}
}

// What a fork tells at its end is what its own calls have used, wherever it began: those before are its parent's.
func TestBillOfFork(t *testing.T) {
	parent := newBench(t, apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Text("ok")))
	parent.script.ByTurn = true
	parent.dear()
	parent.run()
	for n := 1; n <= len(parent.log); n++ {
		b := newBench(t, parent.script.Replies...)
		b.script.ByTurn = true
		b.dear()
		b.log = slices.Clone(parent.log[:n])
		b.request.RunID = "fork"
		b.resume("")
		forked := b.run()
		var used wire.TokenUsage
		for _, p := range of[*wire.Usage](forked) {
			used.InputTokens += p.InputTokens
			used.OutputTokens += p.OutputTokens
		}
		ends := of[*wire.AgentComplete](forked)
		if len(ends) != 1 {
			t.Fatalf("forked behind event %d (%s): outcome %q", n, parent.log[n-1].Type(), outcome(forked))
		}
		told := ends[0].Usage
		if told.InputTokens != used.InputTokens || told.OutputTokens != used.OutputTokens || len(ends[0].ModelUsage) != min(1, len(of[*wire.Usage](forked))) {
			t.Errorf("forked behind event %d (%s): it tells %+v and %v, and its calls used %+v", n, parent.log[n-1].Type(), told, ends[0].ModelUsage, used)
		}
	}
}
