package acp

import (
	"encoding/json"
	"fmt"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// driveProgram talks with the program until it is gone.
func (s *session) driveProgram(p *process.Process, yield func(*wire.Event, error) bool) {
	lines, stop := s.Listen(p)
	defer stop()
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
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
			if s.f.isNoAgent() {
				s.Stop(p, "it doesn't speak the Agent Client Protocol")
				s.concludeRun(p, yield) // what it has printed besides isn't read: there may be no end of it
				return
			}
			s.reportRest(p)
		case d := <-s.decided:
			if !s.recordDecision(d, yield) {
				return
			}
		case <-s.News:
			s.takeNews()
			s.goOn() // it may have waited for an answer
			if !s.Yield(yield, s.Place(s.f.takeEvents())...) {
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

// resetTimer sets the timer: before its first prompt, the program has to answer in time, and when all is done it has to exit.
func (s *session) resetTimer(timer *time.Timer) {
	switch {
	case s.replaying:
		timer.Stop()
	case s.f.Over:
		if s.over.IsZero() {
			s.over = time.Now()
		}
		timer.Reset(max(0, time.Until(s.over.Add(s.provider.Linger)))) // whatever it prints meanwhile
	case !s.f.Prompted && len(s.f.Sent) > 0:
		timer.Reset(max(0, time.Until(s.asked.Add(s.request.StartTimeout))))
	default:
		timer.Stop()
	}
}

// giveUpWaiting gives up waiting for a program that doesn't answer, or doesn't exit.
func (s *session) giveUpWaiting(p *process.Process) {
	if s.f.Over {
		s.reason = "it did not exit"
		s.Stop(p, s.reason)
		return
	}
	for _, r := range s.f.Sent {
		s.reason = fmt.Sprintf("it didn't answer %s within %s, the node's policy.startTimeoutMs", r.Method, s.request.StartTimeout)
	}
	s.f.fail(wire.ErrorStartFailed, "the agent didn't start: "+s.reason, wire.RawOf(map[string]any{"stderr": toValidUTF8(p.Words())}))
	s.Stop(p, s.reason)
}

// takeLine takes a line that the program has printed, or, of its journal, was given. It reports false if the consumer wants no
// more.
func (s *session) takeLine(p *process.Process, in pipe.Line, yield func(*wire.Event, error) bool) bool {
	switch in.Direction {
	case process.Live:
		return s.goLive(p, yield)
	case process.In:
		s.reciteLine(in)
		return true
	case process.Out, process.Err:
	}
	s.Offset, s.Index = in.Offset, 0
	if in.Long != nil {
		s.f.at = in.At
		s.f.Lines++
		s.f.takeBroken(in.Long.Head, fmt.Errorf("it has %d bytes; at most %d are read", in.Long.Bytes, pipe.MaxLine))
	} else {
		m, sent, ok := s.f.takeLine(in.At, in.Data)
		if !s.Yield(yield, s.Place(s.f.takeEvents())...) {
			return false
		}
		if ok && !s.reactTo(m, sent, yield) {
			return false
		}
	}
	s.goOn()
	return s.Yield(yield, s.Place(s.f.takeEvents())...)
}

// reactTo does what a message asks for, after its events have been taken care of.
func (s *session) reactTo(m rpcMessage, sent request, yield func(*wire.Event, error) bool) bool {
	switch {
	case m.isRequest() && s.replaying: // maybe it has been answered
		s.open = append(s.open, m)
		return true
	case m.isRequest():
		return s.answer(m, yield)
	case m.Method == cancelRequest:
		return s.withdrawRequest(m, yield)
	case m.isResponse() && sent.Method == acp.AgentMethodSessionPrompt && !s.replaying:
		s.takeNews()
	}
	return true
}

// answer answers a request of the program.
func (s *session) answer(m rpcMessage, yield func(*wire.Event, error) bool) bool {
	if m.Method == acp.ClientMethodSessionRequestPermission {
		s.askPermission(m)
		return true
	}
	result, err := s.serve(m)
	if err != nil {
		s.put(failureOf(m.ID, requestError(err)))
		return true
	}
	if !s.Yield(yield, s.f.takeEvents()...) {
		return false
	}
	if result != nil {
		s.put(resultOf(m.ID, result))
	}
	return true
}

// goLive ends the replay: the program gets what it is due.
func (s *session) goLive(p *process.Process, yield func(*wire.Event, error) bool) bool {
	if p.Attached && s.f.NextID == 0 { // its runner died before it was asked anything: it begins again
		yield(nil, agent.ErrLost)
		return false
	}
	s.replaying, s.asked = false, time.Now()
	s.Outbox.Start(p.Stdin)
	s.mendTerminals()
	open := s.open
	s.open = nil
	for _, m := range open {
		if !s.answerAgain(m, yield) {
			return false
		}
	}
	if s.f.Over { // the former runner may have died before it closed the program's input
		s.closeInput()
	}
	s.goOn()
	s.takeNews()
	return s.Yield(yield, s.f.takeEvents()...)
}

// answerAgain answers a request of the journal. If the decision on it is in the log, and the runner died before the program was
// told, it is told without being recorded again.
func (s *session) answerAgain(m rpcMessage, yield func(*wire.Event, error) bool) bool {
	question := string(m.ID)
	d := s.request.Decided[s.f.Questions[question]]
	if m.Method != acp.ClientMethodSessionRequestPermission || d == nil {
		return s.answer(m, yield)
	}
	s.f.takeDecision(nowMillis(), question, d)
	s.f.takeEvents() // the log has them
	s.put(resultOf(m.ID, answerOf(chosenOption(m, agent.Verdict{Allow: d.Decision == wire.DecisionAllow, UpdatedInput: d.UpdatedInput}))))
	return true
}

// reciteLine takes in what the program was told.
func (s *session) reciteLine(in pipe.Line) {
	m, err := parseMessage(in.Data)
	if err != nil {
		return
	}
	switch {
	case m.isResponse():
		s.reciteAnswer(in.At, m)
	case m.Method == acp.AgentMethodSessionCancel:
		s.f.Cancelled = true
	case m.isRequest() && m.number() > s.f.NextID: // else it was noted before the resting point
		x := request{Method: m.Method, At: in.At}
		var prompt struct {
			Meta map[string]origin `json:"_meta"`
		}
		if json.Unmarshal(m.Params, &prompt) == nil {
			from := prompt.Meta[originKey]
			x.CommandID, x.Content = from.CommandID, from.Content
			if from.CommandID != "" && !from.Notice {
				s.noteAnswer(from.Answers)
			}
			s.f.Renewed = s.f.Renewed || from.Renewed
		}
		s.f.NextID = m.number()
		s.noteSent(string(m.ID), x)
	}
}

// reciteAnswer takes in an answer that the program was given. The log has the events of it.
func (s *session) reciteAnswer(at int64, m rpcMessage) {
	for i, x := range s.open {
		if string(x.ID) != string(m.ID) {
			continue
		}
		s.open = append(s.open[:i:i], s.open[i+1:]...)
		switch x.Method {
		case acp.ClientMethodSessionRequestPermission:
			s.f.takeDecision(at, string(m.ID), reciteVerdict(x, m))
			s.f.takeEvents()
		case acp.ClientMethodTerminalCreate:
			var r acp.CreateTerminalResponse
			if json.Unmarshal(m.Result, &r) == nil && r.TerminalId != "" {
				s.f.Terminals = append(s.f.Terminals, r.TerminalId)
			}
		case acp.ClientMethodTerminalRelease:
			s.forgetTerminal(x)
		}
		return
	}
}

// reportRest tells the host that the journal isn't needed up to here, if nothing is asked and the log has all that came of it.
func (s *session) reportRest(p *process.Process) {
	f := s.f
	if s.replaying || s.Offset == s.rests || len(f.Questions) > 0 || len(s.deciding) > 0 || s.isWaiting() || time.Since(s.rested) < s.provider.restEvery ||
		!s.Outbox.IsIdle() || s.request.Stored != nil && !s.request.Stored() {
		return
	}
	f.Index = s.Index
	data, err := wire.Marshal(&f.state)
	if err != nil {
		s.provider.Logger.Warn("agent's state not kept", "error", err)
		return
	}
	s.rested, s.rests = time.Now(), s.Offset
	p.Rested(process.Rest{Offset: s.Offset, State: data})
}

// concludeRun ends the session once the program's output has ended.
func (s *session) concludeRun(p *process.Process, yield func(*wire.Event, error) bool) {
	how, closed, left, err := s.Conclude(p)
	if left {
		return
	}
	if err != nil {
		yield(nil, err)
		return
	}
	if how.Lost && !closed && s.reason == "" && !s.f.Over {
		yield(nil, agent.ErrLost)
		return
	}
	end := exit{Exit: how, Words: p.Words(), Reason: s.reason}
	if closed && end.Reason == "" {
		end.Reason = "closed"
	}
	halted := s.IsHalting() && (s.f.Tally.Stop == string(acp.StopReasonCancelled) || !s.f.Prompted || s.inTurn() || s.HasMessages() || len(s.f.Asked) > 0)
	s.Yield(yield, s.Place(s.f.finish(nowMillis(), end, halted))...)
}
