package claude

import (
	"code.wake.dev/wake/pkg/wire"
)

// readAttachment takes what the program put beside the conversation. A message
// that was sent while the agent worked stands in a transcript only here.
func (n *Normalizer) readAttachment(m wire.Raw) bool {
	a := m.Get("attachment")
	if a.TextAt("type") != "queued_command" {
		return false
	}
	prompt := contentText(a.Get("prompt"))
	if prompt == "" {
		return false
	}
	n.bindSession(m)
	t := n.threadOfLine(m)
	n.emitForThread(t, &wire.UserMessage{Content: prompt, Source: "replay", Point: pointOf(t, m)})
	return true
}

// costState takes the totals that newer versions leave in a transcript.
func (n *Normalizer) costState(m wire.Raw) {
	x, ok := numberAt(m, "totalCostUSD")
	if !ok {
		return
	}
	n.tally.Models = modelUsage(m.Get("modelUsage"))
	n.tally.Cost, n.tally.Priced = x, true
}

// Rest returns the usage of messages that a transcript doesn't say to be over, as older versions don't, and to which nothing
// has been added for a while.
func (n *Normalizer) Rest() []*wire.Event {
	n.out = nil
	for _, t := range n.orderedThreads() {
		if t.Produced {
			n.flushUsage(t)
		}
	}
	return n.releaseEvents()
}

// endTranscript ends an execution of which only the transcript is there. It
// has no results: the last message of the main thread tells.
func (n *Normalizer) endTranscript() {
	main := n.threadOf(n.root)
	unfinished := main.Stop == "tool_use" || n.tally.Asked || n.tally.CutOff
	switch {
	case n.tally.Failed != "": // the agent said why
	case main.Owner == "" && !n.local || unfinished: // a local command alone has no answer
		n.emitFatal(wire.ErrorMissingResult, "the transcript ends before the agent's answer", Exit{Unknown: true})
	default:
		y := &n.tally
		y.Result, y.Stop = main.Answer, main.Stop
		y.DurationMs, y.NumTurns = max(0, n.at-n.first), int64(n.turn)
		n.emitComplete()
	}
}
