package alerter

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// checkShared tells how much is spent of budgets that runs share. It has no memory: the recorder knows the sums, and
// what was told before is found under the same key.
func (a *Alerter) checkShared(ctx context.Context, told uncertainAlerts, now int64) error {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	store, err := budget.Open(ctx, a.log.JetStream(), a.log.Names(), a.log.Keys())
	if err != nil {
		return err
	}
	all, err := store.All(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	answer, err := api.Call[wire.BudgetsResponse](ctx, a.log.Conn(), a.log.Names(), wire.VerbBudgets, wire.BudgetsRequest{})
	if err != nil {
		return err
	}
	_, last, err := a.log.Bounds(ctx)
	if err != nil {
		return err
	}
	return a.publishAll(ctx, told, input{At: now, Pos: last, Run: systemRun()}, sharedFindings(a.limits.Load().Budget.Shares, answer.Budgets, now))
}

// sharedFindings finds the highest share of each budget that has been reached. A budget with changed amounts is another one.
func sharedFindings(shares []float64, all []wire.SharedBudget, at int64) (found []finding) {
	now := time.UnixMilli(at)
	for _, b := range all {
		spent, ofTokens := budget.Share(b, now)
		share, ok := highestReached(shares, spent+rounding)
		if !ok {
			continue
		}
		key := fnv.New32a()
		key.Write(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%v\x00%d", b.Name, b.Label, b.Per, b.Usd, b.Tokens))
		f := finding{
			Kind: kindBudget, Severity: wire.SeverityWarning, NodeID: wire.RunNode, Level: fmt.Sprintf("shared%08x-share%s", key.Sum32(), formatNumber(share)),
			Text: fmt.Sprintf(textShared, timeline.Line(budget.Text(b), maxMessage)), Event: "budget_alert",
		}
		if b.Per == wire.BudgetPerDay {
			f.Armed = uint64(max(at/dayMs, 0))
		}
		if share >= 1 {
			f.Severity = wire.SeverityError
		}
		if ofTokens {
			f.Data = map[string]any{"tokens": b.Spent.Tokens, "budgetTokens": b.Tokens, "costUsd": b.Spent.Usd, "currentCost": b.Spent.Usd}
		} else {
			f.Data = budgetData(b.Spent.Usd, b.Usd)
		}
		f.Data["name"], f.Data["label"], f.Data["per"] = nameLine(b.Name), nameLine(b.Label), b.Per
		found = append(found, f)
	}
	return found
}
