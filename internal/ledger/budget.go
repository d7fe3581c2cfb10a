package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// Budget is what a run may spend. Both bounds count, the one that is reached first.
// How long it may take is a limit beside it; see [TimeoutOf].
type Budget struct {
	Usd    float64 // of what is known of its costs; 0: no bound
	Tokens int64   // that models were given or made, those of the cache included; 0: no bound
	Then   string  // [wire.BudgetPause] or [wire.BudgetAbort]
}

// The fields of a run's limits.
const (
	limitUsd    = "maxCostUsd"
	limitTokens = "maxTokens"
	limitThen   = "then"
	limitTime   = "maxDurationMs"
)

// MaxTimeoutMs is the longest that a run may be given, four weeks.
const MaxTimeoutMs = 28 * 24 * 3600 * 1000

// TimeoutOf is how long limits have a run take, in milliseconds; 0: no bound.
func TimeoutOf(limits wire.Raw) int64 {
	ms, ok := amountOf(limits.Get(limitTime).Any())
	if !ok || ms > MaxTimeoutMs {
		return 0
	}
	return int64(ms)
}

// WithTimeout are limits with a bound in milliseconds; 0 adds none.
func WithTimeout(limits wire.Raw, ms int64) wire.Raw {
	if ms == 0 {
		return limits
	}
	given, err := wire.Marshal(map[string]any{limitTime: ms})
	if err != nil {
		panic(err) // unreachable: a number
	}
	return MergeLimits(limits, given)
}

// Inherited are the limits of a run that another one starts: those of what it may spend. It ends with the other anyway.
func Inherited(limits wire.Raw) wire.Raw {
	fields, _ := limits.Any().(map[string]any)
	if _, ok := fields[limitTime]; !ok {
		return limits
	}
	delete(fields, limitTime)
	if len(fields) == 0 {
		return nil
	}
	raw, err := wire.Marshal(fields)
	if err != nil {
		return limits // what was decoded can be encoded
	}
	return raw
}

// BoundsTime reports whether limits say how long a run may take.
func BoundsTime(limits wire.Raw) bool { return limits.Get(limitTime) != nil }

// BoundsSpending reports whether limits say something about what is spent.
func BoundsSpending(limits wire.Raw) bool {
	fields, _ := limits.Any().(map[string]any)
	return fields[limitUsd] != nil || fields[limitTokens] != nil || fields[limitThen] != nil
}

// BudgetOf reads the limits of a run; nothing of what [CheckLimits] refuses is a bound.
func BudgetOf(limits wire.Raw) Budget {
	fields, _ := limits.Any().(map[string]any)
	b := Budget{Then: wire.BudgetPause}
	if usd, ok := amountOf(fields[limitUsd]); ok {
		b.Usd = usd
	}
	if tokens, ok := amountOf(fields[limitTokens]); ok && tokens <= math.MaxInt64/2 {
		b.Tokens = int64(tokens)
	}
	if fields[limitThen] == wire.BudgetAbort {
		b.Then = wire.BudgetAbort
	}
	return b
}

// CheckLimits fails unless limits are an object of amounts, of which 0 is no bound, and of what
// follows. Other fields are refused: a user would believe in them.
func CheckLimits(limits wire.Raw) error {
	if len(limits) == 0 || string(limits) == string(wire.Null) {
		return nil
	}
	fields, ok := limits.Any().(map[string]any)
	if !ok {
		return fmt.Errorf("limits are an object of %s, %s, %s and %s", limitUsd, limitTokens, limitThen, limitTime)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		amount, isAmount := amountOf(fields[name])
		switch {
		case name == limitUsd && (!isAmount || amount > wire.MaxCostUsd):
			return errors.New("limits: " + limitUsd + " is no number of US dollars from 0 on")
		case name == limitTokens && (!isAmount || amount != math.Trunc(amount) || amount > math.MaxInt64/2):
			return errors.New("limits: " + limitTokens + " is no whole number from 0 on")
		case name == limitThen && fields[name] != wire.BudgetPause && fields[name] != wire.BudgetAbort:
			return fmt.Errorf("limits: %s is %s or %s", limitThen, wire.BudgetPause, wire.BudgetAbort)
		case name == limitTime && (!isAmount || amount != math.Trunc(amount) || amount > MaxTimeoutMs):
			return fmt.Errorf("limits: %s is no whole number of milliseconds from 0 to %d", limitTime, int64(MaxTimeoutMs))
		case name != limitUsd && name != limitTokens && name != limitThen && name != limitTime:
			return fmt.Errorf("limits: %q is unknown; there are %s, %s, %s and %s", name, limitUsd, limitTokens, limitThen, limitTime)
		}
	}
	return nil
}

