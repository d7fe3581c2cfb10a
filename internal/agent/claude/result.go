package claude

import (
	"cmp"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// readResult takes the end of a turn.
func (n *Normalizer) readResult(m wire.Raw) bool {
	subtype := m.TextAt("subtype")
	if subtype == "" && !hasValue(m, "is_error") {
		return false
	}
	if n.inits > 0 || n.tally.Active {
		n.bindSession(m)
	}
	main := n.threadOf(n.root)
	if main.Produced {
		n.settleUsage(main, m.Get("usage"))
		n.flushUsage(main)
	}
	for _, t := range n.orderedThreads() { // the result counts what sub-agents have used so far
		if t.Produced {
			n.flushUsage(t)
		}
	}
	clear(main.givenUp)
	added, turnCost := n.countResult(m)
	n.turnEnd(m, subtype, added, turnCost)
	n.concludeTurn(m, subtype, main)
	if m.TextAt("origin", "kind") == "task-notification" && n.notified > 0 {
		n.notified--
	}
	return true
}

// countResult adds the result to the tally and returns what it adds by model and in
// cost: totals are cumulative, over the process or over the whole session.
func (n *Normalizer) countResult(m wire.Raw) (added map[string]wire.ModelUsage, turnCost *float64) {
	y := &n.tally
	y.Results++
	usage := m.Get("usage")
	y.Turns.add(integerAt(usage, "input_tokens"), integerAt(usage, "output_tokens"),
		optInteger(usage, "cache_creation_input_tokens"), optInteger(usage, "cache_read_input_tokens"))
	y.DurationMs += integerAt(m, "duration_ms")
	y.NumTurns += integerAt(m, "num_turns")
	total := modelUsage(m.Get("modelUsage"))
	for model, u := range total {
		n.learnWindow(model, u.ContextWindow)
	}
	since, told := entriesOf(m.Get("model_usage_since_last_result")), hasValue(m, "model_usage_since_last_result")
	if told {
		added = modelUsage(m.Get("model_usage_since_last_result"))
		var c float64
		for _, u := range since {
			x, _ := numberAt(u, "costUSD")
			c += x
		}
		turnCost = &c
	} else {
		added = usageIncrements(y.Total, total)
	}
	if x, ok := numberAt(m, "total_cost_usd"); ok && x >= 0 {
		if turnCost == nil {
			turnCost = new(y.addedCost(x))
		}
		y.CostTotal, y.Priced = x, true
	}
	y.Total = total
	y.Models = accumulateUsage(y.Models, added)
	y.Cost += wire.ValueOf(turnCost)
	return added, turnCost
}

// addedCost returns what a total adds to the last one; a total that fell was
// counted anew.
func (y *tally) addedCost(total float64) float64 {
	if total < y.CostTotal {
		return total
	}
	return total - y.CostTotal
}

// learnWindow keeps a model's context window, also under the name that its
// messages have.
func (n *Normalizer) learnWindow(model string, window int64) {
	if window <= 0 {
		return
	}
	n.window[model] = window
	if base, long := strings.CutSuffix(model, longContext); long {
		n.window[base] = window
	}
}

func (n *Normalizer) turnEnd(m wire.Raw, subtype string, added map[string]wire.ModelUsage, turnCost *float64) {
	p := &wire.TurnEnd{
		StopReason: m.TextAt("stop_reason"), TerminalReason: m.TextAt("terminal_reason"), Subtype: subtype,
		IsError: isTrue(m, "is_error"), Result: m.TextAt("result"), Origin: m.TextAt("origin", "kind"),
		TotalCostUsd: optNumber(m, "total_cost_usd"), TurnCostUsd: turnCost,
		DurationMs: integerAt(m, "duration_ms"), DurationAPIMs: integerAt(m, "duration_api_ms"),
		NumTurns: integerAt(m, "num_turns"), ModelUsage: added,
		Details: withoutKeys(m, "type", "subtype", "uuid", "session_id", "stop_reason", "terminal_reason",
			"is_error", "result", "total_cost_usd", "duration_ms", "duration_api_ms", "num_turns", "usage"),
	}
	if u := m.Get("usage"); hasValue(u, "input_tokens") {
		p.Usage = &wire.TokenUsage{
			InputTokens: integerAt(u, "input_tokens"), OutputTokens: integerAt(u, "output_tokens"),
			CacheCreationInputTokens: optInteger(u, "cache_creation_input_tokens"),
			CacheReadInputTokens:     optInteger(u, "cache_read_input_tokens"),
		}
	}
	n.emitForMain(p)
}

// concludeTurn decides how the turn ended and reports a failure.
func (n *Normalizer) concludeTurn(m wire.Raw, subtype string, main *thread) {
	y := &n.tally
	bad := isTrue(m, "is_error") || subtype != "success"
	already := y.Failed
	y.Active, y.Failed = false, ""
	y.Stop = m.TextAt("stop_reason")
	y.Denials = m.Get("permission_denials")
	if len(y.Denials.Items()) == 0 {
		y.Denials = nil
	}
	if hasValue(m, "structured_output") {
		y.Structured = m.Get("structured_output")
	}
	answer := main.Answer
	main.Owner, main.Answer = "", ""
	if !bad {
		y.Outcome, y.Result = succeeded, fullAnswer(m.TextAt("result"), answer)
		return
	}
	y.Outcome = failed
	if strings.HasPrefix(m.TextAt("terminal_reason"), "aborted") {
		y.Outcome = interrupted
	}
	if already == "" || subtype != "success" {
		n.emitForMain(n.resultError(m, subtype))
	}
}

// fullAnswer returns the whole answer: a result that holds only the beginning of the
// message it is taken from is rebuilt from the message's blocks.
func fullAnswer(result, answer string) string {
	head := strings.TrimSuffix(strings.TrimSuffix(result, "…"), "...")
	if len(answer) > len(result) && strings.HasPrefix(answer, head) {
		return answer
	}
	return result
}

func (n *Normalizer) resultError(m wire.Raw, subtype string) *wire.AgentError {
	message := cmp.Or(strings.Join(stringsOf(m.Get("errors")), "; "), m.TextAt("result"))
	message = cmp.Or(message, subtype)
	p := &wire.AgentError{
		ErrorType: subtype, Message: message, Details: m, Severity: wire.SeverityError,
		Phase: "model", Status: int(integerAt(m, "api_error_status")),
	}
	switch {
	case n.tally.Outcome == interrupted:
		p.Message, p.Severity = "interrupted", wire.SeverityWarning // its own words are a diagnosis for its makers
	case subtype == "success" || subtype == "":
		p.ErrorType = agent.APIErrorType(int(integerAt(m, "api_error_status")), "")
		p.ResetsAt = n.limitOver(p.ErrorType)
	case n.inits == 0 && strings.HasPrefix(message, "No conversation found"):
		p.ErrorType, p.Phase = agent.ErrorSessionNotFound, "lifecycle"
	case n.inits == 0 && strings.HasPrefix(message, "No message found"):
		p.ErrorType, p.Phase = agent.ErrorForkPointNotFound, "lifecycle"
	}
	return p
}

// Exit is how the agent's process ended.
type Exit struct {
	Code    int    // -1 if a signal ended it
	Signal  string // such as KILL
	Stderr  string // its last words
	Reason  string // why we ended it, if we did
	Unknown bool   // it isn't ours: the input ended
	Memory  int64  // see [process.Exit]
}

func (e Exit) isFailure() bool { return !e.Unknown && (e.Code != 0 || e.Signal != "") }

// String says how the process ended.
func (e Exit) String() string {
	return process.Exit{Code: e.Code, Signal: e.Signal, Memory: e.Memory}.Text("", e.Reason, e.Stderr)
}

// Finish returns the events that end the execution: calls without a result are
// closed as interrupted, then comes agent:complete, agent:paused or agent:error,
// unless a result's error was the end. Nothing may follow.
func (n *Normalizer) Finish(at int64, exit Exit) []*wire.Event {
	n.out = nil
	if n.opt.Format == Stream || n.at == 0 {
		n.setTime(at)
	}
	n.flushTokens("", nil)
	n.closeThreads()
	n.closeCalls()
	if n.opt.Format == Transcript {
		n.endTranscript()
	} else {
		n.emitConclusion(exit)
	}
	return n.releaseEvents()
}

// emitConclusion emits the terminal event of a stream.
func (n *Normalizer) emitConclusion(exit Exit) {
	switch y := &n.tally; {
	case y.Results == 0 || y.Active:
		n.cutShort(exit)
	case y.Outcome == interrupted && (exit.Signal == "" || exit.Reason != ""): // it may have been slow to exit
		n.emitForMain(&wire.AgentPaused{Reason: "interrupted", NumTurns: y.NumTurns})
	case y.Outcome == interrupted, y.Outcome == succeeded && exit.isFailure() && exit.Reason == "":
		n.emitFatal(wire.ErrorProcessDied, "the agent "+exit.String(), exit)
	case y.Outcome == succeeded:
		n.emitComplete()
	}
}

// closeThreads emits what the last messages leave: usage that isn't final will
// not change any more, and pieces are all there is of a block.
func (n *Normalizer) closeThreads() {
	for _, t := range n.orderedThreads() {
		n.endMessage(t)
		if n.opt.Blocks != agent.BlocksAlways {
			continue
		}
		for _, kind := range []string{"thinking", "text"} {
			if b := t.givenUp[kind]; b != nil {
				n.wholeBlock(t, kind, string(b.content), "", b.number, 0)
			}
		}
	}
}

// closeCalls ends the calls that have no result.
func (n *Normalizer) closeCalls() {
	for _, id := range n.open {
		if c := n.calls[id]; !c.done {
			n.tally.CutOff = n.tally.CutOff || c.message == n.threadOf(n.root).Owner
			p := &wire.AgentTool{ToolName: c.name, ToolInput: c.input, ToolOutput: wire.Null, Error: wire.CallInterrupted}
			if n.opt.Format == Stream {
				p.DurationMs = n.millisSince(c.at)
			}
			n.endCall(id, c, p)
		}
	}
}

// cutShort reports an execution that ended without its result.
func (n *Normalizer) cutShort(exit Exit) {
	switch {
	case n.tally.Failed != "" && !exit.isFailure():
		return // the agent said why
	case n.inits == 0 && !n.tally.Active && !exit.Unknown:
		n.emitFatal(wire.ErrorStartFailed, "the agent didn't start: it "+exit.String(), exit)
	case exit.isFailure():
		n.emitFatal(wire.ErrorProcessDied, "the agent "+exit.String()+" before its result", exit)
	default:
		n.emitFatal(wire.ErrorMissingResult, "the agent ended without a result", exit)
	}
}

func (n *Normalizer) emitFatal(kind, message string, exit Exit) {
	p := &wire.AgentError{ErrorType: kind, Message: toValidUTF8(message), Severity: wire.SeverityError, Phase: "lifecycle"}
	if !exit.Unknown {
		p.Details, _ = wire.Marshal(map[string]any{
			"exitCode": int64(exit.Code), "signal": exit.Signal, "reason": exit.Reason, "stderr": toValidUTF8(exit.Stderr),
		})
	}
	n.emitForMain(p)
}

func (n *Normalizer) emitComplete() {
	y := &n.tally
	p := &wire.AgentComplete{
		Result: y.Result, StructuredOutput: y.Structured, Usage: y.Turns.largerOfEach(y.Messages), ModelUsage: y.Models,
		DurationMs: y.DurationMs, NumTurns: y.NumTurns, StopReason: y.Stop, Denials: y.Denials,
	}
	if y.Priced {
		p.TotalCostUsd = &y.Cost
	}
	n.emitForMain(p)
}
