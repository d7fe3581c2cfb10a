package claude

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
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
		n.tally.active, n.tally.asked, n.tally.failed = true, false, ""
	}
	id := message.TextAt("id")
	if id == "" {
		id = m.TextAt("uuid")
	}
	if model != synthetic {
		n.enterMessage(t, id, model, message)
	}
	if t.owner != id {
		t.owner, t.answer = id, ""
	}
	for _, b := range blocks {
		n.readBlock(t, b)
	}
	if t.stop = message.TextAt("stop_reason"); t.stop != "" && n.opt.Format == Transcript && model != synthetic {
		n.flushUsage(t) // nothing may follow for days
	}
	return true
}

// enterMessage makes a message that came without a message_start the thread's current
// one, and takes the usage of its line.
func (n *Normalizer) enterMessage(t *thread, id, model string, message wire.Raw) {
	if t.usage == nil || t.message != id {
		early := t.takeEarly()
		n.newMessage(t, id, model)
		t.blocks = early
	}
	n.turnStart(t)
	t.produced = true
	t.usage.takeNumbers(message.Get("usage"))
	if stop := message.TextAt("stop_reason"); stop != "" {
		t.usage.stop = stop
	}
}

// takeEarly takes the blocks that were streamed without a message_start and have no whole block yet: they
// are of the message in the next line.
func (t *thread) takeEarly() []*block {
	if t.streamed {
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
		t.answer += b.TextAt("text")
		n.readProse(t, "text", b.TextAt("text"), "")
	case kind == "thinking":
		n.readProse(t, "thinking", b.TextAt("thinking"), b.TextAt("signature"))
	case isTool(kind):
		n.toolBlock(t, b)
	case isToolResult(kind) && b.TextAt("tool_use_id") != "":
		n.toolResult(t, b, nil)
	default:
		n.emitRawBlock(t, "assistant/"+kind, b)
	}
}

// emitRawBlock passes on a block that has no event of its own.
func (n *Normalizer) emitRawBlock(t *thread, name string, b wire.Raw) {
	n.emitForThread(t, &wire.RawMessage{Source: n.opt.Source, Name: name, Data: b})
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

// isTool reports whether a block of this type is a call: of the agent's own
// tools, of the API's or of a remote MCP server.
func isTool(kind string) bool { return strings.HasSuffix(kind, "tool_use") }

func isToolResult(kind string) bool { return strings.HasSuffix(kind, "tool_result") }

func (n *Normalizer) toolBlock(t *thread, b wire.Raw) {
	id, name, input := b.TextAt("id"), b.TextAt("name"), b.Get("input")
	if s := t.streamedCall(id); s != nil {
		s.whole, s.matched = true, true
	}
	if !n.toolUse(t, t.message, id, name, input) {
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

// toolUse begins a call that a message made. It reports false if the call has
// no id or name, or is another one under an id that is taken.
func (n *Normalizer) toolUse(t *thread, message, id, name string, input wire.Raw) bool {
	if id == "" || name == "" {
		return false
	}
	if len(input) == 0 {
		input = wire.Null
	}
	if c := n.calls[id]; c != nil {
		if c.name != name {
			return false
		}
		c.message = cmp.Or(c.message, message)
		return true
	}
	turn := 0
	if t.main {
		turn = n.turn
	}
	n.calls[id] = &toolCall{thread: t, message: message, turn: turn, name: name, input: input, at: n.at, line: n.line}
	n.open = append(n.open, id)
	sum := sha256.Sum256(input)
	e := n.emitForThread(t, &wire.ToolIntent{
		ToolName: name, ToolInput: input, InputHash: hex.EncodeToString(sum[:]),
		Idempotent: isReadOnlyTool(name), Batch: message,
	})
	e.CallID = id
	return true
}

// isReadOnlyTool reports whether a tool only reads, so that a call of unknown
// outcome may be made again.
func isReadOnlyTool(tool string) bool {
	switch tool {
	case "Read", "Glob", "Grep", "LS", "NotebookRead", "TodoRead", "TaskList", "TaskGet", "TaskOutput", "BashOutput", "ToolSearch":
		return true
	}
	return false
}

// assistantError is a message with which the program tells that the API failed.
func (n *Normalizer) assistantError(t *thread, m wire.Raw, kind string) {
	message := contentText(m.Get("message", "content"))
	if kind == "" {
		kind = agent.APIErrorType(int(integerAt(m, "apiErrorStatus")), "")
	}
	n.emitForThread(t, &wire.AgentError{
		ErrorType: kind, Message: message, Details: m, Severity: wire.SeverityError,
		Phase: "model", Status: int(integerAt(m, "apiErrorStatus")), ResetsAt: n.limitOver(kind),
	})
	if t.main {
		n.tally.active = true
		n.tally.failed = kind
	}
}
