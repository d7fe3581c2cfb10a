package native

import (
	"cmp"
	"maps"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// bill is what the model calls of an execution have used and cost: in its own run, since
// those of the run that it was forked from are paid for there, and with what was rolled
// back, since that is paid for too. The zero value is that of an agent that hasn't begun.
type bill struct {
	usd     float64
	known   int                        // calls of which it is known what they cost
	unknown int                        // the others
	parts   float64                    // what the runs cost that calls have started; told by them, not in total
	prices  string                     // of the calls, see [wire.Usage.CostSource]
	models  map[string]wire.ModelUsage // what all calls used
	turn    map[string]wire.ModelUsage // what those since the last turn:end used
}

// takeEvent takes the next event of the run.
func (b *bill) takeEvent(e *wire.Event) {
	if e.Parent != "" {
		return
	}
	switch p := e.Payload.(type) {
	case *wire.Usage:
		if p.CostUsd == nil {
			b.unknown++
		} else {
			b.known++
			b.prices = p.CostSource
			b.usd = min(b.usd+*p.CostUsd, wire.MaxCostUsd)
		}
		if b.models == nil {
			b.models = map[string]wire.ModelUsage{}
		}
		if b.turn == nil {
			b.turn = map[string]wire.ModelUsage{}
		}
		addModelUsage(b.models, p)
		addModelUsage(b.turn, p)
	case *wire.AgentTool:
		if p.ChildCostUsd != nil && *p.ChildCostUsd > 0 {
			b.parts = min(b.parts+*p.ChildCostUsd, wire.MaxCostUsd)
		}
	case *wire.TurnEnd:
		b.turn = nil
	}
}

// totalCost is what all calls cost; nil if that isn't known.
func (b *bill) totalCost() *float64 {
	if b.unknown > 0 || b.known == 0 {
		return nil
	}
	return new(b.usd)
}

// knownSpending is what is known to have been spent, by the runs that the agent has started too.
func (b *bill) knownSpending() float64 { return min(b.usd+b.parts, wire.MaxCostUsd) }

// fillTurnEnd says what was used and what it cost since the last turn:end.
func (b *bill) fillTurnEnd(p *wire.TurnEnd) {
	p.TotalCostUsd, p.CostSource = b.totalCost(), b.prices
	if len(b.turn) == 0 {
		return
	}
	p.ModelUsage, p.Usage = maps.Clone(b.turn), new(sumUsage(b.turn))
	for _, model := range slices.Sorted(maps.Keys(b.turn)) {
		p.TurnCostUsd = addOptional(p.TurnCostUsd, b.turn[model].CostUsd)
	}
}

// sumUsage returns the tokens of all models.
func sumUsage(models map[string]wire.ModelUsage) (sum wire.TokenUsage) {
	for _, m := range models {
		tokenCounts{&sum.InputTokens, &sum.OutputTokens, &sum.CacheCreationInputTokens, &sum.CacheReadInputTokens}.
			add(m.InputTokens, m.OutputTokens, m.CacheCreationInputTokens, m.CacheReadInputTokens)
	}
	return sum
}

// addModelUsage adds a model call to those of its model.
func addModelUsage(models map[string]wire.ModelUsage, p *wire.Usage) {
	m := models[p.Model]
	tokenCounts{&m.InputTokens, &m.OutputTokens, &m.CacheCreationInputTokens, &m.CacheReadInputTokens}.
		add(p.InputTokens, p.OutputTokens, p.CacheCreationInputTokens, p.CacheReadInputTokens)
	m.CostUsd = addOptional(m.CostUsd, p.CostUsd)
	m.ContextWindow = p.ContextWindow
	models[p.Model] = m
}

// tokenCounts are counts that others are added to.
type tokenCounts struct {
	in, out       *int64
	created, read **int64
}

func (t tokenCounts) add(in, out int64, created, read *int64) {
	*t.in += in
	*t.out += out
	*t.created, *t.read = addOptional(*t.created, created), addOptional(*t.read, read)
}

// addOptional adds numbers of which each may be unknown.
func addOptional[N int64 | float64](a, b *N) *N {
	switch {
	case b == nil:
		return a
	case a == nil:
		return new(*b)
	}
	return new(*a + *b)
}

// usageOf is what a model call has used and cost, and is known by; id is for APIs
// without ids in answers. What an API doesn't count has an unknown cost.
func (s *session) usageOf(a modelAnswer, id string) *wire.Usage {
	u := a.usage
	u.ContextWindow = s.limits.context
	u.MessageID = cmp.Or(u.MessageID, id)
	if counted := u.InputTokens != 0 || u.OutputTokens != 0 || u.ContextTokens != 0; counted && s.price != nil {
		u.CostUsd, u.CostSource = new(s.price.Of(u, a.hour)), s.price.Source
	}
	return &u
}

// isBudgetSpent reports whether the agent, with the runs that it has started, has spent what it
// may.
func (s *session) isBudgetSpent() bool {
	limit := s.request.Options.MaxBudgetUsd
	return limit > 0 && s.conv.bill.knownSpending() >= limit
}

// priceOf returns the price of the model, nil if it isn't known.
func priceOf(o agent.Options, model string) *agent.Price {
	p, ok := o.Prices.Of(model)
	if !ok {
		return nil
	}
	return &p
}
