package run

import (
	"cmp"
	"iter"
	"slices"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// tools is the state machine of a tool call: from which state which follow. A
// call may be sealed in every state that isn't terminal. An agent that asks for
// nothing may do so all the same, or refuse by a rule, after it was said to execute.
var tools = map[wire.ToolCallState][]wire.ToolCallState{
	wire.ToolPending:          {wire.ToolApprovalRequired, wire.ToolExecuting, wire.ToolSealedState},
	wire.ToolApprovalRequired: {wire.ToolApproved, wire.ToolDenied, wire.ToolSealedState},
	wire.ToolApproved:         {wire.ToolExecuting, wire.ToolSealedState},
	wire.ToolExecuting: {
		wire.ToolCompleted, wire.ToolFailed, wire.ToolSealedState, wire.ToolApprovalRequired, wire.ToolDenied,
	},
}

func canFollow(from, to wire.ToolCallState) bool {
	return slices.Contains(tools[from], to)
}

func (f *fold) callKey(a actor) string {
	exec := f.e.ExecID
	if exec == "" {
		exec = a.n.Exec
	}
	if exec == "" {
		exec = a.id
	}
	return exec + "/" + f.e.CallID
}

// openCall returns the open call that the event names.
func (f *fold) openCall(a actor) (key string, c wire.ToolCall, open bool) {
	key = f.callKey(a)
	c, open = f.s.Tools[key]
	return key, c, open
}

// checkUnknownCall judges an event about a call that isn't open. After its execution was
// closed that is in order, and so is it in a run with calls that wake didn't see.
func (f *fold) checkUnknownCall(a actor) error {
	if a.current && f.s.Imported == "" {
		return f.illegalEvent("call %q is not open", f.e.CallID)
	}
	return nil
}

func (f *fold) toolIntent(a actor, p *wire.ToolIntent) error {
	key, c, open := f.openCall(a)
	if open && !isOnlyAsked(c) {
		return f.illegalEvent("call %q is open already", f.e.CallID)
	}
	if !a.current && f.s.Imported == "" {
		return nil
	}
	intended := f.newCall(a, p.ToolName, p.ToolInput)
	if intended.Since, intended.Idempotent = f.e.Timestamp, p.Idempotent; open {
		intended.State, intended.AskedAt = c.State, c.AskedAt
	}
	f.s.Tools[key] = intended
	f.deriveBreakpoint(a)
	return nil
}

// newCall is a call that is heard of for the first time.
func (f *fold) newCall(a actor, tool string, input wire.Raw) wire.ToolCall {
	return wire.ToolCall{
		Node: a.id, Exec: cmp.Or(f.e.ExecID, a.n.Exec), CallID: f.e.CallID,
		Tool: tool, Input: f.payloadValue("toolInput", input), State: wire.ToolPending, Parent: f.e.Parent,
	}
}

// isOnlyAsked reports whether nothing is known of a call but that a person was asked about it: its intent stands on
// another node of an imported run, or nowhere.
func isOnlyAsked(c wire.ToolCall) bool { return c.Since == 0 && c.AskedAt != 0 }

// toolState takes a step that no other event implies.
func (f *fold) toolState(a actor, p *wire.ToolState) error {
	key, c, open := f.openCall(a)
	switch {
	case !open:
		return f.checkUnknownCall(a)
	case c.State != p.From:
		return f.illegalEvent("call %q is %s, not %s", f.e.CallID, c.State, p.From)
	case !canFollow(p.From, p.To):
		return f.illegalEvent("call %q can't go from %s to %s", f.e.CallID, p.From, p.To)
	}
	f.moveCall(a, key, c, p.To)
	return nil
}

// moveCall moves a call; one that has come to its end is forgotten.
func (f *fold) moveCall(a actor, key string, c wire.ToolCall, to wire.ToolCallState) {
	if len(tools[to]) == 0 {
		delete(f.s.Tools, key)
	} else {
		if c.State = to; to == wire.ToolApprovalRequired {
			c.AskedAt = f.e.Timestamp
		}
		f.s.Tools[key] = c
	}
	f.deriveBreakpoint(a)
}

// permissionRequired has a call wait for a decision on its input, which a hook may have
// changed since the intent. Of a run that was imported it may be the first that is heard of the call.
func (f *fold) permissionRequired(a actor, p *wire.PermissionRequired) error {
	key, c, open := f.openCall(a)
	switch {
	case !open && f.s.Imported != "":
		f.moveCall(a, key, f.newCall(a, p.ToolName, p.ToolInput), wire.ToolApprovalRequired)
		return nil
	case !open:
		return f.checkUnknownCall(a)
	case c.State == wire.ToolApprovalRequired: // a tool:state told so before
		return nil
	case !canFollow(c.State, wire.ToolApprovalRequired):
		return f.illegalEvent("call %q is %s", f.e.CallID, c.State)
	}
	if input := f.payloadValue("toolInput", p.ToolInput); len(input) > 0 {
		c.Input = input
	}
	f.moveCall(a, key, c, wire.ToolApprovalRequired)
	return nil
}

// permissionDecided decides a call. A rule decides without having asked.
func (f *fold) permissionDecided(a actor, p *wire.PermissionDecided) error {
	to := wire.ToolApproved
	if p.Decision == wire.DecisionDeny {
		to = wire.ToolDenied
	}
	key, c, open := f.openCall(a)
	if open && c.State != to && c.State != wire.ToolPending && !canFollow(c.State, to) {
		return f.illegalEvent("call %q is %s", f.e.CallID, c.State)
	}
	if open && c.State != to {
		f.moveCall(a, key, c, to)
	}
	if isOnlyAsked(c) {
		delete(f.s.Tools, key)
	}
	f.removeObeyed(func(c wire.Raw) bool {
		t, node := c.TextAt("type"), c.TextAt("nodeId") // another node may have a call of the same id
		return (t == "approve" || t == "deny") && c.TextAt("callId") == f.e.CallID && (node == "" || node == a.id)
	})
	return nil
}

func (f *fold) toolSealed(a actor, p *wire.ToolSealed) error {
	key, c, open := f.openCall(a)
	switch {
	case !open: // the call's intent was never stored
		return nil
	case c.State != p.From:
		return f.illegalEvent("call %q is %s, not %s", f.e.CallID, c.State, p.From)
	}
	f.moveCall(a, key, c, wire.ToolSealedState)
	return nil
}

// agentTool counts a finished call and closes it. Agents don't tell when they
// begin to execute, so that step is implied; a call that waits for a decision
// can be refused or fail, but it can't have succeeded.
func (f *fold) agentTool(a actor, p *wire.AgentTool) error {
	key, c, open := f.openCall(a)
	failed := f.errorText(p.Error) != ""
	if open && c.State == wire.ToolApprovalRequired && !failed && !p.Denied && !isOnlyAsked(c) {
		return f.illegalEvent("call %q is completed without an approval", f.e.CallID)
	}
	f.s.Usage.ToolCalls++
	if failed && !p.Denied {
		f.s.Usage.ToolErrors++
	}
	if p.ChildCostUsd != nil && *p.ChildCostUsd > 0 {
		f.s.Usage.ChildCostUsd = min(f.s.Usage.ChildCostUsd+*p.ChildCostUsd, wire.MaxCostUsd)
	}
	f.s.Usage.ChildTokens = ledger.AddTokens(f.s.Usage.ChildTokens, max(0, p.ChildTokens))
	if open {
		delete(f.s.Tools, key)
	}
	f.deriveBreakpoint(a)
	if f.isOwnAgent(a) {
		f.forkPoint(a.id, p.Point)
	}
	return nil
}

// manyCalls is how many open calls of a run are looked at for each event of one.
const manyCalls = 1000

// deriveBreakpoint computes the breakpoint of an execution from its open calls. Of many it looks at the event's own alone, which
// can only bring the agent nearer to a human until there are fewer: to look at all of them each time costs their square.
func (f *fold) deriveBreakpoint(a actor) {
	isOwn := func(c wire.ToolCall) bool { return c.Node == a.id && c.Exec == a.n.Exec && c.Parent == "" }
	if len(f.s.Tools) > manyCalls {
		at := a.n.Breakpoint
		if c := f.s.Tools[f.callKey(a)]; isOwn(c) && rank[breakpoints[c.State]] > rank[at] {
			at = breakpoints[c.State]
		}
		f.setBreakpoint(a, at)
		return
	}
	f.setBreakpoint(a, Breakpoint(func(yield func(wire.ToolCallState) bool) {
		for _, c := range f.s.Tools {
			if isOwn(c) && !yield(c.State) {
				return
			}
		}
	}))
}

// Breakpoint returns where an agent is while its own open calls are in these states,
// in any order: the state that is nearest to a human decides. Without any it is
// POST_TOOL.
func Breakpoint(open iter.Seq[wire.ToolCallState]) string {
	at := "POST_TOOL"
	for state := range open {
		if p := breakpoints[state]; rank[p] > rank[at] {
			at = p
		}
	}
	return at
}

var breakpoints = map[wire.ToolCallState]string{
	wire.ToolPending:          "TOOL_PENDING",
	wire.ToolApprovalRequired: "AWAITING_APPROVAL",
	wire.ToolApproved:         "PRE_TOOL",
	wire.ToolExecuting:        "TOOL_EXECUTING",
}

var rank = map[string]int{
	"POST_TOOL": 0, "TOOL_PENDING": 1, "PRE_TOOL": 2, "TOOL_EXECUTING": 3, "AWAITING_APPROVAL": 4,
}
