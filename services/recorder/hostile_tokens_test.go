package recorder_test

import (
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
