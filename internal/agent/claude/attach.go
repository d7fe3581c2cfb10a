package claude

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// attachProgram goes on with a program that is there already. What its journal has is taken in like what
// comes live, but nothing is written to the program meanwhile.
func (s *session) attachProgram(yield func(*wire.Event, error) bool) {
	r := &s.request
	s.n = s.makeNormalizer()
	s.n.hooked = r.Hooks.Has(flow.HookPreToolUse)
	f, err := s.provider.filesOf(r.Options)
	if err != nil {
		yield(nil, err)
		return
	}
	p, err := s.launchProgram()
	if err == nil && p != nil && !p.Attached {
		err = errors.New("claude: the agent's program isn't there any more")
	}
	if err != nil {
		yield(nil, err)
		return
	}
	if p != nil && !s.Yield(yield, s.restoreRest(p.Last)...) {
		return
	}
	if s.keepFile(f); s.saver != nil {
		s.saver.before = r.Transcript.Load
		s.saver.noteGrowth(r.SessionID)
		go s.saver.run(s.Context())
	}
	defer s.keepRest()
	s.driveProgram(p, yield)
}

// restoreRest puts the session where it was at a resting point. It warns if what was left there is
// of another version: then it begins anew from there.
func (s *session) restoreRest(last process.Rest) (warnings []*wire.Event) {
	s.Offset, s.rests = last.Offset, last.Offset
	if len(last.State) == 0 {
		return nil
	}
	var head struct {
		Version int `json:"version"`
		Turn    int `json:"turn"`
		Blocks  int `json:"blocks"`
	}
	var x state
	err := wire.Unmarshal(last.State, &head)
	if err == nil && head.Version != stateVersion {
		err = fmt.Errorf("it is of version %d; this program reads %d", head.Version, stateVersion)
	}
	if err == nil {
		err = wire.Unmarshal(last.State, &x)
	}
	if err != nil {
		s.n.turn, s.n.blocks, s.n.prompt = head.Turn, head.Blocks, ""
		s.begun, s.prompted = true, len(s.prompts)
		return []*wire.Event{{Timestamp: nowMillis(), SessionID: s.request.SessionID, Payload: &wire.AgentError{
			ErrorType: wire.ErrorJournalUnreadable, Severity: wire.SeverityWarning, Phase: "lifecycle",
			Message: "what a former runner knew of the agent can't be read: " + toValidUTF8(err.Error()),
		}}}
	}
	s.n.restoreState(x)
	s.lines, s.Index, s.begun, s.prompted = x.Lines, x.Index, x.Begun, x.Prompts
	s.inTurn, s.over, s.stopped = x.InTurn, x.Over, x.Stopped
	for _, id := range x.Answered {
		s.expectEcho(id)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Halting, s.asked, s.Ended = x.Halting, x.Asked, s.Ended || x.Over
	s.sent = append(s.sent, x.Sent...)
	for _, m := range slices.Concat(x.Sent, x.Normalizer.Sent) {
		s.told[m.CommandID] = true
	}
	for _, uuid := range x.Waiting {
		s.waiting[uuid] = true
	}
	return nil
}

// reportRest tells the host that the journal isn't needed up to here, if nothing is open and
// the log has all that came of it.
func (s *session) reportRest(p *process.Process) {
	if s.replaying || s.halted || s.Offset == s.rests || len(s.asking)+len(s.consulting) > 0 || time.Since(s.rested) < s.provider.restEvery || !s.n.isResting() {
		return
	}
	x, quiet := s.captureState()
	if !quiet || s.request.Stored != nil && !s.request.Stored() {
		return
	}
	data, err := wire.Marshal(x)
	if err != nil {
		s.provider.Logger.Warn("agent's state not kept", "error", err)
		return
	}
	s.rested, s.rests = time.Now(), s.Offset
	p.Rested(process.Rest{Offset: s.Offset, State: data})
}

// captureState returns what a session that goes on from here has to know. quiet says that the program has been given all
// that is in there.
func (s *session) captureState() (x *state, quiet bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.Outbox.IsIdle() {
		return nil, false
	}
	x = &state{
		Version: stateVersion, Turn: s.n.turn, Blocks: s.n.blocks,
		Lines: s.lines, Index: s.Index, InTurn: s.inTurn, Over: s.over, Stopped: s.stopped, Halting: s.Halting, Begun: s.begun, Prompts: s.prompted,
		Answered: s.answers, Waiting: slices.Sorted(maps.Keys(s.waiting)), Asked: s.asked, Sent: slices.Clone(s.sent), Normalizer: s.n.captureState(),
	}
	return x, true
}

// goLive ends the replay: the program gets what it is due.
func (s *session) goLive(p *process.Process) {
	s.replaying = false
	s.greetProgram(p)
	s.passHeld()
	open := s.open
	s.open = nil
	for _, m := range open {
		s.respondAgain(m)
	}
	if s.over { // the former runner may have died before it closed the program's input
		s.closeInput(true)
	}
	s.turnOver()
}

// deferRequest reports whether a request of the program is answered later, since it is in the journal: maybe
// it has been answered.
func (s *session) deferRequest(m wire.Raw) bool {
	if s.replaying {
		s.open = append(s.open, m)
	}
	return s.replaying
}

// forgetRequest takes a request that is open in the journal back. It is a question for permission if
// open is true, of which the log has no decision.
func (s *session) forgetRequest(id string) (q permissionQuestion, open bool) {
	i := slices.IndexFunc(s.open, func(m wire.Raw) bool { return m.TextAt("request_id") == id })
	if i < 0 {
		return q, false
	}
	r := s.open[i].Get("request")
	s.open = slices.Delete(s.open, i, i+1)
	q = permissionQuestion{call: cmp.Or(r.TextAt("tool_use_id"), id), cancel: func() {}}
	return q, r.TextAt("subtype") == "can_use_tool" && s.request.Decided[q.call] == nil
}

// reciteInput takes in what the program was told.
func (s *session) reciteInput(in pipe.Line) {
	m, err := wire.RawFromJSON(in.Data)
	if err != nil {
		return
	}
	switch m.TextAt("type") {
	case "user":
		s.reciteMessage(m)
	case "control_request":
		switch m.TextAt("request_id") {
		case initializeID:
			s.begun = true
		case interruptID:
			s.Mu.Lock()
			s.Halting = true
			s.Mu.Unlock()
		}
	case "control_response":
		s.reciteAnswer(in.At, m.Get("response"))
	}
}

func (s *session) reciteMessage(m wire.Raw) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	uuid, from := m.TextAt("uuid"), m.Get("wake")
	if s.waiting[uuid] { // it was sent before the resting point, and written behind it
		return
	}
	s.over, s.Ended = false, s.halted || s.Closed || s.Left // the former session had taken it
	sent := Sent{Source: "prompt"}
	if len(from) > 0 {
		sent = Sent{Source: "command", CommandID: from.TextAt("commandId")}
		s.told[sent.CommandID] = true
		if !isTrue(from, "notice") {
			s.noteAnswer(from.TextAt("answers"))
		}
	} else {
		s.prompted++
		if _, text := s.request.Prompt.Text(); text { // it may be longer than what was asked for, see recall
			s.n.prompt = contentText(m.Get("message", "content"))
		}
	}
	s.sent = append(s.sent, sentMessage{uuid, sent})
	s.waiting[uuid] = true
}