// amountOf is a number from 0 on.
func amountOf(v any) (amount float64, ok bool) {
	switch n := v.(type) {
	case int64:
		amount = float64(n)
	case uint64:
		amount = float64(n)
	case float64:
		amount = n
	default:
		return 0, false
	}
	return amount, amount >= 0 && !math.IsInf(amount, 0)
}

// Limits are the budget as limits of a run, nil if it bounds nothing and says nothing.
func (b Budget) Limits() wire.Raw {
	fields := map[string]any{}
	if b.Usd > 0 {
		fields[limitUsd] = b.Usd
	}
	if b.Tokens > 0 {
		fields[limitTokens] = b.Tokens
	}
	if b.Then != "" {
		fields[limitThen] = b.Then
	}
	if len(fields) == 0 {
		return nil
	}
	raw, err := wire.Marshal(fields)
	if err != nil {
		panic(err) // unreachable: numbers and a text
	}
	return raw
}

// MergeLimits are limits in which those that are given take the place of those there are.
func MergeLimits(old, given wire.Raw) wire.Raw {
	fields, _ := given.Any().(map[string]any)
	if len(fields) == 0 {
		return old
	}
	merged, _ := old.Any().(map[string]any)
	if merged == nil {
		merged = map[string]any{}
	}
	maps.Copy(merged, fields)
	raw, err := wire.Marshal(merged)
	if err != nil {
		return old // what was decoded can be encoded
	}
	return raw
}

// Spent is what a run has spent, as its budget counts it.
func Spent(u wire.UsageTotals) wire.Spent {
	return wire.Spent{
		Usd:    min(u.CostUsd+u.ChildCostUsd, wire.MaxCostUsd),
		Tokens: TotalIn(u) + u.OutputTokens + u.ChildTokens,
	}
}

// Share is how much of the budget is spent, and of which of its bounds that is: of the one that
// has come further. From is what had been spent when the operator granted it again.
func (b Budget) Share(spent, from wire.Spent) (share float64, ofTokens bool) {
	if b.Usd > 0 {
		share = (spent.Usd - from.Usd) / b.Usd
	}
	if b.Tokens > 0 {
		if tokens := float64(spent.Tokens-from.Tokens) / float64(b.Tokens); tokens > share || b.Usd <= 0 {
			return tokens, true
		}
	}
	return share, false
}

// IsReached reports whether all of the budget is spent. Sums of costs may lack what rounding took.
func (b Budget) IsReached(spent, from wire.Spent) bool {
	share, _ := b.Share(spent, from)
	return share >= 1-rounding
}

// Text is what is spent of the budget, in words.
func (b Budget) Text(spent, from wire.Spent) string {
	if _, ofTokens := b.Share(spent, from); ofTokens {
		return fmt.Sprintf("%d of %d tokens", spent.Tokens-from.Tokens, b.Tokens)
	}
	return fmt.Sprintf("%s of %s", DollarsText(spent.Usd-from.Usd), DollarsText(b.Usd))
}

// DollarsText is "$0.50"; amounts below a cent have four digits.
func DollarsText(usd float64) string {
	if usd > 0 && usd < 0.01 {
		return fmt.Sprintf("$%.4f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}
