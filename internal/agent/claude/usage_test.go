package claude_test

import (
	"math"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// priced are a call of a million tokens of each kind, half of what is written to the cache for an hour, one of a model without a
// price, and what the result says that both cost.
const priced = `{"type":"system","subtype":"init","session_id":"s"}
{"type":"assistant","session_id":"s","message":{"id":"m1","model":"claude-sonnet-4-5-20250929","content":[{"type":"text","text":"one"}],"usage":{"input_tokens":1000000,"output_tokens":1000000,"cache_creation_input_tokens":2000000,"cache_read_input_tokens":1000000,"cache_creation":{"ephemeral_5m_input_tokens":1000000,"ephemeral_1h_input_tokens":1000000}}}}
{"type":"assistant","session_id":"s","message":{"id":"m2","model":"somebody-elses","content":[{"type":"text","text":"two"}],"usage":{"input_tokens":5,"output_tokens":5}}}
{"type":"result","session_id":"s","subtype":"success","result":"done","total_cost_usd":40,"modelUsage":{"claude-sonnet-4-5-20250929":{"inputTokens":1000000,"outputTokens":1000000,"cacheReadInputTokens":1000000,"cacheCreationInputTokens":2000000,"costUSD":30},"somebody-elses":{"inputTokens":5,"outputTokens":5,"costUSD":10}}}
`

// TestPricedUsage shows what calls cost while they are made, by prices, and what a result makes of that.
func TestPricedUsage(t *testing.T) {
	spent := func(prices agent.Prices, lines int) wire.Spending {
		n := claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Stream, SessionID: "s", Started: true, PriceOf: prices.Of})
		var accounts ledger.Ledger
		var sum wire.Spending
		var events []*wire.Event
		for i, line := range strings.SplitAfter(priced, "\n")[:lines] {
			events = append(events, n.Line(int64(i), []byte(line))...)
		}
		if lines < 4 { // it is killed
			events = append(events, n.Finish(9, claude.Exit{Signal: "KILL"})...)
		}
		for _, e := range events {
			for _, x := range accounts.Apply(e) {
				sum = ledger.Add(sum, x.Spending)
			}
		}
		return sum
	}
	const sonnet = 3 + 15 + 6 + 3.75 + 0.30
	for name, test := range map[string]struct {
		prices   agent.Prices
		lines    int
		usd      float64
		computed float64
		unpriced int64
	}{
		"killed":          {nil, 3, sonnet, sonnet, 1},
		"killed, by file": {agent.Prices{"somebody-elses": {Input: 1e6, Output: 1e6}}, 3, sonnet + 10, sonnet + 10, 0},
		"whole":           {nil, 4, 40, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := spent(test.prices, test.lines)
			if math.Abs(s.CostUsd-test.usd) > 1e-9 || math.Abs(s.ComputedUsd-test.computed) > 1e-9 || s.Unpriced != test.unpriced {
				t.Errorf("%+v, want %+v", s, test)
			}
		})
	}
}