// reciteAnswer takes in an answer that the program was given. The log has the events of it.
func (s *session) reciteAnswer(at int64, response wire.Raw) {
	id := response.TextAt("request_id")
	s.expectEcho(id)
	i := slices.IndexFunc(s.open, func(m wire.Raw) bool { return m.TextAt("request_id") == id })
	if i < 0 {
		return
	}
	r, answer := s.open[i].Get("request"), response.Get("response")
	s.open = slices.Delete(s.open, i, i+1)
	switch input := r.Get("input"); r.TextAt("subtype") {
	case "can_use_tool":
		d := &wire.PermissionDecided{Decision: wire.DecisionDeny}
		if answer.TextAt("behavior") == "allow" {
			d.Decision = wire.DecisionAllow
		}
		s.n.Decided(at, cmp.Or(r.TextAt("tool_use_id"), id), d)
	case "hook_callback":
		o := outcomeIn(answer)
		s.stopped = s.stopped || o.Decision == hook.Stop
		if e := s.hookEvent(input); s.n.hooked {
			s.n.Heard(at, e, o, nil, input.TextAt("permission_mode"))
		}
	}
}

// outcomeIn reads what verdictOfHooks has written, as far as it matters for what comes.
func outcomeIn(answer wire.Raw) hook.Outcome {
	specific := answer.Get("hookSpecificOutput")
	switch {
	case hasValue(answer, "continue") && !isTrue(answer, "continue"):
		return hook.Outcome{Decision: hook.Stop}
	case specific.TextAt("permissionDecision") == "deny":
		return hook.Outcome{Decision: hook.Deny}
	case hasValue(specific, "updatedInput"):
		return hook.Outcome{Decision: hook.Modify, Input: specific.Get("updatedInput")}
	case specific.TextAt("permissionDecision") == "allow":
		return hook.Outcome{Decision: hook.Allow}
	}
	return hook.Outcome{}
}

