package acp

import (
	"encoding/json"
	"fmt"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// takeLine takes a line that the program has printed. It returns what the line is, for its answer.
func (f *fold) takeLine(at int64, line []byte) (m rpcMessage, sent request, ok bool) {
	f.at = at
	f.Lines++
	if len(strings.TrimSpace(string(line))) == 0 {
		return m, sent, false
	}
	raw, err := wire.RawFromJSON(line)
	if err == nil {
		m, err = parseMessage(line)
	}
	if err != nil {
		f.takeBroken(line, err)
		return m, sent, false
	}
	switch {
	case m.isResponse():
		if sent, ok = f.Sent[string(m.ID)]; !ok {
			f.emitRaw("response", raw, "nothing was asked under its id")
			return m, sent, false
		}
		delete(f.Sent, string(m.ID))
		f.takeResponse(m, sent, raw.Get("result"))
		return m, sent, true
	case m.Method == acp.ClientMethodSessionUpdate:
		f.takeUpdate(m, raw.Get("params"))
	case m.Method == acp.ClientMethodSessionRequestPermission && m.isRequest():
		f.takeQuestion(m, raw.Get("params"))
	case m.Method == cancelRequest:
	default:
		f.emitRaw(m.Method, shortParams(m.Method, raw.Get("params")), "")
	}
	return m, sent, m.Method != ""
}

// takeResponse takes the program's answer to a request.
func (f *fold) takeResponse(m rpcMessage, sent request, result wire.Raw) {
	if sent.Method == acp.AgentMethodSessionPrompt {
		f.takeTurnEnd(m, sent, result)
		return
	}
	if m.Error != nil {
		f.takeRefusal(m.Error, sent.Method)
		return
	}
	var err error
	switch sent.Method {
	case acp.AgentMethodInitialize:
		err = f.takeInitialized(m)
	case acp.AgentMethodAuthenticate:
		f.Authenticated = true
	case acp.AgentMethodSessionNew, acp.AgentMethodSessionLoad, acp.AgentMethodSessionResume, acp.AgentMethodSessionFork:
		err = f.takeSession(m, sent, result)
	case acp.AgentMethodSessionSetMode:
		f.Moded = true
	case acp.AgentMethodSessionSetModel, acp.AgentMethodSessionSetConfigOption:
		f.Modelled = true
	}
	if err != nil {
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("the agent's answer to %s can't be read: %v", sent.Method, err), result)
	}
}

// takeRefusal takes an error in the place of an answer, before the first prompt.
func (f *fold) takeRefusal(e *acp.RequestError, method string) {
	details := wire.RawOf(map[string]any{"method": method, "code": e.Code, "message": toValidUTF8(e.Message)})
	switch {
	case e.Code == authRequired:
		f.fail(agent.ErrorAuthentication, "the agent isn't logged in: "+errorText(e)+". Log in with it where the runner runs, give it a key by env, or name a way in auth"+
			f.Ways.text(), details)
	case method == acp.AgentMethodSessionLoad, method == acp.AgentMethodSessionResume:
		f.loseSession(wire.ErrorSessionNotFound, fmt.Sprintf("the agent can't go on with session %s: %s", f.sessionID(), errorText(e)), details)
	case method == acp.AgentMethodSessionFork:
		f.loseSession(agent.ErrorForkPointNotFound, "the agent can't fork its session: "+errorText(e), details)
	default:
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("the agent refused %s: %s", method, errorText(e)), details)
	}
}

// loseSession notes that the agent can't go on with its session. If the node allows it, it gets a new one, and what
// the log has of it; that is on record as a warning.
func (f *fold) loseSession(kind, message string, details wire.Raw) {
	if !f.renews {
		f.fail(kind, message+". With newSession: true the node gets a new session, and a summary of what the log has of this one", details)
		return
	}
	f.Afresh, f.Renewed = true, true
	f.emit("", &wire.AgentError{
		ErrorType: kind, Message: toValidUTF8(message) + ": it gets a new session, and a summary of what the log has of this one",
		Severity: wire.SeverityWarning, Phase: "lifecycle", Details: details,
	})
}

func (f *fold) takeInitialized(m rpcMessage) error {
	var r acp.InitializeResponse
	if err := json.Unmarshal(m.Result, &r); err != nil {
		return err
	}
	if r.ProtocolVersion != acp.ProtocolVersionNumber {
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("the agent speaks version %d of the Agent Client Protocol; wake speaks %d: use another version of the agent",
			r.ProtocolVersion, acp.ProtocolVersionNumber), nil)
		return nil
	}
	f.Initialized = true
	can := r.AgentCapabilities
	f.Can = ability{
		Load: can.LoadSession, Resume: can.SessionCapabilities.Resume != nil, Fork: can.SessionCapabilities.Fork != nil, HTTP: can.McpCapabilities.Http,
	}
	if i := r.AgentInfo; i != nil {
		f.Agent = strings.TrimSpace(i.Name + " " + i.Version)
	}
	for _, a := range r.AuthMethods {
		if a.Agent != nil {
			f.Ways = append(f.Ways, a.Agent.Id)
		}
	}
	return nil
}

