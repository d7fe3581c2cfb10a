package conversation

import (
	"slices"
	"strings"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

// Waits reports whether the call waits for a person: it was asked about, or asks itself.
func (k Call) Waits() bool {
	return k.State == wire.ToolApprovalRequired || k.Tool == ask.Tool && k.State == wire.ToolPending
}

// Call returns a call of the thread that has no result.
func (th *Thread) Call(id string) (Call, bool) {
	if k := th.findCall(id); k != nil {
		return *k, true
	}
	return Call{}, false
}

func (th *Thread) findCall(id string) *Call {
	id = callKey(id)
	i := slices.IndexFunc(th.Calls, func(k Call) bool { return k.ID == id })
	if i < 0 {
		return nil
	}
	return &th.Calls[i]
}

// applyCallEvent takes an event of a call that hasn't ended.
func (c *Conversation) applyCallEvent(pos uint64, e *wire.Event, s *Step) {
	th := s.Thread
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		c.beginCall(pos, e, p, s)
	case *wire.ToolState:
		th.moveCall(e, p.To, s)
	case *wire.ToolSealed:
		th.moveCall(e, wire.ToolSealedState, s)
		s.Call.Tool = p.ToolName
	case *wire.PermissionRequired:
		th.requireDecision(e, p, s)
	case *wire.PermissionDecided:
		th.decideCall(e, p, s)
	}
}

// beginCall begins a call, which is a part of the model's message unless that has named it.
func (c *Conversation) beginCall(pos uint64, e *wire.Event, p *wire.ToolIntent, s *Step) {
	th := s.Thread
	s.Known = th.findCall(e.CallID) != nil
	named := slices.Index(th.Named, callKey(e.CallID))
	if s.Named = s.Known || named >= 0; !s.Named {
		c.assignMessage(pos, e, s)
	}
	if named >= 0 {
		th.Named = slices.Delete(th.Named, named, named+1)
	}
	k := th.known(e.CallID)
	*k = Call{ID: callKey(e.CallID), Tool: p.ToolName, Batch: p.Batch, Turn: e.Turn, State: wire.ToolPending, At: e.Timestamp, Input: p.ToolInput}
	th.WentOn = len(th.Asked) > 0
	s.Call = *k
}

// known returns a call of the thread. One that isn't there is made: its beginning isn't on
// record.
func (th *Thread) known(id string) *Call {
	if k := th.findCall(id); k != nil {
		return k
	}
	th.Calls = append(withRoom(th.Calls, maxCalls), Call{ID: callKey(id)})
	return &th.Calls[len(th.Calls)-1]
}

// moveCall takes the next state of a call. Only the result follows an end, so an end
// doesn't add an unknown call, unless it is sealed.
func (th *Thread) moveCall(e *wire.Event, to wire.ToolCallState, s *Step) {
	s.Call, s.Known = th.Call(e.CallID)
	switch s.Call.State = to; to {
	case wire.ToolPending, wire.ToolApprovalRequired, wire.ToolApproved, wire.ToolExecuting, wire.ToolSealedState:
		th.known(e.CallID).State = to
	default:
		if s.Known {
			th.findCall(e.CallID).State = to
		}
	}
}

// requireDecision has a call wait for a decision on its input, which a hook may have changed.
func (th *Thread) requireDecision(e *wire.Event, p *wire.PermissionRequired, s *Step) {
	s.Known = th.findCall(e.CallID) != nil
	k := th.known(e.CallID)
	k.Tool, k.Input, k.State = p.ToolName, p.ToolInput, wire.ToolApprovalRequired
	s.Call = *k
}

// decideCall takes the decision on a call. A rule decides without having asked.
func (th *Thread) decideCall(e *wire.Event, p *wire.PermissionDecided, s *Step) {
	to := wire.ToolDenied
	if p.Decision == wire.DecisionAllow {
		to = wire.ToolApproved
	}
	before, _ := th.Call(e.CallID)
	th.moveCall(e, to, s)
	s.Answered = before.Waits()
}

