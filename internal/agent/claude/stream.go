package claude

import (
	"cmp"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// threadOfLine returns the conversation that a line belongs to.
func (n *Normalizer) threadOfLine(m wire.Raw) *thread {
	parent, id := m.TextAt("parent_tool_use_id"), firstValue(m, "agent_id", "agentId").TextAt()
	key := parent
	if parent == "" && isTrue(m, "isSidechain") {
		key = "sidechain/" + id
	}
	if !n.rooted && len(m) > 0 { // the file of a sub-agent is a conversation of its own
		n.rooted = true
		if n.opt.Format == Transcript {
			n.root = key
		}
	}
	t := n.threadOf(key)
	t.Parent = cmp.Or(t.Parent, parent)
	if key != "" && id != "" {
		t.Agent = id
	}
	return t
}

// streamEvent takes a piece of a model's message as the API streams it.
func (n *Normalizer) streamEvent(m wire.Raw) bool {
	event := m.Get("event")
	n.bindSession(m)
	t := n.threadOfLine(m)
	switch event.TextAt("type") {
	case "message_start":
		return n.messageStart(t, event.Get("message"))
	case "content_block_start":
		return n.blockStart(t, event)
	case "content_block_delta":
		return n.blockDelta(t, event)
	case "content_block_stop":
		n.blockStop(t, event)
	case "message_delta":
		n.messageDelta(t, event)
	case "message_stop":
	default:
		return false
	}
	return true
}

func (n *Normalizer) messageStart(t *thread, message wire.Raw) bool {
	id := message.TextAt("id")
	if id == "" {
		return false
	}
	if t.main {
		n.tally.Active = true
	}
	n.newMessage(t, id, message.TextAt("model"))
	t.Streamed = true
	t.Usage.takeNumbers(message.Get("usage"))
	return true
}

// newMessage ends the thread's current message and begins another.
func (n *Normalizer) newMessage(t *thread, id, model string) {
	n.endMessage(t)
	reused := t.main && n.turn > 0 && t.Begun && !t.Produced
	t.Message, t.Model, t.blocks = id, model, nil
	t.Begun, t.Produced, t.Streamed = reused, false, false
	t.Usage = &callUsage{ID: id, Model: model}
}

// endMessage closes the thread's current message: its usage is final, and what
// was streamed without becoming a block was given up.
func (n *Normalizer) endMessage(t *thread) {
	if t.Usage != nil && t.Produced {
		n.flushUsage(t)
	}
	for _, b := range t.blocks {
		if b.pieces && !b.whole && !b.matched {
			t.givenUp[b.kind] = b
		}
	}
	t.blocks = nil
}

// turnStart begins a turn with the first content of a message, so that a stream
// which breaks before any content isn't one.
func (n *Normalizer) turnStart(t *thread) {
	if t.Begun {
		return
	}
	t.Begun = true
	if !t.main {
		return
	}
	n.turn++
	n.emitForMain(&wire.TurnStart{Model: t.Model})
}

func (n *Normalizer) blockStart(t *thread, event wire.Raw) bool {
	content := event.Get("content_block")
	index := int(integerAt(event, "index"))
	if !t.Streamed && slices.ContainsFunc(t.blocks, func(b *block) bool { return b.index == index }) {
		n.newMessage(t, "", t.Model) // without a message_start
	}
	n.turnStart(t)
	b := &block{index: index, kind: content.TextAt("type"), call: content}
	t.blocks = append(t.blocks, b)
	switch b.kind {
	case "text":
		n.emitPiece(t, b, content.TextAt("text"))
	case "thinking":
		n.emitPiece(t, b, content.TextAt("thinking"))
	case "tool_use", "redacted_thinking":
	default:
		return isTool(b.kind)
	}
	return true
}

// blockAt returns the streamed block with an index, making it up if its start is missing.
func (t *thread) blockAt(index int, kind string) *block {
	for _, b := range slices.Backward(t.blocks) {
		if b.index == index {
			return b
		}
	}
	b := &block{index: index, kind: kind}
	t.blocks = append(t.blocks, b)
	return b
}

func (n *Normalizer) blockDelta(t *thread, event wire.Raw) bool {
	delta, index := event.Get("delta"), int(integerAt(event, "index"))
	n.turnStart(t)
	switch delta.TextAt("type") {
	case "text_delta":
		n.emitPiece(t, t.blockAt(index, "text"), delta.TextAt("text"))
	case "thinking_delta":
		n.emitPiece(t, t.blockAt(index, "thinking"), delta.TextAt("thinking"))
	case "input_json_delta":
		b := t.blockAt(index, "tool_use")
		b.content = append(b.content, delta.TextAt("partial_json")...)
	default: // signatures, citations and what else may come
		return false
	}
	return true
}

// emitPiece emits a piece of text or thinking.
func (n *Normalizer) emitPiece(t *thread, b *block, s string) {
	n.numberBlock(b)
	if s == "" {
		return
	}
	b.pieces = true
	b.content = append(b.content, s...)
	if b.kind == "thinking" {
		n.emitForThread(t, &wire.AgentThinkingDelta{Content: s, TokenCount: n.takeTokens(), Block: b.number})
	} else {
		n.emitForThread(t, &wire.AgentTextDelta{Content: s, Block: b.number})
	}
}

func (n *Normalizer) numberBlock(b *block) {
	if b.number == 0 {
		n.blocks++
		b.number = n.blocks
	}
}

// blockStop completes a block if its assistant line didn't come before it.
func (n *Normalizer) blockStop(t *thread, event wire.Raw) {
	index := int(integerAt(event, "index"))
	for _, b := range t.blocks {
		if b.index != index || b.whole {
			continue
		}
		if isTool(b.kind) {
			n.assembleCall(t, b)
			continue
		}
		b.whole = true
		if b.pieces && n.opt.Blocks == agent.BlocksAlways {
			n.wholeBlock(t, b.kind, string(b.content), "", b.number, 0)
		}
	}
}

// assembleCall is a tool call with its input in pieces only.
func (n *Normalizer) assembleCall(t *thread, b *block) {
	input, err := wire.RawFromJSON(b.content)
	if err != nil {
		return // the assistant line has it, or it was given up
	}
	b.whole = true
	n.toolUse(t, t.Message, b.call.TextAt("id"), b.call.TextAt("name"), input)
}

func (n *Normalizer) messageDelta(t *thread, event wire.Raw) {
	if t.Usage == nil {
		return
	}
	t.Usage.takeNumbers(event.Get("usage"))
	t.Usage.Stop = event.TextAt("delta", "stop_reason")
	if t.Begun && t.Message != "" {
		t.Produced = true
		n.flushUsage(t)
	}
}

// wholeBlock emits a block of text or thinking as a whole.
func (n *Normalizer) wholeBlock(t *thread, kind, content, signature string, number, supersedes int) {
	if kind == "thinking" {
		n.emitForThread(t, &wire.AgentThinking{Content: content, Block: number, Supersedes: supersedes, Signature: signature})
	} else {
		n.emitForThread(t, &wire.AgentText{Content: content, Block: number, Supersedes: supersedes})
	}
}

// takeTokens returns the estimate for the piece that is being emitted.
func (n *Normalizer) takeTokens() *int64 {
	if n.tokens == nil {
		return nil
	}
	delta := n.tokens.delta
	n.tokens = nil
	return &delta
}

// flushTokens passes an estimate on that no piece of thinking follows.
func (n *Normalizer) flushTokens(typ string, m wire.Raw) {
	if n.tokens == nil || typ == "stream_event" && m.TextAt("event", "delta", "type") == "thinking_delta" {
		return
	}
	orphan := n.tokens.message
	n.tokens = nil
	n.emitRaw(orphan, "")
}