// maxSession bounds the id of a session, in bytes.
const maxSession = 1 << 10

// takeSession takes what the agent says of the session that is open now. Its id is on record before the session has its
// prompt.
func (f *fold) takeSession(m rpcMessage, sent request, result wire.Raw) error {
	var r acp.NewSessionResponse // those of load and resume have the same, but for the id
	if err := json.Unmarshal(m.Result, &r); err != nil {
		return err
	}
	id := string(r.SessionId)
	if id == "" && (sent.Method == acp.AgentMethodSessionLoad || sent.Method == acp.AgentMethodSessionResume) {
		id = f.session
	}
	if id == "" || len(id) > maxSession {
		return fmt.Errorf("it names no session, or one of more than %d bytes", maxSession)
	}
	f.Opened = true
	if r.Modes != nil {
		for _, x := range r.Modes.AvailableModes {
			f.Modes = append(f.Modes, string(x.Id))
		}
	}
	f.learnModels(r)
	f.emit("", &wire.AgentInit{Model: f.Model, Cwd: f.cwd, Version: f.Agent, PermissionMode: f.mode, Details: result})
	if id != f.session { // last: a replay knows the session already
		f.emit("", &wire.SessionBound{OldSession: f.session, NewSession: id})
	}
	f.Session = id
	f.recoverCalls()
	return nil
}

// learnModels takes what models there are: by the list that early versions of the protocol have, else by an option.
func (f *fold) learnModels(r acp.NewSessionResponse) {
	if r.Models != nil {
		f.Model = string(r.Models.CurrentModelId)
		for _, x := range r.Models.AvailableModels {
			f.Models = append(f.Models, string(x.ModelId))
		}
		return
	}
	for _, o := range r.ConfigOptions {
		if o.Select == nil || o.Select.Category == nil || *o.Select.Category != acp.SessionConfigOptionCategoryModel {
			continue
		}
		f.Model, f.Option = string(o.Select.CurrentValue), string(o.Select.Id)
		if plain := o.Select.Options.Ungrouped; plain != nil {
			for _, x := range *plain {
				f.Models = append(f.Models, string(x.Value))
			}
		}
		if groups := o.Select.Options.Grouped; groups != nil {
			for _, g := range *groups {
				for _, x := range g.Options {
					f.Models = append(f.Models, string(x.Value))
				}
			}
		}
	}
}

func (f *fold) takeTurnEnd(m rpcMessage, sent request, result wire.Raw) {
	if !sent.Begun {
		f.noteTurn(sent)
	}
	f.endBlock()
	y := &f.Tally
	y.Turns++
	end := &wire.TurnEnd{Subtype: "success", Result: f.Text, DurationMs: max(0, f.at-sent.At), NumTurns: 1, Details: nil}
	y.Duration += end.DurationMs
	if m.Error != nil {
		f.closeCalls(wire.CallInterrupted)
		y.Untold++
		end.Subtype, end.IsError, end.Result = "error", true, errorText(m.Error)
		f.emit("", end)
		kind := wire.ErrorExecution
		if m.Error.Code == authRequired {
			kind = agent.ErrorAuthentication
		}
		f.fail(kind, errorText(m.Error), wire.RawOf(map[string]any{"code": m.Error.Code, "message": toValidUTF8(m.Error.Message)}))
		return
	}
	y.Stop = result.TextAt("stopReason")
	if y.Stop == string(acp.StopReasonCancelled) {
		f.closeCalls(wire.CallInterrupted)
	} else {
		f.closeCalls("the turn ended without the call's result")
	}
	end.StopReason = y.Stop
	end.Usage = f.countTokens(m, result)
	end.TurnCostUsd = f.countCost()
	end.TotalCostUsd = y.Total
	f.emitUsage(end)
	f.emit("", end)
	f.judgeStop()
}

// judgeStop says what the reason for which a turn ended means for the execution.
func (f *fold) judgeStop() {
	switch acp.StopReason(f.Tally.Stop) {
	case acp.StopReasonEndTurn, acp.StopReasonMaxTokens:
	case acp.StopReasonCancelled:
		if !f.Cancelled {
			f.fail(wire.ErrorInterrupted, "the agent cut its turn short by itself", nil)
		}
	case acp.StopReasonMaxTurnRequests:
		f.fail(wire.ErrorMaxTurns, "the agent has made as many requests as it may in a turn", nil)
	case acp.StopReasonRefusal:
		f.fail(wire.ErrorExecution, "the agent refuses to go on (refusal)", nil)
	default:
		f.fail(wire.ErrorExecution, fmt.Sprintf("the agent ended its turn for a reason that isn't known: %q", f.Tally.Stop), nil)
	}
}

