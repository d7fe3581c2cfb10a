package main

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// parseOverrides makes settings of "key=value" pairs. A key is an option of all
// agents, or that of one behind the id of a node and a dot. A value that is JSON counts
// as such.
func parseOverrides(sets, nodes []string) (wire.Raw, error) {
	return objectOf(sets, "--set model=opus, or --set NODE.model=opus", func(key string) ([]string, error) { return overridePath(key, nodes) })
}

// overridePath splits the key of an override. Ids of nodes may have dots: the
// longest that fits counts.
func overridePath(key string, nodes []string) ([]string, error) {
	node := ""
	for _, id := range nodes {
		if strings.HasPrefix(key, id+".") && len(id) > len(node) {
			node = id
		}
	}
	var path []string
	rest := key
	if node != "" {
		path, rest = []string{node}, key[len(node)+1:]
	}
	path = append(path, strings.Split(rest, ".")...)
	if slices.Contains(path, "") {
		return nil, usageError("", "--set: %q has an empty part", key)
	}
	if head := path[0]; node == "" && len(path) > 1 && head == "limits" {
		return nil, usageError("--set maxBudgetUsd=5, or --set NODE.maxTurns=50", "--set %s: limits of a run are given at its start and can't be changed", key)
	} else if node == "" && len(path) > 1 {
		return nil, usageError("nodes of the run: "+strings.Join(nodes, ", "), "--set %s: the run has no node %q", key, head)
	}
	return path, nil
}

// nodesOf lists the nodes of a run, without the items of a forEach.
func nodesOf(s *wire.State) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.NodeStatus)), func(id string) bool {
		return id == wire.RunNode || strings.Contains(id, "/")
	})
}

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

func pricesFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "prices", "", "`file` of what models cost, by name: input, output, cacheWrite5m, cacheWrite1h and cacheRead, in US dollars per million tokens; before what is known of Anthropic's")
}

// readPrices reads the file of --prices; "" has none.
func readPrices(file string) (agent.Prices, error) {
	if file == "" {
		return nil, nil
	}
	prices, err := agent.ReadPrices(file)
	if err != nil {
		return nil, usageError("see docs/flows.md on prices", "--prices: %w", err)
	}
	return prices, nil
}
