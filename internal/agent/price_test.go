package agent_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// TestPrice has calls of a million tokens of each kind cost what the table says, and what the
// flow says instead.
func TestPrice(t *testing.T) {
	million := func(context int64) wire.Usage {
		return wire.Usage{
			InputTokens: 1e6, OutputTokens: 1e6, CacheCreationInputTokens: new(int64(2e6)), CacheReadInputTokens: new(int64(1e6)), ContextTokens: context,
		}
	}
	own := agent.Options{Prices: map[string]agent.Price{
		"openai:small":   {Input: 1, Output: 2},
		"claude-opus-5":  {Input: 1, Output: 2, CacheRead: new(0.0), CacheWrite1h: new(10.0)},
		"claude-opus-99": {},
	}}
	for _, test := range []struct {
		options agent.Options
		model   string
		context int64
		want    float64 // with half of what is written to the cache kept for an hour; -1: not known
	}{
		{agent.Options{}, "claude-sonnet-4-5", 1, 3 + 15 + 6 + 3.75 + 0.30},
		{agent.Options{}, "anthropic:claude-sonnet-4-5-20250929", 1, 3 + 15 + 6 + 3.75 + 0.30},
		{agent.Options{}, "claude-3-5-haiku-latest", 1, 0.80 + 4 + 1.60 + 1 + 0.08},
		{agent.Options{}, "claude-haiku-5-5", 100_000, 0.10 + 0.50 + 0.20 + 0.125 + 0.01},
		{agent.Options{}, "claude-haiku-5-5", 100_001, 5 * (0.10 + 0.50 + 0.20 + 0.125 + 0.01)},
		{agent.Options{}, "openai:claude-sonnet-4-5", 1, -1},
		{agent.Options{}, "claude-opus-99", 1, -1},
		{own, "claude-opus-99", 1, 0},
		{own, "openai:small", 1, 1 + 2 + 1 + 1 + 1},
		{own, "anthropic:claude-opus-5", 1, 1 + 2 + 10 + 1},
	} {
		p, known := test.options.Prices.Of(test.model)
		got := p.Of(million(test.context), 1e6)
		if known != (test.want >= 0) || known && math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %v, known: %t; want %v", test.model, got, known, test.want)
		}
	}
	p, _ := own.Prices.Of("openai:small")
	if listed, _ := own.Prices.Of("claude-opus-5-5"); p.Source != wire.PricesOptions || listed.Source != "wake 2026-11" {
		t.Errorf("prices are from %q and %q", p.Source, listed.Source)
	}
	if usd := p.Of(wire.Usage{InputTokens: -1e6, OutputTokens: math.MinInt64, CacheReadInputTokens: new(int64(-1))}, -5); usd != 0 {
		t.Errorf("a server that tells negative tokens gets %v back", usd)
	}
	if usd := p.Of(wire.Usage{InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64}, math.MaxInt64); usd > wire.MaxCostUsd {
		t.Errorf("costs of %v", usd)
	}
	for _, bad := range []agent.Price{{Input: -1}, {Output: math.NaN()}, {CacheRead: new(math.Inf(1))}} {
		if bad.Check() == nil {
			t.Errorf("%+v is a price", bad)
		}
	}
}

// TestReadPrices reads files of prices, good ones and bad ones.
func TestReadPrices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prices.yaml")
	for name, test := range map[string]struct{ text, problem string }{
		"yaml":       {"claude-opus-5: {input: 1, output: 2, cacheRead: 0.5}\nown-model: {input: 3, output: 4}\n", ""},
		"json":       {`{"claude-opus-5": {"input": 1, "output": 2, "cacheRead": 0.5}, "own-model": {"input": 3, "output": 4}}`, ""},
		"misspelled": {"m: {inputs: 1}", "inputs"},
		"no number":  {"m: {input: cheap}", "m.input: must be a number"},
		"negative":   {"m: {input: -1}", "m: a price is"},
		"a list":     {"- m", "must be an object"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			prices, err := agent.ReadPrices(file)
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Errorf("read: %v", err)
				}
				return
			}
			given, _ := prices.Of("claude-opus-5-20260101")
			own, known := prices.Of("own-model")
			if err != nil || !known || own.Output != 4 || own.Source != wire.PricesFile || given.Input != 5 {
				t.Errorf("%v: %+v, %+v", err, own, given)
			}
			if given, _ = prices.Of("claude-opus-5"); given.Input != 1 || *given.CacheRead != 0.5 {
				t.Errorf("%+v", given)
			}
		})
	}
	if _, err := agent.ReadPrices(file + ".none"); err == nil {
		t.Error("a file that isn't there was read")
	}
}
