package claude

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

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

// isTool reports whether a block of this type is a call: of the agent's own
// tools, of the API's or of a remote MCP server.
func isTool(kind string) bool { return strings.HasSuffix(kind, "tool_use") }

// resultLine is what a line says of all the results in it. Nothing of it is known of tools that the API ran.
type resultLine struct {
	structured wire.Raw        // the result as the program has it, of a line with one
	point      string          // see [pointOf]
	refused    map[string]bool // calls
}

// readResultLine reads a line of results once, for any number of them.
func readResultLine(t *thread, m wire.Raw) resultLine {
	return resultLine{structured: firstValue(m, "tool_use_result", "toolUseResult"), point: pointOf(t, m), refused: refusedCalls(m)}
}

// toolResult ends a call.
func (n *Normalizer) toolResult(t *thread, b wire.Raw, l resultLine) {
	id := b.TextAt("tool_use_id")
	if id == "" {
		n.emitRawBlock(t, "user/"+b.TextAt("type"), b)
		return
	}
	c := n.calls[id]
	switch {
	case c == nil: // its beginning isn't in this input
		c = &toolCall{thread: t, name: "unknown", input: wire.Null, turn: n.turnOf(t), line: n.line}
		n.calls[id] = c
	case c.done:
		n.emitForThread(t, &wire.RawMessage{Source: n.opt.Source, Name: "user/tool_result", Data: b, Reason: "the call has a result"}).CallID = id
		return
	}
	n.endCall(id, c, n.toolEvent(id, c, b, l))
	if !isTrue(b, "is_error") {
		n.emitEffects(c, l.structured)
	}
	c.input = nil
}

// endCall emits the end of a call, on the thread and in the turn that made it.
func (n *Normalizer) endCall(id string, c *toolCall, p *wire.AgentTool) {
	if n.asked[id] && !n.opt.Started && !c.executing && p.Error == "" { // of a stream that isn't ours: the answer isn't in it
		n.emitForCall(id, &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "unknown"})
		n.markExecuting(id, wire.ToolApproved)
	}
	c.done, c.line = true, n.line
	n.emit(&wire.Event{
		AgentID: c.thread.Agent, Parent: c.thread.Parent, Turn: c.turn, CallID: id, Payload: p,
	})
	delete(n.denied, id)
	delete(n.asked, id)
	if sub := n.threads[id]; sub != nil {
		n.endMessage(sub)
	}
	for len(n.open) > 0 && n.calls[n.open[0]].done {
		n.open = n.open[1:]
	}
}

// millisSince returns the time since a call began, if both times are known.
func (n *Normalizer) millisSince(at int64) *int64 {
	if at == 0 || n.at == 0 {
		return nil
	}
	return new(max(0, n.at-at))
}

func (n *Normalizer) turnOf(t *thread) int {
	if t.main {
		return n.turn
	}
	return 0
}

func (n *Normalizer) toolEvent(id string, c *toolCall, b wire.Raw, l resultLine) *wire.AgentTool {
	output := b.Get("content")
	if len(output) == 0 {
		output = wire.Null
	}
	p := &wire.AgentTool{
		ToolName: c.name, ToolInput: c.input, ToolOutput: output, Structured: l.structured,
		DurationMs: n.millisSince(c.at), Point: l.point,
	}
	if isTrue(b, "is_error") {
		p.Error = cmp.Or(contentText(output), "failed without a message")
		if n.isCutOff(id, c, p.Error) {
			p.Error = wire.CallInterrupted
			return p
		}
		p.Denied = n.denied[id] || l.refused[id] || isRefusal(p.Error) || n.asked[id] && isRejection(p.Error)
	}
	return p
}

// emitRawBlock passes on a block that has no event of its own.
func (n *Normalizer) emitRawBlock(t *thread, name string, b wire.Raw) {
	n.emitForThread(t, &wire.RawMessage{Source: n.opt.Source, Name: name, Data: b})
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
