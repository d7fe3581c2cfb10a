package claude

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// synthetic is the model of messages that the program wrote itself.
const synthetic = "<synthetic>"

// readAssistant takes a message of the model: in streams one line per block, all
// under one message id.
func (n *Normalizer) readAssistant(m wire.Raw) bool {
	message := m.Get("message")
	blocks, ok := blocksOf(message.Get("content"))
	if !ok {
		return false
	}
	n.bindSession(m)
	t := n.threadOfLine(m)
	if n.isRewritten(t, m, blocks) {
		n.emitRaw(m, rewritten)
		return true
	}
	model := message.TextAt("model")
	if kind := m.TextAt("error"); kind != "" || isTrue(m, "isApiErrorMessage") {
		n.assistantError(t, m, kind)
		return true
	}
	if t.main {
		n.tally.Active, n.tally.Asked, n.tally.Failed = true, false, ""
	}
	id := cmp.Or(message.TextAt("id"), m.TextAt("uuid"))
	if model != synthetic {
		n.enterMessage(t, id, model, message)
	}
	if t.Owner != id {
		t.Owner, t.Answer = id, ""
	}
	for _, b := range blocks {
		n.readBlock(t, b)
	}
	if t.Stop = message.TextAt("stop_reason"); t.Stop != "" && n.opt.Format == Transcript && model != synthetic {
		n.flushUsage(t) // nothing may follow for days
	}
	return true
}

// enterMessage makes a message that came without a message_start the thread's current
// one, and takes the usage of its line.
func (n *Normalizer) enterMessage(t *thread, id, model string, message wire.Raw) {
	if t.Usage == nil || t.Message != id {
		early := t.takeEarly()
		n.newMessage(t, id, model)
		t.blocks = early
	}
	n.turnStart(t)
	t.Produced = true
	t.Usage.takeNumbers(message.Get("usage"))
	if stop := message.TextAt("stop_reason"); stop != "" {
		t.Usage.Stop = stop
	}
}

// takeEarly takes the blocks that were streamed without a message_start and have no whole block yet: they
// are of the message in the next line.
func (t *thread) takeEarly() []*block {
	if t.Streamed {
		return nil
	}
	var early, old []*block
	for _, b := range t.blocks {
		if b.matched {
			old = append(old, b)
		} else {
			early = append(early, b)
		}
	}
	t.blocks = old
	return early
}

func (n *Normalizer) readBlock(t *thread, b wire.Raw) {
	kind := b.TextAt("type")
	switch {
	case kind == "text":
		t.Answer += b.TextAt("text")
		n.readProse(t, "text", b.TextAt("text"), "")
	case kind == "thinking":
		n.readProse(t, "thinking", b.TextAt("thinking"), b.TextAt("signature"))
	case isTool(kind):
		n.toolBlock(t, b)
	case isToolResult(kind) && b.TextAt("tool_use_id") != "":
		n.toolResult(t, b, resultLine{})
	default:
		n.emitRawBlock(t, "assistant/"+kind, b)
	}
}

// readProse is a whole block of text or thinking: an event if its pieces weren't.
func (n *Normalizer) readProse(t *thread, kind, content, signature string) {
	b := t.unmatchedBlock(kind)
	if b == nil {
		b = &block{kind: kind}
	}
	n.numberBlock(b)
	done := b.whole
	b.whole, b.matched = true, true
	gone := t.givenUp[kind]
	delete(t.givenUp, kind)
	switch {
	case gone != nil:
		n.wholeBlock(t, kind, content, signature, b.number, gone.number)
	case b.pieces && string(b.content) != content:
		n.blocks++
		n.wholeBlock(t, kind, content, signature, n.blocks, b.number)
	case done && b.pieces:
	case n.opt.Blocks == agent.BlocksAlways:
		n.wholeBlock(t, kind, content, signature, b.number, 0)
	case b.pieces:
	case n.opt.Blocks == agent.BlocksNever:
		n.emitPiece(t, b, content)
	default:
		n.wholeBlock(t, kind, content, signature, b.number, 0)
	}
}

// unmatchedBlock returns the streamed block that a whole block of this kind completes:
// they come in the same order.
func (t *thread) unmatchedBlock(kind string) *block {
	for _, b := range t.blocks {
		if b.kind == kind && !b.matched {
			return b
		}
	}
	return nil
}

func isToolResult(kind string) bool { return strings.HasSuffix(kind, "tool_result") }

func (n *Normalizer) toolBlock(t *thread, b wire.Raw) {
	id, name, input := b.TextAt("id"), b.TextAt("name"), b.Get("input")
	if s := t.streamedCall(id); s != nil {
		s.whole, s.matched = true, true
	}
	if !n.toolUse(t, t.Message, id, name, input) {
		n.emitRawBlock(t, "assistant/"+b.TextAt("type"), b)
	}
}

func (t *thread) streamedCall(id string) *block {
	for _, b := range t.blocks {
		if id != "" && isTool(b.kind) && b.call.TextAt("id") == id {
			return b
		}
	}
	return nil
}

// assistantError is a message with which the program tells that the API failed.
func (n *Normalizer) assistantError(t *thread, m wire.Raw, kind string) {
	message := contentText(m.Get("message", "content"))
	kind = cmp.Or(kind, agent.APIErrorType(int(integerAt(m, "apiErrorStatus")), ""))
	n.emitForThread(t, &wire.AgentError{
		ErrorType: kind, Message: message, Details: m, Severity: wire.SeverityError,
		Phase: "model", Status: int(integerAt(m, "apiErrorStatus")), ResetsAt: n.limitOver(kind),
	})
	if t.main {
		n.tally.Active = true
		n.tally.Failed = kind
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
