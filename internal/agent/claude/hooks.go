package claude

import (
	"cmp"
	"context"

	"wake/internal/flow"
	"wake/internal/hook"
	"wake/pkg/wire"
)

// hookEvents are the events of hooks that the program tells of, and what it calls them. The
// start and the end of the agent are wake's own. A turn is what the agent does from a
// message of the user to its result.
func hookEvents() map[string]string {
	return map[string]string{
		flow.HookPreToolUse: "PreToolUse", flow.HookPostToolUse: "PostToolUse", flow.HookPostToolUseFailure: "PostToolUseFailure",
		flow.HookTurnStart: "UserPromptSubmit", flow.HookTurnEnd: "Stop",
	}
}

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

// begin asks the hooks of the start. It reports false if the agent isn't to begin, or the
// consumer wants no more. What they have for the model is added to its system prompt.
func (s *session) begin(yield func(*wire.Event, error) bool) bool {
	s.n.hooked = s.request.Hooks.Has(flow.HookPreToolUse)
	task, _ := s.request.Prompt.Text()
	h := hearing{event: hook.Event{Name: flow.HookAgentStart, Task: task, Resumed: base(s.request) != ""}}
	h.outcome, h.fired = s.request.Hooks.Fire(s.context(), h.event)
	if !s.yield(yield, s.n.Heard(now(), h.event, h.outcome, h.fired, "")) {
		return false
	}
	o := &s.request.Options
	switch h.outcome.Decision {
	case hook.Stop:
		s.yield(yield, s.n.Stopped(now()))
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

// aside takes the questions of the program that are for hooks alone: no event of its own
// comes of them.
func (s *session) aside(m wire.Raw) bool {
	r := m.Get("request")
	event := str(r, "input", "hook_event_name")
	if str(m, "type") != "control_request" || str(r, "subtype") != "hook_callback" || event == "PreToolUse" {
		return false
	}
	for _, theirs := range hookEvents() {
		if event == theirs {
			s.consult(str(m, "request_id"), r.Get("input"))
			return true
		}
	}
	return false
}

// consult asks the hooks, which may take its time. The program waits.
func (s *session) consult(id string, input wire.Raw) {
	h := hearing{request: id, event: s.event(input), mode: str(input, "permission_mode")}
	ctx, cancel := context.WithCancel(s.context())
	s.consulting[id] = cancel
	s.deciding.Go(func() {
		defer cancel()
		h.outcome, h.fired = s.request.Hooks.Fire(ctx, h.event)
		select {
		case s.heard <- h:
		case <-s.context().Done():
		}
	})
}

// event is what the program asks about.
func (s *session) event(input wire.Raw) hook.Event {
	e := hook.Event{
		Turn: s.n.turn, AgentID: str(input, "agent_id"), Tool: str(input, "tool_name"), ToolUseID: str(input, "tool_use_id"),
		Input: input.Get("tool_input"),
	}
	for event, theirs := range hookEvents() {
		if theirs == str(input, "hook_event_name") {
			e.Name = event
		}
	}
	switch e.Name {
	case flow.HookPostToolUse:
		e.Result = input.Get("tool_response")
	case flow.HookPostToolUseFailure:
		e.Error = str(input, "error")
	case flow.HookTurnStart:
		e.Turn, e.Task = s.n.turn+1, str(input, "prompt")
	case flow.HookTurnEnd:
		e.Result = input.Get("last_assistant_message")
	}
	return e
}

// heed records what hooks have said, and passes it on, unless the program has withdrawn
// its question.
func (s *session) heed(h hearing, yield func(*wire.Event, error) bool) bool {
	cancel, open := s.consulting[h.request]
	if !open {
		return s.yield(yield, s.n.Heard(now(), h.event, hook.Outcome{}, h.fired, ""))
	}
	cancel()
	delete(s.consulting, h.request)
	if !s.yield(yield, s.n.Heard(now(), h.event, h.outcome, h.fired, h.mode)) {
		return false
	}
	s.stopped = s.stopped || h.outcome.Decision == hook.Stop
	s.reply(answer(h.request, verdictOfHooks(h.event.Name, h.mode, h.outcome)))
	return true
}

// leaveOff yields the last events. Hooks are asked about the end of an agent that has
// completed; it ends whatever they say.
func (s *session) leaveOff(events []*wire.Event, yield func(*wire.Event, error) bool) {
	last := len(events) - 1
	if last >= 0 {
		if c, ok := events[last].Payload.(*wire.AgentComplete); ok {
			e := hook.Event{Name: flow.HookAgentStop, Turn: s.n.turn, Result: wire.RawString(c.Result)}
			_, fired := s.request.Hooks.Fire(s.context(), e)
			events = append(events[:last:last], append(s.n.Heard(now(), e, hook.Outcome{}, fired, ""), events[last])...)
		}
	}
	s.yield(yield, events)
}

// verdictOfHooks is the answer to a question about an event.
func verdictOfHooks(event, mode string, o hook.Outcome) map[string]any {
	specific := map[string]any{"hookEventName": hookEvents()[event]}
	switch o.Decision {
	case hook.Stop:
		return map[string]any{"continue": false, "stopReason": cmp.Or(o.Reason, "stopped by hook "+o.Hook)}
	case hook.Deny:
		specific["permissionDecision"], specific["permissionDecisionReason"] = "deny", denial(o)
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

// denial is what the model is told of a call that hooks have refused.
func denial(o hook.Outcome) string { return cmp.Or(o.Reason, "denied by hook "+o.Hook) }

// Heard returns the events of what hooks have said about an event. In the permission mode
// that asks nobody, they were the last who stood between a call and its execution.
func (n *Normalizer) Heard(at int64, e hook.Event, o hook.Outcome, fired []*wire.HookFired, mode string) []*wire.Event {
	n.out = nil
	n.setTime(at)
	for _, f := range fired {
		n.about(e.ToolUseID, f)
	}
	if e.Name != flow.HookPreToolUse {
		return n.out
	}
	id, from := e.ToolUseID, wire.ToolPending
	if c := n.calls[id]; c != nil && o.Decision == hook.Modify {
		c.input = o.Input
	}
	decided := &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "hook", Note: valid(o.Reason), UpdatedInput: o.Input}
	switch {
	case o.Decision == hook.Deny:
		decided.Decision, decided.Note = wire.DecisionDeny, valid(denial(o))
		n.denied[id] = true
		n.about(id, decided)
		return n.out
	case o.Decision == hook.Allow, o.Decision == hook.Modify && mode == bypass:
		n.about(id, decided)
		from = wire.ToolApproved
	case mode != bypass:
		return n.out
	}
	n.executing(id, from)
	return n.out
}

// Stopped returns the event of an agent that a hook has ended before it began.
func (n *Normalizer) Stopped(at int64) []*wire.Event {
	n.out = nil
	n.setTime(at)
	n.main(&wire.AgentComplete{StopReason: stopHook})
	return n.out
}