// countTokens returns the tokens of a turn, nil if the agent doesn't tell them.
func (f *fold) countTokens(m rpcMessage, result wire.Raw) *wire.TokenUsage {
	var r acp.PromptResponse
	_ = json.Unmarshal(m.Result, &r) // what can't be read isn't known
	u := &wire.TokenUsage{}
	quota := result.Get("_meta", "quota", "token_count") // as gemini tells them
	switch {
	case r.Usage != nil:
		u.InputTokens, u.OutputTokens = int64(r.Usage.InputTokens), int64(r.Usage.OutputTokens)
		u.CacheCreationInputTokens, u.CacheReadInputTokens = widenCount(r.Usage.CachedWriteTokens), widenCount(r.Usage.CachedReadTokens)
	case !isEmpty(quota):
		u.InputTokens, u.OutputTokens = countOf(quota, "input_tokens"), countOf(quota, "output_tokens")
	default:
		f.Tally.Untold++
		return nil
	}
	y := &f.Tally
	y.Input, y.Output = y.Input+max(0, u.InputTokens), y.Output+max(0, u.OutputTokens)
	y.Written, y.Read = y.Written+wire.ValueOf(u.CacheCreationInputTokens), y.Read+wire.ValueOf(u.CacheReadInputTokens)
	return u
}

// countCost returns what a turn has added to the cost of the session, nil if the agent doesn't tell that.
func (f *fold) countCost() *float64 {
	y := &f.Tally
	if y.Total == nil {
		return nil
	}
	added := *y.Total - y.Before
	if added < 0 { // it counts anew
		added = *y.Total
	}
	y.Before = *y.Total
	y.Cost += added
	return &added
}

// emitUsage tells what a turn used. What the agent doesn't tell is unknown, and is on record as that.
func (f *fold) emitUsage(end *wire.TurnEnd) {
	p := &wire.Usage{
		MessageID: fmt.Sprintf("%s/%d", f.Session, f.Tally.Turns), Model: f.Model, CostUsd: end.TurnCostUsd, StopReason: end.StopReason,
		ContextTokens: f.Tally.Context, ContextWindow: f.Tally.Window,
	}
	if u := end.Usage; u != nil {
		p.InputTokens, p.OutputTokens = u.InputTokens, u.OutputTokens
		p.CacheCreationInputTokens, p.CacheReadInputTokens = u.CacheCreationInputTokens, u.CacheReadInputTokens
	}
	f.emit("", p)
}

func widenCount(n *int) *int64 {
	if n == nil {
		return nil
	}
	return new(int64(max(0, *n)))
}

// countOf returns a number that isn't negative, at a key; 0 if there is none.
func countOf(r wire.Raw, key string) int64 {
	n, _ := r.Get(key).Any().(int64)
	return max(0, n)
}

// exit is how the program ended.
type exit struct {
	process.Exit

	Words  string // its last ones on stderr
	Reason string // why it was ended, if it was
}

// finish returns the events that end the execution. halted says that the agent was to stop, and has more to do.
func (f *fold) finish(at int64, e exit, halted bool) []*wire.Event {
	f.at = at
	f.endBlock()
	if !f.Opened { // what it has repeated of its session is for the one that goes on
		clear(f.Calls)
		f.Order = nil
	}
	f.closeCalls(wire.CallInterrupted)
	inTurn := !f.Prompted
	for _, r := range f.Sent {
		inTurn = inTurn || r.Method == acp.AgentMethodSessionPrompt
	}
	details := wire.RawOf(map[string]any{"exitCode": int64(e.Code), "signal": e.Signal, "reason": e.Reason, "stderr": toValidUTF8(e.Words)})
	switch {
	case f.Failure != nil:
	case halted:
		f.emit("", &wire.AgentPaused{Reason: "interrupted", NumTurns: f.Tally.Turns})
		return f.takeEvents()
	case !f.Initialized:
		f.fail(wire.ErrorStartFailed, "the agent didn't start: it "+e.Text("", e.Reason, e.Words), details)
	case inTurn:
		f.fail(wire.ErrorProcessDied, "the agent "+e.Text(" before its result", e.Reason, e.Words), details)
	case len(f.Asked) > 0:
		f.fail(wire.ErrorProcessDied, "the agent "+e.Text(" before its parent answered", e.Reason, e.Words), details)
	}
	if x := f.Failure; x != nil {
		f.emit("", &wire.AgentError{ErrorType: x.Type, Message: x.Message, Details: x.Details, Severity: wire.SeverityError, Phase: x.Phase})
		return f.takeEvents()
	}
	y := &f.Tally
	p := &wire.AgentComplete{
		Result: f.Text, DurationMs: y.Duration, NumTurns: y.Turns, StopReason: y.Stop, UsageUnknown: y.Untold == y.Turns,
		Usage: wire.TokenUsage{InputTokens: y.Input, OutputTokens: y.Output},
	}
	if y.Written > 0 || y.Read > 0 {
		p.Usage.CacheCreationInputTokens, p.Usage.CacheReadInputTokens = &y.Written, &y.Read
	}
	if y.Total != nil {
		p.TotalCostUsd = &y.Cost
	}
	f.emit("", p)
	return f.takeEvents()
}
