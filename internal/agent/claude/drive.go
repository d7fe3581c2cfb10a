package claude

import (
	"bytes"
	"context"
	"errors"
	"time"

	"wake/internal/agent"
	"wake/internal/ask"
	"wake/internal/hook"
	"wake/internal/process"
	"wake/pkg/wire"
)

// input is a line of the program, or why there is none.
type input struct {
	line []byte
	err  error
}

// drive talks with the program until it is gone.
func (s *session) drive(p *process.Process, yield func(*wire.Event, error) bool) {
	done := make(chan struct{})
	lines := read(p, done)
	defer s.leave(p, done, lines)
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	exited := p.Exited()
	for s.inTurn = true; ; s.wind(timer) {
		select {
		case in, more := <-lines:
			if !more {
				s.conclude(p, yield)
				return
			}
			if !s.take(in, yield) {
				return
			}
		case d := <-s.decided:
			if !s.settle(d, yield) {
				return
			}
		case h := <-s.heard:
			if !s.heed(h, yield) {
				return
			}
		case <-timer.C:
			s.late(p)
		case <-exited: // what it left behind keeps its output open
			exited = nil
			s.stop(p, "agent left processes behind")
		}
	}
}

// leave ends the program, if it still runs, and its reader.
func (s *session) leave(p *process.Process, done chan<- struct{}, lines <-chan input) {
	close(done)
	s.stop(p, "agent left processes behind")
	for range lines {
		// nobody wants them any more
	}
}

// stop ends the program's tree.
func (s *session) stop(p *process.Process, why string) {
	if err := p.End(s.provider.Grace); err != nil {
		s.provider.Logger.Warn("agent could not be ended", "why", why,
			"run_id", s.request.RunID, "node_id", s.request.NodeID, "error", err)
	}
}

// read reads the program's lines. It ends with the program's output, or with done.
func read(p *process.Process, done <-chan struct{}) <-chan input {
	lines := make(chan input, 16)
	go func() {
		defer close(lines)
		for line, err := range Lines(p.Stdout, MaxLine) {
			select {
			case lines <- input{bytes.Clone(line), err}:
			case <-done:
				return
			}
		}
	}()
	return lines
}

// wind sets the timer: between turns, something must come within a time that
// depends on what is due.
func (s *session) wind(timer *time.Timer) {
	running, _ := s.n.Busy()
	switch {
	case s.inTurn:
		timer.Stop()
	case s.over:
		timer.Reset(s.provider.Linger)
	case len(s.consulting) > 0: // hooks have time limits of their own
		timer.Stop()
	case s.asks(): // that may take days
		timer.Stop()
	case running == 0:
		timer.Reset(s.provider.Settle)
	default:
		timer.Stop()
	}
}

// late gives up waiting: for reports and echoes that don't come, or for a
// program that doesn't exit.
func (s *session) late(p *process.Process) {
	if s.over {
		s.reason = "it did not exit"
		s.stop(p, s.reason)
		return
	}
	s.over = s.finish(true)
}

// take handles a line. It reports false if the consumer wants no more.
func (s *session) take(in input, yield func(*wire.Event, error) bool) bool {
	var long *LineTooLongError
	switch {
	case s.halted: // what it began since isn't wanted
		return true
	case errors.As(in.err, &long):
		return s.yield(yield, s.n.TooLong(now(), long))
	case in.err != nil:
		s.provider.Logger.Warn("agent's output broke off", "run_id", s.request.RunID, "node_id", s.request.NodeID, "error", in.err)
		return true
	}
	m, err := wire.RawFromJSON(in.line)
	if err == nil && str(m, "type") == "control_cancel_request" {
		return s.withdrawn(str(m, "request_id"), yield)
	}
	if err == nil && s.aside(m) {
		return true
	}
	if err == nil && s.protocol(m) {
		s.rest(m)
		return true
	}
	s.tell()
	halted := str(m, "type") == "result" && s.halt()
	events := s.n.Line(now(), in.line)
	if halted {
		s.n.tally.outcome = interrupted // even if the turn came to its end: there is more to do
	}
	if s.stopped && str(m, "type") == "result" {
		s.n.tally.stop = stopHook
	}
	s.note(events) // before anybody can answer
	if !s.yield(yield, events) {
		return false
	}
	s.keep(events)
	s.react(m)
	return true
}

// rest ends an agent that waits for an answer of its parent when it is
// interrupted: it has nothing to stop, so that no result follows.
func (s *session) rest(m wire.Raw) {
	if str(m, "response", "request_id") == interruptID && !s.inTurn && !s.over && s.asks() && s.halt() {
		s.n.tally.outcome = interrupted
	}
}

// keep has the session's file saved after what a crash must not lose.
func (s *session) keep(events []*wire.Event) {
	if s.keeper == nil {
		return
	}
	for _, e := range events {
		switch e.Payload.(type) {
		case *wire.TurnStart, *wire.ToolIntent, *wire.AgentTool, *wire.UserMessage, *wire.TurnEnd: // the first call may take hours
			s.keeper.more(s.n.session)
		}
	}
}

// protocol handles what is between wake and the program alone and no event:
// echoes of wake's answers, answers to wake's requests, the handshake of the
// MCP server.
func (s *session) protocol(m wire.Raw) bool {
	switch str(m, "type") {
	case "control_response":
		id := str(m, "response", "request_id")
		if s.answered[id] {
			delete(s.answered, id)
			return true
		}
		return (id == initializeID || id == interruptID) && str(m, "response", "subtype") == "success"
	case "control_request":
		r := m.Get("request")
		if str(r, "subtype") == "mcp_message" && str(r, "server_name") == parentServer && str(r, "message", "method") != "tools/call" {
			s.reply(answer(str(m, "request_id"), serveParent(r.Get("message"), messageID(m))))
			return true
		}
	}
	return false
}

