package queries

import (
	"context"
	"fmt"
	"strings"
	"time"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Budgets returns budgets that runs share with what is spent of them now: as `wake stats` has it, of runs that are going to be
// deleted, too. What was spent by runs that are gone isn't known any more.
func (a *Answers) Budgets(ctx context.Context, all []wire.SharedBudget, now time.Time) (wire.BudgetsResponse, error) {
	r := wire.BudgetsResponse{Budgets: all}
	if len(all) == 0 {
		return r, nil
	}
	t, err := a.View(ctx)
	if err != nil {
		return r, fmt.Errorf("recorder: budgets: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	for i := range all {
		if err := sumBudget(ctx, t, &all[i], now); err != nil {
			return r, fmt.Errorf("recorder: budgets: %w", err)
		}
	}
	return r, nil
}

func sumBudget(ctx context.Context, t *archive.Tx, b *wire.SharedBudget, now time.Time) error {
	var args database.Params
	terms := []string{"day >= 0"}
	if b.Per == wire.BudgetPerDay {
		b.Day = budget.Today(now)
		terms = append(terms, "day = "+args.Add(now.UnixMilli()/table.Day))
	}
	if b.Label != "" {
		key, value, _ := strings.Cut(b.Label, "=")
		terms = append(terms, "run IN (SELECT run FROM labels WHERE key = "+args.Add(key)+" AND value = "+args.Add(value)+")")
	}
	text := `SELECT coalesce(sum(cost_usd), 0.0), CAST(coalesce(sum(tokens_in + tokens_out), 0) AS BIGINT) FROM spend WHERE ` + strings.Join(terms, " AND ")
	var spent wire.Spent
	if err := t.Row(ctx, text, args...).Scan(&spent.Usd, &spent.Tokens); err != nil {
		return err
	}
	b.Spent = wire.Spent{Usd: min(max(0, spent.Usd), wire.MaxCostUsd), Tokens: max(0, spent.Tokens)}
	return nil
}
