package claude

import (
	"cmp"
	"context"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// byHook names hooks as the decider.
const byHook = "hook"

// stopHook is the stop reason of an agent that a hook has ended.
const stopHook = "hook"

// hearing is what hooks have said to a question of the program.
type hearing struct {
	request string
	event   hook.Event
	mode    string // of permissions
	outcome hook.Outcome
	fired   []*wire.HookFired
}

// askStartHooks asks the hooks of the start. It reports false if the agent isn't to begin, or the
// consumer wants no more. What they have for the model is added to its system prompt.
func (s *session) askStartHooks(yield func(*wire.Event, error) bool) bool {
	s.n.hooked = s.request.Hooks.Has(flow.HookPreToolUse)
	task, _ := s.request.Prompt.Text()
	h := hearing{event: hook.Event{Name: flow.HookAgentStart, Task: task, Resumed: baseSession(s.request) != ""}}
	h.outcome, h.fired = s.request.Hooks.Fire(s.Context(), h.event)
	if !s.Yield(yield, s.n.Heard(nowMillis(), h.event, h.outcome, h.fired, "")...) {
		return false
	}
	o := &s.request.Options
	switch h.outcome.Decision {
	case hook.Stop:
		s.Yield(yield, s.n.Stopped(nowMillis())...)
		return false
	case hook.System, hook.Context:
		if o.AppendSystemPrompt != "" {
			o.AppendSystemPrompt += "\n\n"
		}
		o.AppendSystemPrompt += h.outcome.Message
	default:
	}
	return true
}

// takeHookQuestion takes the questions of the program that are for hooks alone: no event of its own
// comes of them.
func (s *session) takeHookQuestion(m wire.Raw) bool {
	r := m.Get("request")
	event := r.TextAt("input", "hook_event_name")
	if m.TextAt("type") != "control_request" || r.TextAt("subtype") != "hook_callback" || event == "PreToolUse" {
		return false
	}
	for _, theirs := range hookEvents() {
		if event == theirs {
			if s.deferRequest(m) {
				return true
			}
			s.consultHooks(m.TextAt("request_id"), r.Get("input"))
			return true
		}
	}
	return false
}

// consultHooks asks the hooks, which may take its time. The program waits.
func (s *session) consultHooks(id string, input wire.Raw) {
	h := hearing{request: id, event: s.hookEvent(input), mode: input.TextAt("permission_mode")}
	ctx, cancel := context.WithCancel(s.Context())
	s.consulting[id] = cancel
	s.Tasks.Go(func() {
		defer cancel()
		h.outcome, h.fired = s.request.Hooks.Fire(ctx, h.event)
		select {
		case s.heard <- h:
		case <-s.Context().Done():
		}
	})
}

// hookEvent is what the program asks about.
func (s *session) hookEvent(input wire.Raw) hook.Event {
	e := hook.Event{
		Turn: s.n.turn, AgentID: input.TextAt("agent_id"), Tool: input.TextAt("tool_name"), ToolUseID: input.TextAt("tool_use_id"),
		Input: input.Get("tool_input"),
	}
	for event, theirs := range hookEvents() {
		if theirs == input.TextAt("hook_event_name") {
			e.Name = event
		}
	}
	switch e.Name {
	case flow.HookPostToolUse:
		e.Result = input.Get("tool_response")
	case flow.HookPostToolUseFailure:
		e.Error = input.TextAt("error")
	case flow.HookTurnStart:
		e.Turn, e.Task = s.n.turn+1, input.TextAt("prompt")
	case flow.HookTurnEnd:
		e.Result = input.Get("last_assistant_message")
	}
	return e
}

// heedHooks records what hooks have said, and passes it on, unless the program has withdrawn
// its question.
func (s *session) heedHooks(h hearing, yield func(*wire.Event, error) bool) bool {
	cancel, open := s.consulting[h.request]
	if !open {
		return s.Yield(yield, s.n.Heard(nowMillis(), h.event, hook.Outcome{}, h.fired, "")...)
	}
	cancel()
	delete(s.consulting, h.request)
	if !s.Yield(yield, s.n.Heard(nowMillis(), h.event, h.outcome, h.fired, h.mode)...) {
		return false
	}
	s.stopped = s.stopped || h.outcome.Decision == hook.Stop
	s.sendReply(successResponse(h.request, verdictOfHooks(h.event.Name, h.mode, h.outcome)))
	return true
}

// leaveOff yields the last events. Hooks are asked about the end of an agent that has
// completed; it ends whatever they say.
func (s *session) leaveOff(events []*wire.Event, yield func(*wire.Event, error) bool) {
	last := len(events) - 1
	if last >= 0 {
		if c, ok := events[last].Payload.(*wire.AgentComplete); ok {
			e := hook.Event{Name: flow.HookAgentStop, Turn: s.n.turn, Result: wire.RawString(c.Result)}
			_, fired := s.request.Hooks.Fire(s.Context(), e)
			events = append(events[:last:last], append(s.n.Heard(nowMillis(), e, hook.Outcome{}, fired, ""), events[last])...)
		}
	}
	s.Yield(yield, events...)
}

// verdictOfHooks is the answer to a question about an event.
func verdictOfHooks(event, mode string, o hook.Outcome) map[string]any {
	specific := map[string]any{"hookEventName": hookEvents()[event]}
	switch o.Decision {
	case hook.Stop:
		return map[string]any{"continue": false, "stopReason": cmp.Or(o.Reason, "stopped by hook "+o.Hook)}
	case hook.Deny:
		specific["permissionDecision"], specific["permissionDecisionReason"] = "deny", denialReason(o)
	case hook.Allow:
		specific["permissionDecision"] = "allow"
	case hook.Modify:
		specific["updatedInput"] = o.Input
		if mode == bypass {
			specific["permissionDecision"] = "allow"
		}
	case hook.System, hook.Context:
		if event == flow.HookTurnEnd {
			return map[string]any{"decision": "block", "reason": o.Message}
		}
		specific["additionalContext"] = o.Message
	default:
		return map[string]any{"continue": true}
	}
	return map[string]any{"hookSpecificOutput": specific}
}

// denialReason is what the model is told of a call that hooks have refused.
func denialReason(o hook.Outcome) string { return cmp.Or(o.Reason, "denied by hook "+o.Hook) }

// Heard returns the events of what hooks have said about an event. In the permission mode
// that asks for nothing, hooks were the last to stand between a call and its execution.
func (n *Normalizer) Heard(at int64, e hook.Event, o hook.Outcome, fired []*wire.HookFired, mode string) []*wire.Event {
	n.out = nil
	n.setTime(at)
	for _, f := range fired {
		n.emitForCall(e.ToolUseID, f)
	}
	if e.Name != flow.HookPreToolUse {
		return n.out
	}
	id, from := e.ToolUseID, wire.ToolPending
	if c := n.calls[id]; c != nil && o.Decision == hook.Modify {
		c.input = o.Input
	}
	decided := &wire.PermissionDecided{Decision: wire.DecisionAllow, By: byHook, Note: toValidUTF8(o.Reason), UpdatedInput: o.Input}
	switch {
	case o.Decision == hook.Deny:
		decided.Decision, decided.Note = wire.DecisionDeny, toValidUTF8(denialReason(o))
		n.denied[id] = true
		n.emitForCall(id, decided)
		return n.out
	case o.Decision == hook.Allow, o.Decision == hook.Modify && mode == bypass:
		n.emitForCall(id, decided)
		from = wire.ToolApproved
	case mode != bypass:
		return n.out
	}
	n.markExecuting(id, from)
	return n.out
}

// Stopped returns the event of an agent that a hook has ended before it began.
func (n *Normalizer) Stopped(at int64) []*wire.Event {
	n.out = nil
	n.setTime(at)
	n.emitForMain(&wire.AgentComplete{StopReason: stopHook})
	return n.out
}
