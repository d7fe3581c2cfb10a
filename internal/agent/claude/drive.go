package claude

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// driveProgram talks with the program until it is gone. It is nil if the session has been closed.
func (s *session) driveProgram(p *process.Process, yield func(*wire.Event, error) bool) {
	if p == nil {
		return
	}
	lines, stop := s.Listen(p)
	defer stop()
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	resting := time.NewTicker(max(restEvery, s.provider.restEvery)) // also of a program that waits for room in its journal
	defer resting.Stop()
	exited := p.Exited()
	for {
		select {
		case in, more := <-lines:
			if !more {
				s.concludeRun(p, yield)
				return
			}
			if !s.takeLine(p, in, yield) {
				return
			}
			if s.broken >= maxBroken && s.n.inits == 0 { // what it has printed besides isn't read: there may be no end of it
				s.reason = fmt.Sprintf("it has printed %d lines that are none of Claude Code", s.broken)
				s.Stop(p, s.reason)
				s.concludeRun(p, yield)
				return
			}
			s.reportRest(p)
		case <-resting.C:
			s.reportRest(p)
			continue
		case d := <-s.decided:
			if !s.recordDecision(d, yield) {
				return
			}
		case h := <-s.heard:
			if !s.heedHooks(h, yield) {
				return
			}
		case <-timer.C:
			s.giveUpWaiting(p)
		case <-exited: // what it left behind keeps its output open
			exited = nil
			s.Stop(p, pipe.LeftBehind)
		}
		s.resetTimer(timer)
	}
}

// maxBroken is how many lines that are none of Claude Code a program may print before it says what it is.
const maxBroken = 200

// isKnown reports whether Claude Code prints lines of a type before it says what it is.
func isKnown(typ string) bool {
	switch typ {
	case "system", "assistant", "user", "result", "stream_event", "control_request", "control_response", "control_cancel_request", "command_lifecycle",
		"rate_limit_event", "keep_alive":
		return true
	}
	return false
}

// resetTimer sets the timer: between turns, something must come within a time that
// depends on what is due.
func (s *session) resetTimer(timer *time.Timer) {
	running, _ := s.n.Busy()
	switch {
	case s.isSilent() && !s.replaying && !s.over:
		timer.Reset(s.request.StartTimeout)
	case s.replaying, s.inTurn:
		timer.Stop()
		s.overAt = time.Time{}
	case s.over:
		if s.overAt.IsZero() {
			s.overAt = time.Now()
		}
		timer.Reset(max(0, time.Until(s.overAt.Add(s.provider.Linger)))) // whatever it prints meanwhile
	case len(s.consulting) > 0: // hooks have time limits of their own
		timer.Stop()
	case s.hasOpenQuestion(): // that may take days
		timer.Stop()
	case running == 0:
		timer.Reset(s.provider.Settle)
	default:
		timer.Stop()
	}
}

// isSilent reports whether the program, which was started here, has said nothing yet.
func (s *session) isSilent() bool { return s.lines == 0 && !s.Process.Attached }

// giveUpWaiting gives up waiting: for a first line, for reports and echoes that don't come, or for a
// program that doesn't exit.
func (s *session) giveUpWaiting(p *process.Process) {
	switch {
	case s.over:
		s.reason = "it did not exit"
		s.Stop(p, s.reason)
		return
	case s.isSilent():
		s.reason = fmt.Sprintf("it printed nothing within %s, the node's policy.startTimeoutMs", s.request.StartTimeout)
		s.Stop(p, s.reason)
		return
	}
	s.over = s.closeInput(true)
}

