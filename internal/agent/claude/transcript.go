package claude

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// orderedThreads returns the threads, the main one first.
func (n *Normalizer) orderedThreads() []*thread {
	var out []*thread
	for _, t := range n.threads {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *thread) int {
		if a.main != b.main {
			if a.main {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.agent, b.agent))
	})
	return out
}

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
	n.tally.models = modelUsage(m.Get("modelUsage"))
	n.tally.cost, n.tally.priced = x, true
}

// Rest returns the usage of messages that a transcript doesn't say to be over, as older versions don't, and to which nothing
// has been added for a while.
func (n *Normalizer) Rest() []*wire.Event {
	n.out = nil
	for _, t := range n.orderedThreads() {
		if t.produced {
			n.flushUsage(t)
		}
	}
	return n.releaseEvents()
}

// endTranscript ends an execution of which only the transcript is there. It
// has no results: the last message of the main thread tells.
func (n *Normalizer) endTranscript() {
	main := n.threadOf(n.root)
	unfinished := main.stop == "tool_use" || n.tally.asked || n.tally.cutOff
	switch {
	case n.tally.failed != "": // the agent said why
	case main.owner == "" && !n.local || unfinished: // a local command alone has no answer
		n.emitFatal(wire.ErrorMissingResult, "the transcript ends before the agent's answer", Exit{Unknown: true})
	default:
		y := &n.tally
		y.result, y.stop = main.answer, main.stop
		y.durationMs, y.numTurns = max(0, n.at-n.first), int64(n.turn)
		n.emitComplete()
	}
}

// rewritten is why a line that [Normalizer.isRewritten] is passed on.
const rewritten = "the program wrote it again, under another uuid"

// isRewritten reports whether a transcript has told all blocks of a line of the main thread before, and notes them. When a
// session is resumed, some versions write messages anew, block by block: as a branch beside the first one, with their
// times and ids, under other uuids. A line that follows the one with the same blocks says them again.
func (n *Normalizer) isRewritten(t *thread, m wire.Raw, blocks []wire.Raw) bool {
	at, uuid := m.TextAt("timestamp"), m.TextAt("uuid")
	if n.opt.Format != Transcript || !t.main || at == "" || uuid == "" || len(blocks) == 0 {
		return false
	}
	all := true
	for _, b := range blocks {
		sum := sha256.New()
		for _, part := range [][]byte{[]byte(m.TextAt("type")), []byte(at), []byte(m.TextAt("message", "id")), b} {
			sum.Write(fmt.Appendf(nil, "%d ", len(part)))
			sum.Write(part)
		}
		key := [sha256.Size]byte(sum.Sum(nil))
		before, told := n.written[key]
		n.written[key] = uuid
		all = all && told && before != uuid && before != m.TextAt("parentUuid")
	}
	return all
}

// pointOf returns the id under which a line of the main thread stands in the
// agent's session, and can be forked at. Sub-agents have conversations of their own.
func pointOf(t *thread, m wire.Raw) string {
	if !t.main {
		return ""
	}
	return m.TextAt("uuid")
}
