package run

import (
	"cmp"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// The ways to deal with the open calls of an interrupted agent. All seal the call; by "seal", the default, the agent is told and decides.
const (
	SealRollback = "rollback" // its session goes back to its last safe point
	SealRerun    = "rerun"    // it is told to repeat those that may be repeated
)

// OpenCalls returns the open calls of a node's execution, the oldest first.
func OpenCalls(s *wire.State, node, exec string) []wire.ToolCall {
	var calls []wire.ToolCall
	for _, c := range s.Tools {
		if c.Node == node && c.Exec == exec {
			calls = append(calls, c)
		}
	}
	slices.SortFunc(calls, func(a, b wire.ToolCall) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.CallID, b.CallID))
	})
	return calls
}

// Seal returns what closes a call that its agent's end left open: what its state
// means, and what is to be done about it (seeds/003). policy is one of the Seal
// constants or "". begun says that a pending call may have begun all the same: not
// every agent tells when it begins. A state in which no call is open
// stands for one of which nothing but its existence is known.
func Seal(c wire.ToolCall, policy string, begun bool) *wire.ToolSealed {
	p := &wire.ToolSealed{ToolName: c.Tool, From: c.State}
	state := c.State
	if begun && state == wire.ToolPending {
		state = wire.ToolExecuting
	}
	switch state {
	case wire.ToolPending:
		p.Message = "The call was interrupted before it began; it has not been executed."
		p.Recommendations = []string{"Check that its parameters are valid.", "Make the call again if it is still needed."}
	case wire.ToolApprovalRequired:
		p.Message = "The call was interrupted while it waited for approval; it has not been executed."
		p.Recommendations = []string{"Consider whether it is still wanted.", "Make the call again and have it approved, or have it done by hand."}
	case wire.ToolApproved:
		p.Message = "The call was approved and interrupted before it began; it has not been executed."
		p.Recommendations = []string{"Check that its input still holds.", "Make the call again."}
	case wire.ToolExecuting:
		p.Message = "The call was interrupted while it may have been running; its outcome is unknown."
		p.Recommendations = []string{"Check which side effects it has had.", "Confirm the state of what it works on before you repeat it."}
	default:
		p.From = wire.ToolPending
		p.Message = "The result of the call is missing; its outcome is unknown."
		p.Recommendations = []string{"Read what was asked for.", "Look at the state of what it works on, then decide whether to repeat it."}
	}
	if policy == SealRerun && c.Idempotent {
		p.Recommendations = []string{"Make the call again: it is declared safe to repeat."}
	}
	return p
}

// SealResult returns the result that a sealed call gets, and with it the agent
// and every reader of the log: {ok: false, error, data, recommendations}.
func SealResult(c wire.ToolCall, p *wire.ToolSealed) *wire.AgentTool {
	return callResult(c, string(wire.ToolSealedState), string(p.From), p.Message, p.Recommendations)
}

// DeniedResult returns the result of a call that was denied when no agent was
// there any more to be told so.
func DeniedResult(c wire.ToolCall, p *wire.PermissionDecided) *wire.AgentTool {
	message := "The call was denied; it has not been executed."
	if p.Note != "" {
		message = "The call was denied and has not been executed: " + p.Note
	}
	r := callResult(c, string(wire.ToolDenied), string(c.State), message, []string{"Go on without it."})
	r.Denied = true
	return r
}

func callResult(c wire.ToolCall, status, from, message string, recommendations []string) *wire.AgentTool {
	input := c.Input
	if input == nil {
		input = wire.Null
	}
	list := make([]any, len(recommendations))
	for i, s := range recommendations {
		list[i] = s
	}
	return &wire.AgentTool{
		ToolName: cmp.Or(c.Tool, "unknown"), ToolInput: input, Error: message,
		ToolOutput: mustMarshal(map[string]any{
			"ok": false, "error": message, "recommendations": list,
			"data": map[string]any{"status": status, "from": from, "callId": c.CallID, "startedAt": c.Since},
		}),
	}
}