// takeLine handles a line. It reports false if the consumer wants no more.
func (s *session) takeLine(p *process.Process, in pipe.Line, yield func(*wire.Event, error) bool) bool {
	switch in.Direction {
	case process.Live:
		s.goLive(p)
		return true
	case process.In:
		s.reciteInput(in)
		return true
	case process.Out, process.Err:
	}
	s.lines++
	if s.halted { // what it began since isn't wanted
		return true
	}
	s.Offset, s.Index = in.Offset, 0
	if long := in.Long; long != nil {
		s.broken++
		reason := &LineTooLongError{Line: s.lines, Bytes: long.Bytes, Limit: pipe.MaxLine, Head: long.Head}
		return s.Yield(yield, s.Place(s.n.TooLong(in.At, reason))...)
	}
	m, err := wire.RawFromJSON(in.Data)
	if err != nil || !isKnown(m.TextAt("type")) {
		s.broken++
	}
	if err == nil && m.TextAt("type") == "control_cancel_request" {
		return s.withdrawQuestion(in.At, m.TextAt("request_id"), yield)
	}
	if err == nil && s.takeHookQuestion(m) {
		return true
	}
	if err == nil && s.handleProtocol(m) {
		s.haltIfWaiting(m)
		return true
	}
	s.tellNormalizer()
	halted := m.TextAt("type") == "result" && s.haltInterrupted()
	events := s.Place(s.n.Line(in.At, in.Data))
	if halted {
		s.n.tally.Outcome = interrupted // even if the turn came to its end: there is more to do
	}
	if s.stopped && m.TextAt("type") == "result" {
		s.n.tally.Stop = stopHook
	}
	s.noteQuestions(events) // before an answer can come
	if !s.Yield(yield, events...) {
		return false
	}
	s.saveFileAfter(events)
	s.reactToLine(m)
	return true
}

// haltIfWaiting ends an agent that waits for an answer of its parent when it is
// interrupted: it has nothing to stop, so that no result follows.
func (s *session) haltIfWaiting(m wire.Raw) {
	if m.TextAt("response", "request_id") == interruptID && !s.inTurn && !s.over && s.hasOpenQuestion() && s.haltInterrupted() {
		s.n.tally.Outcome = interrupted
	}
}

// saveFileAfter has the session's file saved after what a crash must not lose.
func (s *session) saveFileAfter(events []*wire.Event) {
	if s.saver == nil {
		return
	}
	for _, e := range events {
		switch e.Payload.(type) {
		case *wire.TurnStart, *wire.ToolIntent, *wire.AgentTool, *wire.UserMessage, *wire.TurnEnd: // the first call may take hours
			s.saver.noteGrowth(s.n.session)
		}
	}
}

// handleProtocol handles what is between wake and the program alone and no event:
// echoes of wake's answers, answers to wake's requests, the handshake of the
// MCP server.
func (s *session) handleProtocol(m wire.Raw) bool {
	switch m.TextAt("type") {
	case "control_response":
		id := m.TextAt("response", "request_id")
		if s.answered[id] {
			delete(s.answered, id)
			s.answers = slices.DeleteFunc(s.answers, func(a string) bool { return a == id })
			return true
		}
		return (id == initializeID || id == interruptID || id == redirectID) && m.TextAt("response", "subtype") == "success"
	case "control_request":
		r := m.Get("request")
		if r.TextAt("subtype") == "mcp_message" && r.TextAt("server_name") == parent.Server && r.TextAt("message", "method") != "tools/call" {
			if s.deferRequest(m) {
				return true
			}
			s.sendReply(successResponse(m.TextAt("request_id"), serveParent(r.Get("message"), messageID(m))))
			return true
		}
	}
	return false
}

// reactToLine does what a line asks for, after its events have been taken care of.
func (s *session) reactToLine(m wire.Raw) {
	switch m.TextAt("type") {
	case "control_request":
		s.respondToRequest(m)
	case "user":
		s.noteEcho(m.TextAt("uuid"))
		s.inTurn = s.inTurn || isTrue(m, "isReplay")
	case "command_lifecycle":
		if state := m.TextAt("state"); state != "queued" && state != "started" {
			s.noteEcho(m.TextAt("command_uuid"))
		}
	case "system":
		s.inTurn = s.inTurn || m.TextAt("subtype") == "init"
	case "stream_event", "assistant":
		s.inTurn = s.inTurn || !hasValue(m, "parent_tool_use_id")
	case "result":
		s.inTurn = false
	}
	s.turnOver()
}

// turnOver closes the program's input if it has come to the end of its turn and nothing is due.
func (s *session) turnOver() {
	if running, reports := s.n.Busy(); !s.inTurn && !s.over && (s.stopped || running == 0 && reports == 0) {
		s.over = s.closeInput(s.stopped)
	}
}

