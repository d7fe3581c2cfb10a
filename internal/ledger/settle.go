package ledger

import (
	"cmp"
	"maps"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// result is what a result tells of the calls since the last one.
type result struct {
	models map[string]wire.ModelUsage
	usage  *wire.TokenUsage // of the agent's own calls
	cost   *float64
	prices string // see [wire.Usage.CostSource]
}

// settleResult replaces what calls have told by what a result tells of them. own says that it is
// the result of the node's own agent. One that tells nothing settles nothing.
func (l *Ledger) settleResult(r result, own bool) []Entry {
	r.cost = costOf(r.cost)
	if !own {
		if r.cost == nil || *r.cost == 0 {
			return nil
		}
		s := wire.Spending{CostUsd: *r.cost}
		if r.prices != "" {
			s.ComputedUsd = s.CostUsd
		}
		return []Entry{r.entry(s)}
	}
	told := l.Unsettled
	if free := r.cost == nil || *r.cost == 0; len(r.models) == 0 && free && (len(told) > 0 || !r.hasUsage()) {
		return nil
	}
	if r.cost != nil && *r.cost == 0 && len(r.models) == 0 && l.Settled {
		return nil // its usage is of calls that the result before it has told of
	}
	l.Unsettled, l.Settled = nil, true
	tokens := r.tokensByModel(told)
	var entries []Entry
	for _, want := range r.withCosts(tokens, told) {
		i := slices.IndexFunc(told, func(s wire.Spending) bool { return s.Model == want.Model })
		had := wire.Spending{Model: want.Model}
		if i >= 0 {
			had = told[i]
		}
		if d := spendingDifference(want, had); d != (wire.Spending{Model: want.Model}) {
			entries = append(entries, r.entry(d))
		}
	}
	return entries
}

func (r result) entry(s wire.Spending) Entry {
	return Entry{Spending: s, Source: SourceResult}
}

// tellsTokens reports whether the result says which tokens models used, and not what they cost alone.
func (r result) tellsTokens() bool {
	for _, m := range r.models {
		if m.InputTokens > 0 || m.OutputTokens > 0 || wire.ValueOf(m.CacheCreationInputTokens) > 0 || wire.ValueOf(m.CacheReadInputTokens) > 0 {
			return true
		}
	}
	return false
}

func (r result) hasUsage() bool {
	return r.usage != nil && (r.usage.InputTokens > 0 || r.usage.OutputTokens > 0)
}

// tokensByModel is what the result says each model has used, and 0 of the models that only the
// calls name. A result that doesn't tell it by model adds nothing to calls that did, and else what
// its agent's own calls have used.
func (r result) tokensByModel(told []wire.Spending) []wire.Spending {
	if len(r.models) == 0 {
		u := r.usage
		if len(told) > 0 || !r.hasUsage() {
			return slices.Clone(told)
		}
		return []wire.Spending{{
			InputTokens: AddTokens(0, u.InputTokens), OutputTokens: AddTokens(0, u.OutputTokens),
			CacheCreationInputTokens: AddTokens(0, wire.ValueOf(u.CacheCreationInputTokens)), CacheReadInputTokens: AddTokens(0, wire.ValueOf(u.CacheReadInputTokens)),
		}}
	}
	sums := map[string]wire.Spending{}
	for _, s := range told {
		s.Calls, s.CostUsd, s.ComputedUsd, s.Unpriced = 0, 0, 0, 0
		if r.tellsTokens() {
			s = wire.Spending{Model: s.Model}
		}
		sums[s.Model] = s
	}
	for name, m := range r.models {
		model := ModelName(name)
		s := sums[model]
		s.Model = model
		s.InputTokens = AddTokens(s.InputTokens, max(0, m.InputTokens))
		s.OutputTokens = AddTokens(s.OutputTokens, max(0, m.OutputTokens))
		s.CacheCreationInputTokens = AddTokens(s.CacheCreationInputTokens, max(0, wire.ValueOf(m.CacheCreationInputTokens)))
		s.CacheReadInputTokens = AddTokens(s.CacheReadInputTokens, max(0, wire.ValueOf(m.CacheReadInputTokens)))
		if usd := costOf(m.CostUsd); usd != nil {
			s.CostUsd += *usd
		}
		sums[model] = s
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b wire.Spending) int { return cmp.Compare(a.Model, b.Model) })
}

