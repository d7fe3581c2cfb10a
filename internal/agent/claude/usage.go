package claude

import (
	"maps"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// takeNumbers takes newer numbers; fields that are missing keep theirs.
func (u *callUsage) takeNumbers(r wire.Raw) {
	if !hasValue(r, "input_tokens") && !hasValue(r, "output_tokens") {
		return
	}
	u.Known = true
	if hasValue(r, "input_tokens") {
		u.Input = integerAt(r, "input_tokens")
	}
	if hasValue(r, "output_tokens") {
		u.Output = integerAt(r, "output_tokens")
	}
	if v := optInteger(r, "cache_creation_input_tokens"); v != nil {
		u.Created = v
	}
	if v := optInteger(r, "cache_read_input_tokens"); v != nil {
		u.Read = v
	}
	if kept := r.Get("cache_creation"); hasValue(kept, "ephemeral_1h_input_tokens") {
		u.Hour = integerAt(kept, "ephemeral_1h_input_tokens")
	}
}

// flushUsage emits the usage of the thread's current message, once.
func (n *Normalizer) flushUsage(t *thread) {
	u := t.Usage
	if u == nil || !u.Known || u.ID == "" || n.isCounted(u.ID) {
		return
	}
	n.counted[u.ID] = n.line
	p := &wire.Usage{
		MessageID: u.ID, Model: u.Model, InputTokens: u.Input, OutputTokens: u.Output,
		CacheCreationInputTokens: u.Created, CacheReadInputTokens: u.Read,
		ContextTokens: u.Input + wire.ValueOf(u.Created) + wire.ValueOf(u.Read),
		ContextWindow: n.windowOf(t, u.Model), StopReason: u.Stop,
	}
	if n.opt.PriceOf != nil {
		if price, known := n.opt.PriceOf(strings.TrimSuffix(u.Model, longContext)); known {
			p.CostUsd, p.CostSource = new(price.Of(*p, u.Hour)), price.Source
		}
	}
	n.emitForThread(t, p)
	if t.main {
		n.tally.Messages.add(u.Input, u.Output, u.Created, u.Read)
	}
}

// isCounted reports whether the usage of a message was emitted.
func (n *Normalizer) isCounted(message string) bool {
	_, done := n.counted[message]
	return done
}

// settleUsage adds to the last message of a turn the output that the result counts and
// no message has told: a stream without partial messages has each message's usage
// as of its start.
func (n *Normalizer) settleUsage(t *thread, result wire.Raw) {
	u := t.Usage
	if u == nil || !u.Known || n.isCounted(u.ID) {
		return
	}
	want := n.tally.Turns.Output + integerAt(result, "output_tokens")
	if missing := want - n.tally.Messages.Output - u.Output; missing > 0 {
		u.Output += missing
	}
}

// windowOf returns the size of a model's context window, or 0 if no result has
// told it. A model that is named …[1m] says it itself.
func (n *Normalizer) windowOf(t *thread, model string) int64 {
	if w := n.window[model]; w > 0 {
		return w
	}
	if t.main && n.model == model+longContext {
		return 1_000_000
	}
	return 0
}

// longContext marks a model that is used with a window of a million tokens.
const longContext = "[1m]"

func (t *tokens) add(input, output int64, created, read *int64) {
	t.Input += input
	t.Output += output
	t.Created, t.Read = addOptional(t.Created, created), addOptional(t.Read, read)
}

func addOptional(a, b *int64) *int64 {
	if b == nil {
		return a
	}
	return new(wire.ValueOf(a) + *b)
}

// largerOfEach returns the larger of each number.
func (t tokens) largerOfEach(o tokens) wire.TokenUsage {
	return wire.TokenUsage{
		InputTokens:              max(t.Input, o.Input),
		OutputTokens:             max(t.Output, o.Output),
		CacheCreationInputTokens: largerOf(t.Created, o.Created),
		CacheReadInputTokens:     largerOf(t.Read, o.Read),
	}
}

func largerOf(a, b *int64) *int64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// modelUsage reads a result's modelUsage.
func modelUsage(r wire.Raw) map[string]wire.ModelUsage {
	entries := entriesOf(r)
	if len(entries) == 0 {
		return nil
	}
	out := make(map[string]wire.ModelUsage, len(entries))
	for model, u := range entries {
		out[model] = wire.ModelUsage{
			InputTokens:              integerAt(u, "inputTokens"),
			OutputTokens:             integerAt(u, "outputTokens"),
			CacheCreationInputTokens: optInteger(u, "cacheCreationInputTokens"),
			CacheReadInputTokens:     optInteger(u, "cacheReadInputTokens"),
			CostUsd:                  optNumber(u, "costUSD"),
			ContextWindow:            integerAt(u, "contextWindow"),
		}
	}
	return out
}

// usageIncrements returns what total adds to before. If its numbers fell, a model was
// counted anew.
func usageIncrements(before, total map[string]wire.ModelUsage) map[string]wire.ModelUsage {
	out := make(map[string]wire.ModelUsage, len(total))
	for model, now := range total {
		was := before[model]
		if now.InputTokens < was.InputTokens || now.OutputTokens < was.OutputTokens {
			was = wire.ModelUsage{}
		}
		d := now
		d.InputTokens -= was.InputTokens
		d.OutputTokens -= was.OutputTokens
		d.CacheCreationInputTokens = subtractOptional(now.CacheCreationInputTokens, was.CacheCreationInputTokens)
		d.CacheReadInputTokens = subtractOptional(now.CacheReadInputTokens, was.CacheReadInputTokens)
		if now.CostUsd != nil && was.CostUsd != nil {
			d.CostUsd = new(max(0, *now.CostUsd-*was.CostUsd))
		}
		if d.InputTokens > 0 || d.OutputTokens > 0 {
			out[model] = d
		}
	}
	return out
}

func subtractOptional(a, b *int64) *int64 {
	if a == nil || b == nil {
		return a
	}
	return new(max(0, *a-*b))
}

func accumulateUsage(sums, more map[string]wire.ModelUsage) map[string]wire.ModelUsage {
	if len(more) == 0 {
		return sums
	}
	if sums == nil {
		return maps.Clone(more)
	}
	for model, m := range more {
		s := sums[model]
		s.InputTokens += m.InputTokens
		s.OutputTokens += m.OutputTokens
		s.CacheCreationInputTokens = addOptional(s.CacheCreationInputTokens, m.CacheCreationInputTokens)
		s.CacheReadInputTokens = addOptional(s.CacheReadInputTokens, m.CacheReadInputTokens)
		if m.CostUsd != nil {
			s.CostUsd = new(*m.CostUsd + wire.ValueOf(s.CostUsd))
		}
		s.ContextWindow = max(s.ContextWindow, m.ContextWindow)
		sums[model] = s
	}
	return sums
}