// respondToRequest answers a question of the program.
func (s *session) respondToRequest(m wire.Raw) {
	if s.deferRequest(m) {
		return
	}
	id, r := m.TextAt("request_id"), m.Get("request")
	switch r.TextAt("subtype") {
	case "hook_callback": // its tool:intent is stored
		if s.n.hooked {
			s.consultHooks(id, r.Get("input"))
			return
		}
		s.sendReply(successResponse(id, verdictOfHooks("", "", hook.Outcome{})))
	case "mcp_message":
		if r.TextAt("server_name") == parent.Server {
			s.sendReply(successResponse(id, serveParent(r.Get("message"), messageID(m))))
			return
		}
		s.sendReply(errorResponse(id, "there is no such server"))
	case "can_use_tool":
		s.askPermission(id, r)
	default:
		s.sendReply(errorResponse(id, "not supported: "+r.TextAt("subtype")))
	}
}

// askPermission has a question for permission decided, which may take its time.
func (s *session) askPermission(id string, r wire.Raw) {
	call := cmp.Or(r.TextAt("tool_use_id"), id)
	p := agent.Permission{CallID: call, ToolName: r.TextAt("tool_name"), Input: r.Get("input")}
	ctx, cancel := context.WithCancel(s.Context())
	if former, open := s.asking[id]; open {
		former.cancel()
	}
	s.asking[id] = permissionQuestion{call: call, input: p.Input, cancel: cancel}
	s.Tasks.Go(func() {
		defer cancel()
		v := s.decidePermission(ctx, p)
		select {
		case s.decided <- decision{id, call, v}:
		case <-s.Context().Done():
		}
	})
}

func (s *session) decidePermission(ctx context.Context, p agent.Permission) agent.Verdict {
	mode := cmp.Or(s.request.Options.PermissionMode, bypass)
	if p.ToolName != ask.Tool && (mode == bypass || mode == "auto") { // a question is for a person in any mode
		return agent.Verdict{Allow: true, By: "policy", Note: "permission mode " + mode}
	}
	if f := s.request.Options.Decide; f != nil {
		return f(ctx, p)
	}
	return agent.Verdict{By: "policy", Note: "not allowed in permission mode " + mode + ", and no approver is set"}
}

// withdrawQuestion records that the agent took a question back, as it does when it is
// interrupted. What is still decided on it comes too late.
func (s *session) withdrawQuestion(at int64, id string, yield func(*wire.Event, error) bool) bool {
	if cancel := s.consulting[id]; cancel != nil {
		cancel()
		delete(s.consulting, id)
	}
	q, open := s.asking[id]
	if s.replaying {
		q, open = s.forgetRequest(id)
	}
	if !open {
		return true
	}
	q.cancel()
	delete(s.asking, id)
	return s.Yield(yield, s.Place(s.n.Decided(at, q.call, &wire.PermissionDecided{
		Decision: wire.DecisionDeny, By: "agent", Note: "the agent took its question back",
	}))...)
}

// recordDecision records a decision and passes it on.
func (s *session) recordDecision(d decision, yield func(*wire.Event, error) bool) bool {
	q, open := s.asking[d.request]
	if !open || q.call != d.call { // the program asks about another call under that id
		return true
	}
	delete(s.asking, d.request)
	p := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: toValidUTF8(d.verdict.By), Note: toValidUTF8(d.verdict.Note)}
	if d.verdict.Allow {
		p.Decision, p.UpdatedInput = wire.DecisionAllow, d.verdict.UpdatedInput
	}
	if !s.Yield(yield, s.n.Decided(nowMillis(), q.call, p)...) {
		return false
	}
	s.sendReply(successResponse(d.request, permissionVerdict(d.verdict, q.input)))
	return true
}

// concludeRun ends the session once the program's output has ended.
func (s *session) concludeRun(p *process.Process, yield func(*wire.Event, error) bool) {
	exit, closed, left, err := s.Conclude(p)
	if left {
		return
	}
	if err != nil {
		yield(nil, err)
		return
	}
	s.keepRest()
	if exit.Lost && !closed && s.reason == "" {
		yield(nil, agent.ErrLost)
		return
	}
	end := Exit{Code: exit.Code, Signal: exit.Signal, Stderr: p.Words(), Memory: exit.Memory}
	if end.Reason = s.reason; closed && end.Reason == "" {
		end.Reason = "closed"
	}
	s.leaveOff(s.Place(s.n.Finish(nowMillis(), end)), yield)
}