// withCosts has the models share the cost of the result, as it says they did, else as their calls
// did. Without a cost, what calls cost stands, and what goes beyond them has an unknown
// cost.
func (r result) withCosts(models, told []wire.Spending) []wire.Spending {
	shares, all := make([]float64, len(models)), 0.0
	for i, m := range models {
		shares[i] = m.CostUsd
		all += m.CostUsd
	}
	if len(models) == 0 {
		models, shares = []wire.Spending{{}}, []float64{1}
	}
	var rest float64
	switch {
	case r.cost == nil && all == 0:
		return keepCosts(models, told)
	case r.cost == nil:
		rest = all
	default:
		rest = *r.cost
	}
	if all == 0 { // of the one that was used most
		most := slices.MaxFunc(models, func(a, b wire.Spending) int { return cmp.Compare(TokensIn(a), TokensIn(b)) })
		for i, m := range models {
			if m.Model == most.Model {
				shares[i], all = 1, 1
			}
		}
	}
	total := rest
	last := -1
	for i := range models {
		if shares[i] > 0 {
			last = i
		}
	}
	for i := range models {
		usd := 0.0
		switch {
		case i == last:
			usd = rest // and not what rounding leaves of it
		case shares[i] > 0:
			usd = total * (shares[i] / all)
		}
		rest -= usd
		models[i].CostUsd, models[i].ComputedUsd, models[i].Unpriced = usd, 0, 0
		if r.prices != "" {
			models[i].ComputedUsd = usd
			models[i].Unpriced = unpricedOf(told, models[i].Model)
		}
	}
	return models
}

func unpricedOf(told []wire.Spending, model string) int64 {
	for _, s := range told {
		if s.Model == model {
			return s.Unpriced
		}
	}
	return 0
}

// keepCosts gives models what their calls cost. One that has used more than its calls tell has
// made another, of unknown cost.
func keepCosts(models, told []wire.Spending) []wire.Spending {
	for i, m := range models {
		at := slices.IndexFunc(told, func(s wire.Spending) bool { return s.Model == m.Model })
		had := wire.Spending{}
		if at >= 0 {
			had = told[at]
		}
		models[i].CostUsd, models[i].ComputedUsd, models[i].Unpriced = had.CostUsd, had.ComputedUsd, had.Unpriced
		if TokensIn(m) > TokensIn(had) || m.OutputTokens > had.OutputTokens {
			models[i].Unpriced = max(1, had.Unpriced)
		}
	}
	return models
}

// spendingDifference is what want is beyond had, the calls aside: a result doesn't count them.
func spendingDifference(want, had wire.Spending) wire.Spending {
	return wire.Spending{
		Model:                    want.Model,
		InputTokens:              want.InputTokens - had.InputTokens,
		OutputTokens:             want.OutputTokens - had.OutputTokens,
		CacheCreationInputTokens: want.CacheCreationInputTokens - had.CacheCreationInputTokens,
		CacheReadInputTokens:     want.CacheReadInputTokens - had.CacheReadInputTokens,
		CostUsd:                  want.CostUsd - had.CostUsd,
		ComputedUsd:              want.ComputedUsd - had.ComputedUsd,
		Unpriced:                 want.Unpriced - had.Unpriced,
	}
}

// conclude takes the end of the execution: what it cost in total counts as far as it is more than
// what was counted. Agents that tell no usage at the end of turns tell it here.
func (l *Ledger) conclude(p *wire.AgentComplete) []Entry {
	r := result{p.ModelUsage, &p.Usage, nil, p.CostSource}
	before := l.ExecCost
	for _, s := range l.Unsettled {
		before -= s.CostUsd
	}
	if total := costOf(p.TotalCostUsd); total != nil && *total > before+rounding {
		r.cost = new(*total - max(0, before))
	}
	if l.Settled {
		if r.models, r.usage = nil, nil; r.cost == nil {
			return nil
		}
	}
	return l.settleResult(r, true)
}

// rounding is what sums of costs differ by.
const rounding = 1e-9
