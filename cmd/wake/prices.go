package main

import (
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/agent"
)

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