// react does what a line asks for, after its events have been taken care of.
func (s *session) react(m wire.Raw) {
	switch str(m, "type") {
	case "control_request":
		s.respond(m)
	case "user":
		s.echoed(str(m, "uuid"))
		s.inTurn = s.inTurn || truth(m, "isReplay")
	case "command_lifecycle":
		if state := str(m, "state"); state != "queued" && state != "started" {
			s.echoed(str(m, "command_uuid"))
		}
	case "system":
		s.inTurn = s.inTurn || str(m, "subtype") == "init"
	case "stream_event", "assistant":
		s.inTurn = s.inTurn || !has(m, "parent_tool_use_id")
	case "result":
		s.inTurn = false
	}
	if running, reports := s.n.Busy(); !s.inTurn && !s.over && (s.stopped || running == 0 && reports == 0) {
		s.over = s.finish(s.stopped)
	}
}

// respond answers a question of the program.
func (s *session) respond(m wire.Raw) {
	id, r := str(m, "request_id"), m.Get("request")
	switch str(r, "subtype") {
	case "hook_callback": // its tool:intent is stored
		if s.n.hooked {
			s.consult(id, r.Get("input"))
			return
		}
		s.reply(answer(id, verdictOfHooks("", "", hook.Outcome{})))
	case "mcp_message":
		if str(r, "server_name") == parentServer {
			s.reply(answer(id, serveParent(r.Get("message"), messageID(m))))
			return
		}
		s.reply(refuse(id, "there is no such server"))
	case "can_use_tool":
		s.ask(id, r)
	default:
		s.reply(refuse(id, "not supported: "+str(r, "subtype")))
	}
}

// ask has a question for permission decided, which may take its time.
func (s *session) ask(id string, r wire.Raw) {
	call := str(r, "tool_use_id")
	if call == "" {
		call = id
	}
	p := agent.Permission{CallID: call, ToolName: str(r, "tool_name"), Input: r.Get("input")}
	ctx, cancel := context.WithCancel(s.context())
	s.asking[id] = question{call: call, input: p.Input, cancel: cancel}
	s.deciding.Go(func() {
		defer cancel()
		v := s.decide(ctx, p)
		select {
		case s.decided <- decision{id, v}:
		case <-s.context().Done():
		}
	})
}

func (s *session) decide(ctx context.Context, p agent.Permission) agent.Verdict {
	mode := permissionMode(s.request.Options)
	if p.ToolName != ask.Tool && (mode == bypass || mode == "auto") { // a question is for a person in any mode
		return agent.Verdict{Allow: true, By: "policy", Note: "permission mode " + mode}
	}
	if f := s.request.Options.Decide; f != nil {
		return f(ctx, p)
	}
	return agent.Verdict{By: "policy", Note: "not allowed in permission mode " + mode + ", and nobody is there to decide"}
}

// withdrawn records that the agent took a question back, as it does when it is
// interrupted. What is still decided on it comes too late.
func (s *session) withdrawn(id string, yield func(*wire.Event, error) bool) bool {
	if cancel := s.consulting[id]; cancel != nil {
		cancel()
		delete(s.consulting, id)
	}
	q, open := s.asking[id]
	if !open {
		return true
	}
	q.cancel()
	delete(s.asking, id)
	return s.yield(yield, s.n.Decided(now(), q.call, &wire.PermissionDecided{
		Decision: wire.DecisionDeny, By: "agent", Note: "the agent took its question back",
	}))
}

// settle records a decision and passes it on.
func (s *session) settle(d decision, yield func(*wire.Event, error) bool) bool {
	q, open := s.asking[d.request]
	if !open {
		return true
	}
	delete(s.asking, d.request)
	p := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: valid(d.verdict.By), Note: valid(d.verdict.Note)}
	if d.verdict.Allow {
		p.Decision, p.UpdatedInput = wire.DecisionAllow, d.verdict.UpdatedInput
	}
	if !s.yield(yield, s.n.Decided(now(), q.call, p)) {
		return false
	}
	s.reply(answer(d.request, verdict(d.verdict, q.input)))
	return true
}

// reply sends an answer, whose echo is expected.
func (s *session) reply(r controlResponse) {
	s.answered[r.Response.RequestID] = true
	if err := s.outbox.put(r); err != nil {
		s.provider.Logger.Debug("answer not sent", "run_id", s.request.RunID, "node_id", s.request.NodeID, "error", err)
	}
}

// conclude ends the session once the program's output has ended.
func (s *session) conclude(p *process.Process, yield func(*wire.Event, error) bool) {
	s.mu.Lock()
	closed := s.closed
	s.ended = true
	s.mu.Unlock()
	err := p.End(s.provider.Grace)
	exit, waitErr := p.Wait(context.WithoutCancel(s.context()))
	if err := errors.Join(err, waitErr); err != nil {
		yield(nil, err)
		return
	}
	s.keepRest()
	end := Exit{Code: exit.Code, Signal: exit.Signal, Stderr: p.Words()}
	if end.Reason = s.reason; closed && end.Reason == "" {
		end.Reason = "closed"
	}
	s.leaveOff(s.n.Finish(now(), end), yield)
}
