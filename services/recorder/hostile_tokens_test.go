package recorder_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// What an agent, or a file that is ingested, tells of absurd tokens takes nothing of what others have spent out of a shared budget.
func TestBudgetOfHostileTokens(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.Usage{Model: "m", InputTokens: 1_000_000, OutputTokens: 1_000_000, MessageID: "m1"})
	exec = p.start("r2", "coder", nil)
	p.add("r2", "coder", exec, &wire.Usage{Model: "m", InputTokens: math.MaxInt64, CacheReadInputTokens: new(int64(math.MaxInt64 / 2)), OutputTokens: 1, MessageID: "m2"})
	p.add("r2", "coder", exec, &wire.Usage{Model: "m", InputTokens: math.MaxInt64, OutputTokens: math.MinInt64, MessageID: "m3"})
	exec = p.start("r3", "coder", nil)
	p.add("r3", "coder", exec, &wire.Usage{Model: "m", InputTokens: -1 << 62, OutputTokens: -5_000_000, MessageID: "m4"})
	s := openStore(t)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries}); err != nil {
		t.Fatal(err)
	}
	b, err := s.Answers.Budgets(t.Context(), []wire.SharedBudget{{Name: "all", Tokens: 1000}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Budgets[0].Spent.Tokens; got < 2_000_000 {
		t.Errorf("spent are %d tokens, of which one run alone has 2000000", got)
	}
}

// What a result takes back of the day before takes nothing of what others have spent out of a budget of a day.
func TestDayOfHostileResult(t *testing.T) {
	p := newTape(t)
	now := time.Now()
	p.clock = now.Add(-24 * time.Hour).UnixMilli()
	hostile := p.start("imported", "coder", nil)
	p.add("imported", "coder", hostile, &wire.Usage{Model: "m", InputTokens: 1 << 40, OutputTokens: 1, MessageID: "m1", CostUsd: new(500_000.0)})
	p.clock = now.UnixMilli()
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.Usage{Model: "m", InputTokens: 2_000_000, OutputTokens: 1, MessageID: "m1", CostUsd: new(90.0)})
	p.add("imported", "coder", hostile, &wire.TurnEnd{
		TurnCostUsd: new(0.01), ModelUsage: map[string]wire.ModelUsage{"m": {InputTokens: 1, OutputTokens: 1, CostUsd: new(0.01)}},
	})
	s := openStore(t)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries}); err != nil {
		t.Fatal(err)
	}
	b, err := s.Answers.Budgets(t.Context(), []wire.SharedBudget{{Name: "all", Usd: 50, Tokens: 1000, Per: wire.BudgetPerDay}}, now)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Budgets[0].Spent; got.Tokens < 2_000_000 || got.Usd < 90 {
		t.Errorf("spent today are %d tokens and $%.2f, of which run r1 alone has 2000000 and $90", got.Tokens, got.Usd)
	}
}

// Sums of absurd tokens are bounded.
func TestStatsOfHostileTokens(t *testing.T) {
	p := newTape(t)
	exec := p.start("imported", "coder", nil)
	for n := range 8200 {
		p.add("imported", "coder", exec, &wire.Usage{Model: fmt.Sprint("m", n), InputTokens: 1 << 50, OutputTokens: 1, MessageID: fmt.Sprint("m", n)})
	}
	s := openStore(t)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Answers.Stats(t.Context(), wire.StatsRequest{}, time.UnixMilli(p.clock))
	if err != nil {
		t.Fatal(err)
	}
	if r.Total.TokensIn < 0 {
		t.Errorf("tokens of all runs: %d", r.Total.TokensIn)
	}
}
