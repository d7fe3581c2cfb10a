// Package budget says what runs may spend together, by label and by day, and keeps that in the bucket of states. What they have
// spent is the recorder's to say: its ledger has every model call once, whichever runner the run was with.
package budget

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// maxTokens keeps sums of tokens from overflowing.
const maxTokens = math.MaxInt64 / 2

// Check fails unless the budget can be kept.
func Check(b wire.SharedBudget) error {
	if err := subjects.CheckID(b.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	key, value, isPair := strings.Cut(b.Label, "=")
	switch {
	case b.Label != "" && (!isPair || key == "" || value == ""):
		return fmt.Errorf("label: %q is no key=value", b.Label)
	case b.Per != "" && b.Per != wire.BudgetPerDay:
		return fmt.Errorf("per: %q is unknown; %s is known", b.Per, wire.BudgetPerDay)
	case b.Then != wire.BudgetPause && b.Then != wire.BudgetAbort:
		return fmt.Errorf("then: %q is unknown; %s and %s are known", b.Then, wire.BudgetPause, wire.BudgetAbort)
	case !(b.Usd >= 0 && b.Usd <= wire.MaxCostUsd):
		return errors.New("usd is no number of US dollars from 0 on")
	case b.Tokens < 0 || b.Tokens > maxTokens:
		return errors.New("tokens is no whole number from 0 on")
	case b.Usd == 0 && b.Tokens == 0:
		return errors.New("it bounds nothing: usd or tokens is needed")
	}
	return nil
}

// Covers reports whether what a run with these labels spends counts.
func Covers(b wire.SharedBudget, labels map[string]string) bool {
	key, value, _ := strings.Cut(b.Label, "=")
	has, is := labels[key]
	return b.Label == "" || is && has == value
}

// Today is the day of a time, as [wire.SharedBudget] names it.
func Today(now time.Time) string { return now.UTC().Format(time.DateOnly) }

// Share is how much of the budget is spent, and whether that is of its tokens. Of another day than
// today nothing is.
func Share(b wire.SharedBudget, now time.Time) (share float64, ofTokens bool) {
	if b.Per == wire.BudgetPerDay && b.Day != Today(now) {
		return 0, false
	}
	return budgetBounds(b).Share(b.Spent, wire.Spent{})
}

// IsReached reports whether all of it is spent.
func IsReached(b wire.SharedBudget, now time.Time) bool {
	if b.Per == wire.BudgetPerDay && b.Day != Today(now) {
		return false
	}
	return budgetBounds(b).IsReached(b.Spent, wire.Spent{})
}

// Text is what is spent of it, in words: "team (team=core, per day): $1.00 of $1.00".
func Text(b wire.SharedBudget) string {
	of := "all runs"
	if b.Label != "" {
		of = b.Label
	}
	if b.Per != "" {
		of += ", per " + b.Per
	}
	return fmt.Sprintf("%s (%s): %s", b.Name, of, budgetBounds(b).Text(b.Spent, wire.Spent{}))
}

func budgetBounds(b wire.SharedBudget) ledger.Budget {
	return ledger.Budget{Usd: b.Usd, Tokens: b.Tokens, Then: b.Then}
}
