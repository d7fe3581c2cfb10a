package claude

import (
	"cmp"

	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/pkg/wire"
)

// controlRequest takes a question of the agent to the program that runs it.
func (n *Normalizer) controlRequest(m wire.Raw) bool {
	r := m.Get("request")
	switch r.TextAt("subtype") {
	case "can_use_tool":
		return n.permissionRequired(m, r)
	case "hook_callback":
		return n.hookCallback(r.Get("input"))
	case "mcp_message":
		return n.toParent(m)
	}
	return false
}

func (n *Normalizer) permissionRequired(m, r wire.Raw) bool {
	id, name := r.TextAt("tool_use_id"), r.TextAt("tool_name")
	id = cmp.Or(id, m.TextAt("request_id"))
	if id == "" || name == "" {
		return false
	}
	n.asked[id] = true
	if c := n.calls[id]; c != nil {
		c.executing = false
	}
	suggestions := r.Get("permission_suggestions")
	if len(suggestions.Items()) == 0 {
		suggestions = nil
	}
	n.emitForCall(id, &wire.PermissionRequired{
		ToolName: name, ToolInput: r.Get("input"), Description: r.TextAt("description"), Suggestions: suggestions,
	})
	return true
}

// emitForCall appends an event of a call, on the thread and in the turn that made it.
func (n *Normalizer) emitForCall(id string, p wire.Payload) {
	e := &wire.Event{CallID: id, Turn: n.turn, Payload: p}
	if c := n.calls[id]; c != nil {
		e.Parent, e.AgentID, e.Turn = c.thread.Parent, c.thread.Agent, c.turn
	}
	n.emit(e)
}

// Decided returns the event of a decision on a call.
func (n *Normalizer) Decided(at int64, id string, p *wire.PermissionDecided) []*wire.Event {
	n.out = nil
	n.setTime(at)
	if p.Decision == wire.DecisionDeny {
		n.denied[id] = true
	}
	n.emitForCall(id, p)
	if p.Decision == wire.DecisionAllow {
		n.markExecuting(id, wire.ToolApproved)
	}
	return n.out
}

// markExecuting says that nothing stands between an open call and its execution
// any more.
func (n *Normalizer) markExecuting(id string, from wire.ToolCallState) {
	if c := n.calls[id]; c != nil && !c.done && !c.executing {
		c.executing = true
		n.emitForCall(id, &wire.ToolState{From: from, To: wire.ToolExecuting})
	}
}

// hookCallback takes the question of a PreToolUse hook: the call is about to
// be made. Its own line comes before, except for sub-agents of 2.1.197. Where
// no permission is asked for, the answer is what lets the tool begin; in other
// modes the agent's own rules come after it, and don't tell what they decide.
func (n *Normalizer) hookCallback(input wire.Raw) bool {
	if input.TextAt("hook_event_name") != "PreToolUse" {
		return false
	}
	t := n.threadOf(n.root)
	if id := input.TextAt("agent_id"); id != "" {
		if t = n.agents[id]; t == nil {
			t = n.threadOf("agent/" + id)
			t.Agent = id
		}
	}
	id := input.TextAt("tool_use_id")
	if !n.toolUse(t, "", id, input.TextAt("tool_name"), input.Get("tool_input")) {
		return false
	}
	if input.TextAt("permission_mode") == bypass && !n.hooked {
		n.markExecuting(id, wire.ToolPending)
	}
	return true
}

// toParent takes a message to the parent: a call of notify_parent with valid
// arguments. The rest of the talk with an MCP server is passed on.
func (n *Normalizer) toParent(m wire.Raw) bool {
	r := m.Get("request")
	message := r.Get("message")
	if r.TextAt("server_name") != parent.Server || message.TextAt("method") != "tools/call" ||
		message.TextAt("params", "name") != parent.Tool {
		return false
	}
	p, problem := parent.Parse(message.Get("params", "arguments"))
	if problem != "" {
		return false
	}
	n.emitForCall(messageID(m), p)
	return true
}

// messageID returns the id of a message to the parent: that of the call, or of the
// request if the agent doesn't name the call.
func messageID(m wire.Raw) string {
	if id := m.TextAt("request", "message", "params", "_meta", "claudecode/toolUseId"); id != "" {
		return id
	}
	return m.TextAt("request_id")
}
