package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// Price is what the tokens of a model cost, in US dollars per million. The price of cached
// tokens that isn't given is that of other input.
type Price struct {
	Input        float64  `json:"input"`
	Output       float64  `json:"output"`
	CacheWrite5m *float64 `json:"cacheWrite5m,omitempty"` // what is kept for five minutes
	CacheWrite1h *float64 `json:"cacheWrite1h,omitempty"` // for an hour
	CacheRead    *float64 `json:"cacheRead,omitempty"`

	long   int64   // prompts of more tokens cost …
	factor float64 // … so many times as much

	Source string `json:"-"` // of the prices, see [wire.Usage.CostSource]
}

// anthropicPrice are the prices of Anthropic's own API, as the pages of
// https://platform.claude.com/docs/en/about-claude/pricing and its models had them between
// September and November 2026, by the names of models without dates. What they ask for
// other ways of service (batches, fast mode, one region) is not what wake asks for.
func anthropicPrice(model string) (Price, bool) {
	switch model {
	case "claude-fable-5-2":
		return priceRow(8, 10, 16, 0.20, 40), true
	case "claude-fable-5-1":
		return priceRow(10, 12.50, 20, 0.25, 50), true
	case "claude-fable-5":
		return priceRow(10, 12.50, 20, 1, 50), true
	case "claude-opus-5-5":
		return priceRow(4, 5, 8, 0.20, 20), true
	case "claude-opus-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6", "claude-opus-4-5":
		return priceRow(5, 6.25, 10, 0.50, 25), true
	case "claude-opus-4-1", "claude-opus-4-0", "claude-opus-4", "claude-3-opus":
		return priceRow(15, 18.75, 30, 1.50, 75), true
	case "claude-sonnet-5-5": // reading the cache cost 0.20 until October 7, 2026
		return priceRow(2, 2.50, 4, 0.10, 10), true
	case "claude-sonnet-5":
		return priceRow(2, 2.50, 4, 0.20, 10), true
	case "claude-sonnet-4-6", "claude-sonnet-4-5", "claude-sonnet-4-0", "claude-sonnet-4", "claude-3-7-sonnet":
		return priceRow(3, 3.75, 6, 0.30, 15), true
	case "claude-haiku-5-5":
		p := priceRow(0.10, 0.125, 0.20, 0.01, 0.50)
		p.long, p.factor = 100_000, 5
		return p, true
	case "claude-haiku-4-5":
		return priceRow(1, 1.25, 2, 0.10, 5), true
	case "claude-3-5-haiku":
		return priceRow(0.80, 1, 1.60, 0.08, 4), true
	case "claude-3-haiku":
		return priceRow(0.25, 0.30, 0.50, 0.03, 1.25), true
	}
	return Price{}, false
}

// anthropicSource names the table of anthropicPrice, and its date.
const anthropicSource = "wake 2026-11"

// priceRow is a row of the table, in its order.
func priceRow(input, write5m, write1h, read, output float64) Price {
	return Price{Input: input, CacheWrite5m: &write5m, CacheWrite1h: &write1h, CacheRead: &read, Output: output}
}

// snapshot is what stands behind a model's name when it names one state of it.
var snapshot = regexp.MustCompile(`-(20[0-9]{6}|latest)$`)

// Prices are prices of models by their names, which go before the known ones of Anthropic's.
type Prices map[string]Price

// maxPrices bounds the size of a file of prices in bytes.
const maxPrices = 1 << 20

// ReadPrices reads a file of prices, YAML or JSON, as the option prices of a node has them.
func ReadPrices(file string) (Prices, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var prices Prices
	ps := &document.Problems{File: file}
	ps.Decode(document.Read(ps, b, maxPrices), &prices)
	if err := ps.Err(); err != nil {
		return nil, err
	}
	for model, p := range prices {
		if err := p.Check(); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, model, err)
		}
		p.Source = wire.PricesFile
		prices[model] = p
	}
	return prices, nil
}

// Of returns the price of a model: the given one, else what Anthropic's models are known to cost. It reports false
// if neither is known.
func (p Prices) Of(model string) (Price, bool) {
	name := strings.TrimPrefix(model, "anthropic:")
	for _, known := range []string{model, name} {
		if x, ok := p[known]; ok {
			x.Source = cmp.Or(x.Source, wire.PricesOptions)
			return x, true
		}
	}
	x, ok := anthropicPrice(snapshot.ReplaceAllString(name, ""))
	x.Source = anthropicSource
	return x, ok
}

// Check fails for what is no price.
func (p Price) Check() error {
	for _, usd := range []*float64{&p.Input, &p.Output, p.CacheWrite5m, p.CacheWrite1h, p.CacheRead} {
		if usd != nil && !(*usd >= 0 && *usd <= wire.MaxCostUsd) {
			return errors.New("a price is a number of US dollars per million tokens")
		}
	}
	return nil
}

// Of returns what a model call costs, in US dollars. Of the tokens that were written into
// the cache, hour are kept for an hour.
func (p Price) Of(u wire.Usage, hour int64) float64 {
	created := max(0, wire.ValueOf(u.CacheCreationInputTokens))
	hour = min(max(0, hour), created)
	usd := p.costOf(u.InputTokens, &p.Input) + p.costOf(u.OutputTokens, &p.Output) + p.costOf(wire.ValueOf(u.CacheReadInputTokens), p.CacheRead) +
		p.costOf(hour, p.CacheWrite1h) + p.costOf(created-hour, p.CacheWrite5m)
	if p.long > 0 && u.ContextTokens > p.long {
		usd *= p.factor
	}
	return min(usd, wire.MaxCostUsd)
}

func (p Price) costOf(tokens int64, usd *float64) float64 {
	if usd == nil {
		usd = &p.Input
	}
	return float64(max(0, tokens)) * *usd / 1e6
}