// respondAgain answers a request of the journal. If its answer is in the log, and the runner died before it was
// written, it is given without being recorded again.
func (s *session) respondAgain(m wire.Raw) {
	id, r := m.TextAt("request_id"), m.Get("request")
	switch input := r.Get("input"); r.TextAt("subtype") {
	case "can_use_tool":
		call := cmp.Or(r.TextAt("tool_use_id"), id)
		if d := s.request.Decided[call]; d != nil && d.By != byHook {
			s.n.Decided(nowMillis(), call, d)
			v := agent.Verdict{Allow: d.Decision == wire.DecisionAllow, By: d.By, Note: d.Note, UpdatedInput: d.UpdatedInput}
			s.sendReply(successResponse(id, permissionVerdict(v, input)))
			return
		}
	case "hook_callback":
		e, mode := s.hookEvent(input), input.TextAt("permission_mode")
		if d := s.request.Decided[e.ToolUseID]; e.Name == flow.HookPreToolUse && s.n.hooked && d != nil && d.By == byHook {
			o := outcomeOf(d)
			s.n.Heard(nowMillis(), e, o, nil, mode)
			s.sendReply(successResponse(id, verdictOfHooks(e.Name, mode, o)))
			return
		}
	}
	if !s.takeHookQuestion(m) && !s.handleProtocol(m) {
		s.respondToRequest(m)
	}
}

func outcomeOf(d *wire.PermissionDecided) hook.Outcome {
	switch {
	case d.Decision == wire.DecisionDeny:
		return hook.Outcome{Decision: hook.Deny, Reason: d.Note}
	case len(d.UpdatedInput) > 0:
		return hook.Outcome{Decision: hook.Modify, Input: d.UpdatedInput, Reason: d.Note}
	}
	return hook.Outcome{Decision: hook.Allow, Reason: d.Note}
}

// keptAnswers is how many answers are remembered until their echo comes: some versions
// of the program echo none.
const keptAnswers = 64

// expectEcho notes that the program will echo an answer.
func (s *session) expectEcho(id string) {
	if s.answered[id] {
		return
	}
	s.answered[id] = true
	if s.answers = append(s.answers, id); len(s.answers) > keptAnswers {
		delete(s.answered, s.answers[0])
		s.answers = slices.Clone(s.answers[1:])
	}
}
