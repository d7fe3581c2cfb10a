package main

import (
	"math"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// budgetOptions are the flags of what a run may spend, and how long it may take.
type budgetOptions struct {
	usd     float64
	tokens  int64
	then    string
	timeout time.Duration
}

func (o *budgetOptions) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Float64Var(&o.usd, "budget-usd", 0, "what the run may cost, in US `dollars`; 0: no bound, also if the flow has one")
	flags.Int64Var(&o.tokens, "budget-tokens", 0, "how many `tokens` it may use, those of the cache included; 0: no bound")
	flags.StringVar(&o.then, "budget-then", "", "what follows when that is spent: `pause` or abort (default: as the flow says, else pause)")
	flags.DurationVar(&o.timeout, "timeout", 0, "how `long` the run may take, from now on and without its pauses, until it fails; 0: no bound, also if the flow has one")
	completeFlag(cmd, "budget-then", cobra.FixedCompletions([]string{wire.BudgetPause, wire.BudgetAbort}, cobra.ShellCompDirectiveNoFileComp))
}

// limits are the limits of the flags that were given, nil if none was.
func (o *budgetOptions) limits(flags *pflag.FlagSet) (wire.Raw, error) {
	given := map[string]any{}
	if flags.Changed("budget-usd") {
		if !(o.usd >= 0 && o.usd <= wire.MaxCostUsd) { // not a number, too
			return nil, usageError("--budget-usd 2.50", "--budget-usd: %v is no number of US dollars from 0 on", o.usd)
		}
		given["maxCostUsd"] = o.usd
	}
	if flags.Changed("budget-tokens") {
		if o.tokens < 0 || o.tokens > math.MaxInt64/2 {
			return nil, usageError("--budget-tokens 500000", "--budget-tokens: %d is no number of tokens from 0 on", o.tokens)
		}
		given["maxTokens"] = o.tokens
	}
	if flags.Changed("budget-then") {
		if o.then != wire.BudgetPause && o.then != wire.BudgetAbort {
			return nil, usageError("pause and abort are known", "--budget-then: %q is unknown", o.then)
		}
		given["then"] = o.then
	}
	if flags.Changed("timeout") {
		if o.timeout < 0 || o.timeout > ledger.MaxTimeoutMs*time.Millisecond || o.timeout%time.Millisecond != 0 {
			return nil, usageError("--timeout 30m", "--timeout: %v is no time from 1ms to %v", o.timeout, ledger.MaxTimeoutMs*time.Millisecond)
		}
		given["maxDurationMs"] = o.timeout.Milliseconds()
	}
	if len(given) == 0 {
		return nil, nil
	}
	return wire.Marshal(given)
}