// endCall ends a call, and with it the sub-agent that it was, unless that works on in the
// background.
func (c *Conversation) endCall(e *wire.Event, p *wire.AgentTool, s *Step) {
	th := s.Thread
	s.Call, s.Known = th.Call(e.CallID)
	s.Result, s.Named = p, s.Known || slices.Contains(th.Named, callKey(e.CallID))
	th.Calls = slices.DeleteFunc(th.Calls, func(k Call) bool { return k.ID == callKey(e.CallID) })
	th.Named = slices.DeleteFunc(th.Named, func(id string) bool { return id == callKey(e.CallID) })
	if s.Known && s.Call.At > 0 {
		s.TookMs = e.Timestamp - s.Call.At
	}
	if p.DurationMs != nil {
		s.TookMs = *p.DurationMs
	}
	s.Answered = s.Call.Waits() && p.Error != wire.CallInterrupted
	if !s.Named {
		s.Message = th.Latest
	}
	th.Message = 0
	s.Call.Tool, s.Call.Input = p.ToolName, p.ToolInput
	if s.Call.State != wire.ToolSealedState {
		s.Call.State = stateOf(p)
	}
	if sub := c.Thread(e.CallID); sub != nil && e.CallID != "" && !sub.Over && !isBackground(p) {
		s.Closed = sub.close(e.CallID, e.Timestamp, causeOf(p))
	}
}

func stateOf(p *wire.AgentTool) wire.ToolCallState {
	switch {
	case p.Denied:
		return wire.ToolDenied
	case p.Error != "":
		return wire.ToolFailed
	}
	return wire.ToolCompleted
}

func causeOf(p *wire.AgentTool) string {
	switch {
	case p.Error == wire.CallInterrupted:
		return wire.CallInterrupted
	case p.Error != "" || p.Denied:
		return wire.ErrorToolUse
	}
	return ""
}

// isBackground reports whether the result of a call only says that its sub-agent works in the
// background.
func isBackground(p *wire.AgentTool) bool {
	async, _ := p.Structured.Get("isAsync").Any().(bool)
	return async
}

// close ends a sub-agent.
func (th *Thread) close(call string, at int64, cause string) *Ending {
	th.Over, th.Message, th.Latest, th.Calls, th.Named, th.Asked = true, 0, 0, nil, nil, nil
	th.measureWaiting(at)
	return &Ending{Parent: call, Cause: cause}
}

// The reports of Claude Code on work in the background, which nothing else tells of: a line of its stream, in its session's
// file a message in the user's name.
const (
	taskNotification = "system/task_notification"
	taskMessage      = "<task-notification>"
)

// readTaskReport returns which call a report is about, and how its task has ended; "" if it is none.
func readTaskReport(payload wire.Payload) (call, status string) {
	switch p := payload.(type) {
	case *wire.RawMessage:
		if p.Name == taskNotification {
			call = p.Data.TextAt("tool_use_id")
			status = p.Data.TextAt("status")
		}
	case *wire.UserMessage:
		if p.Source == "synthetic" && strings.HasPrefix(p.Content, taskMessage) {
			call, status = elementOf(p.Content, "tool-use-id"), elementOf(p.Content, "status")
		}
	}
	return call, status
}

// elementOf returns the content of the first element of a name: what agents say comes behind those that count.
func elementOf(text, name string) string {
	_, text, _ = strings.Cut(text, "<"+name+">")
	content, _, _ := strings.Cut(text, "</"+name+">")
	return content
}

// noteTaskReport takes the report on a sub-agent in the background. One with an open call ends with
// the call.
func (c *Conversation) noteTaskReport(e *wire.Event, s *Step) {
	call, status := readTaskReport(e.Payload)
	sub := c.Thread(call)
	if call == "" || sub == nil || sub.Over || c.isOpen(call) {
		return
	}
	cause := wire.ErrorToolUse
	switch status {
	case "completed":
		cause = ""
	case "stopped", "killed":
		cause = wire.CallInterrupted
	}
	s.Closed = sub.close(call, e.Timestamp, cause)
}

func (c *Conversation) isOpen(call string) bool {
	return slices.ContainsFunc(c.Threads, func(th Thread) bool { return th.findCall(call) != nil })
}
