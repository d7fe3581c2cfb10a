package runner_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// spender has an agent that costs a dollar and 1000 tokens a turn, makes some turns and is done.
func spender(turns int) *scripted {
	return &scripted{play: func(s *session, say func(wire.Payload) bool) {
		usd := 1.0
		for range turns {
			if !say(&wire.TurnStart{}) || !say(&wire.TurnEnd{TurnCostUsd: &usd, Usage: &wire.TokenUsage{InputTokens: 900, OutputTokens: 100}}) {
				return
			}
			if s.ctx.Err() != nil {
				return
			}
		}
		say(&wire.AgentComplete{Result: "done"})
	}}
}

// three agents, one after the other.
const three = `
name: three
nodes:
  - {id: a, type: agent, input: {provider: claude, prompt: a}}
  - {id: b, type: agent, input: {provider: claude, prompt: b}}
  - {id: c, type: agent, input: {provider: claude, prompt: c}}
edges:
  - {from: a, to: b}
  - {from: b, to: c}
`

func limits(v map[string]any) func(*wire.RunRequest) {
	return func(r *wire.RunRequest) { r.Limits = rawOf(v) }
}

// TestBudgetPauses has a run stop once it has spent what it may, under whichever runner, and
// go on when a person grants more.
func TestBudgetPauses(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := spender(1)
		r1 := b.process("r1", p)
		b.submit("run1", shared("budget: {usd: 1}\n"+three))
		entries := b.until("run1", wire.TypeFlowPaused)
		if paused := first[*wire.FlowPaused](t, entries); paused.Reason != wire.PauseBudget || !strings.HasPrefix(paused.Message, "budget spent: $1.00 of $1.00; ") {
			t.Errorf("paused for %+v", paused)
		}
		if done := count(entries, wire.TypeNodeComplete); done != 1 || len(p.started()) != 1 {
			t.Errorf("%d nodes are complete and %v were started:\n%s", done, p.started(), story(entries))
		}

		// Another runner takes it over: it stays paused, and isn't paused again.
		r1.kill()
		b.process("r2", p)
		b.awaits("a takeover", func() bool { return b.owner("run1") == "r2" })
		for _, less := range []map[string]any{{"maxCostUsd": 0.5}, {"maxCostUsd": 1}, {"maxTokens": 1000}, {"maxCostUsd": -1}, {"usd": 5}, {"then": "abort"}} {
			if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Limits: rawOf(less)}); code(r) != "BAD_REQUEST" {
				t.Errorf("%v: %+v", less, r)
			}
		}
		if s := b.fold("run1", b.read("run1")); s.Status != wire.RunPaused || count(b.read("run1"), wire.TypeFlowPaused) != 1 {
			t.Errorf("the run is %s:\n%s", s.Status, story(b.read("run1")))
		}

		// Resumed, it may spend a dollar more; then two in all more.
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		b.awaits("a second pause", func() bool { return count(b.read("run1"), wire.TypeFlowPaused) == 2 })
		if s := b.fold("run1", b.read("run1")); s.Usage.CostUsd != 2 || s.BudgetFrom == nil || s.BudgetFrom.Usd != 1 {
			t.Errorf("the run has cost %v since %+v", s.Usage.CostUsd, s.BudgetFrom)
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Limits: rawOf(map[string]any{"maxCostUsd": 2.5})}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		state, entries := b.ended("run1") // with the last agent the budget is spent, and nothing left to do
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) != 2 || state.BudgetFrom != nil || state.Usage.CostUsd != 3 {
			t.Errorf("run ended as %s %s:\n%s", state.Status, state.Result, story(entries))
		}
	})
}

// TestBudgetAborts ends a run that has spent what it may: within the work of its agent, by the
// limits of the request, which come before those of the flow.
func TestBudgetAborts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", spender(1))
		b.submit("run1", "budget: {usd: 100, tokens: 1500, then: pause}\n"+three, limits(map[string]any{"then": "abort", "maxCostUsd": 0}))
		state, entries := b.ended("run1")
		if state.Status != wire.RunAborted || state.Reason != "budget spent: 2000 of 1500 tokens" || count(entries, wire.TypeNodeComplete) != 2 {
			t.Errorf("run ended as %s (%s):\n%s", state.Status, state.Reason, story(entries))
		}
		if n := count(entries, wire.TypeFlowAborted); n != 1 {
			t.Errorf("aborted %d times", n)
		}
	})
}

// TestBudgetInterrupts stops an agent that is at work when the budget is spent.
func TestBudgetInterrupts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
			say(&wire.TurnStart{})
			say(&wire.Usage{MessageID: "m1", Model: "m", InputTokens: 900, OutputTokens: 100})
			<-s.ctx.Done() // it would go on for ever
		}})
		b.submit("run1", three, limits(map[string]any{"maxTokens": 1000}))
		entries := b.until("run1", wire.TypeAgentPaused)
		if paused := first[*wire.FlowPaused](t, entries); paused.Reason != wire.PauseBudget {
			t.Errorf("paused for %+v", paused)
		}
		if r := b.tell(wire.Command{Type: "abort", RunID: "run1"}); code(r) != "accepted" {
			t.Errorf("%+v", r)
		}
		b.ended("run1")
	})
}

// TestBudgetOfNothing refuses a request whose limits nothing would keep to.
func TestBudgetOfNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", three, limits(map[string]any{"maxCostUSD": 5}))
		b.awaits("a refusal", func() bool { return b.waiting() == 0 })
		if entries := b.read("run1"); len(entries) != 0 {
			t.Errorf("the run has begun:\n%s", story(entries))
		}
	})
}

func rawOf(v any) wire.Raw {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
