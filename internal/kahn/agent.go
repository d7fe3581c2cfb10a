package kahn

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// agent is where an agent is. Text and results are told when the message of the
// model is known to be over: text in front of a tool call is a preamble, and
// calls of one message end together.
type agent struct {
	key    agentKey
	id     string
	exec   string
	active bool // between its start and its end
	status Status
	step   int64
	told   int64  // last step of a line + 1
	cwd    string // of the node's own agent

	text    *moment // text that isn't told yet
	calling *moment // the last call that began
	results *moment // all calls have their results, which isn't told yet
	breach  bool    // it left its scope

	began                         int64
	calls, audits, passed, failed int64 // of all its executions
	failedNow                     int64
	durationMs                    int64
	spent                         wire.Spending // by its model calls; of a node's own agent with what only results tell
}

// moment is when something happened, and in which message of the model.
type moment struct {
	at    int64
	turn  int
	batch string
}

// isSame reports whether two are known to be of one message.
func (m moment) isSame(o moment) bool {
	if m.turn != 0 && o.turn != 0 {
		return m.turn == o.turn
	}
	return m.batch != "" && m.batch == o.batch
}

func (a *agent) beginExecution(e *wire.Event) {
	a.exec, a.active, a.status, a.step = e.ExecID, true, Thinking, a.told
	a.text, a.calling, a.results, a.breach, a.failedNow = nil, nil, nil, false, 0
	a.began = e.Timestamp
}

// handleAgentEvent takes what an agent does.
func (p *Projector) handleAgentEvent(a *agent, e *wire.Event, step conversation.Step) {
	at := e.Timestamp
	now := moment{at: at, turn: e.Turn}
	if step.Answered {
		p.unblockAgent(a, at, step.Thread)
	}
	switch b := e.Payload.(type) {
	case *wire.AgentText:
		p.noteText(a, now, b.Content)
	case *wire.AgentTextDelta:
		p.noteText(a, now, b.Content)
	case *wire.AgentThinking, *wire.AgentThinkingDelta:
		p.flushOldResults(a, now)
	case *wire.ToolIntent:
		now.batch = b.Batch
		p.beginCall(a, step, now)
		if kind, ok := b.ToolInput.Get("subagent_type").Text(); ok && kind != "" {
			p.names[agentKey{e.NodeID, e.CallID}] = kind
		}
	case *wire.TurnStart:
		p.settleTurn(a)
		if a.status == Reflect || a.status == Response {
			p.walkToStatus(a, at, Thinking)
		}
	case *wire.TurnEnd:
		p.settleTurn(a)
		if a.status == Response || a.status == ToolResult {
			p.walkToStatus(a, at, Reflect)
		}
	case *wire.AgentComplete:
		p.settleTurn(a)
	case *wire.AgentAborted:
		p.endAgent(a, e, ending{kind: external, cause: "aborted"})
	}
	if step.Result != nil {
		p.endCall(a, step, now)
	}
	if a.active && step.Thread != nil && step.Thread.Blocked() {
		p.blockAgent(a, at, step.Thread)
	}
}

// noteText takes text, which is told once its message is over.
func (p *Projector) noteText(a *agent, now moment, content string) {
	if strings.TrimSpace(content) == "" || a.calling != nil && a.calling.isSame(now) {
		return // nothing, or what is said beside a call
	}
	p.flushOldResults(a, now)
	if a.text != nil && !a.text.isSame(now) && now.turn != 0 {
		p.flushText(a)
	}
	a.text = &now
}

// flushOldResults tells the results of the message before, when another one has begun.
func (p *Projector) flushOldResults(a *agent, now moment) {
	if a.results != nil && !a.results.isSame(now) {
		p.flushResults(a)
	}
}

// flushResults tells that all calls of a message have their results.
func (p *Projector) flushResults(a *agent) {
	if a.results == nil {
		return
	}
	at := a.results.at
	a.results = nil
	if a.status == ToolCall {
		p.moveToStatus(a, at, ToolResult, "")
	}
}

// flushPending tells what waits, since the message is over.
func (p *Projector) flushPending(a *agent) {
	p.flushResults(a)
	p.flushText(a)
}

// settleTurn settles an agent after its turn is over. If the agent waits for a person, its last words may
// have said so.
func (p *Projector) settleTurn(a *agent) {
	if a.status != Blocked {
		p.flushPending(a)
	}
}

// goesOn has an agent that waits go on at a time, with what it has said meanwhile.
func (p *Projector) goesOn(a *agent, at int64) {
	if a.status == Blocked && a.text != nil {
		a.text.at = at
	}
}

// flushText tells text that turned out to be a response. KAHN has no way from thinking
// to there without a tool.
func (p *Projector) flushText(a *agent) {
	if a.text == nil {
		return
	}
	at := a.text.at
	a.text = nil
	switch a.status {
	case ToolResult:
		p.moveToStatus(a, at, Response, "")
	case Reflect, Blocked:
		p.walkToStatus(a, at, Thinking)
		p.moveToStatus(a, at, Response, ExtensionPrefix+"no_tool")
	case Thinking:
		p.moveToStatus(a, at, Response, ExtensionPrefix+"no_tool")
	default: // it speaks while tools run, or goes on with its response
	}
}

// beginCall takes a tool call that is about to begin.
func (p *Projector) beginCall(a *agent, step conversation.Step, now moment) {
	if a.results != nil && a.results.isSame(now) {
		a.results = nil // its message goes on
	}
	p.flushResults(a)
	if a.text != nil && (a.text.isSame(now) || a.text.turn == 0 || now.turn == 0) {
		a.text = nil // a preamble
	}
	p.goesOn(a, now.at)
	p.flushText(a)
	a.calling = &now
	if !step.Thread.Blocked() {
		p.walkToCall(a, now.at, step.Call.Tool)
	}
}

func (p *Projector) walkToCall(a *agent, at int64, tool string) {
	if a.status != ToolCall {
		p.walkToStatus(a, at, Thinking)
		p.moveToStatus(a, at, ToolCall, "tool_call:"+Redact(tool))
	}
}

// endCall takes a finished call. It has the step of a transition to a call: of an agent that
// waits because of another one, that is told again.
func (p *Projector) endCall(a *agent, step conversation.Step, now moment) {
	p.checkScope(a, step)
	if step.Known {
		now.batch = step.Call.Batch
		if step.Call.Turn != 0 {
			now.turn = step.Call.Turn
		}
	}
	if a.status != ToolCall && a.status != Blocked {
		p.flushPending(a)
	}
	p.walkToCall(a, now.at, step.Call.Tool)
	a.told = a.step + 1
	p.emitLine(p.newLine(now.at, a, invocationOf(a.step, step)))
	a.calls++
	if len(step.Thread.Calls) == 0 {
		a.results = &now
	}
}

func invocationOf(at int64, step conversation.Step) *ToolInvocation {
	b := step.Result
	body := &ToolInvocation{
		Step: at, ToolName: b.ToolName, OK: b.Error == "" && !b.Denied, DurationS: secondsOf(step.TookMs),
		InputSummary: summaryOf(b.ToolInput), OutputSummary: summaryOf(b.ToolOutput),
	}
	switch {
	case b.Error != "":
		body.Error = new(Summary(b.Error))
	case b.Denied:
		body.Error = new("denied")
	}
	return body
}

// blockAgent blocks an agent until a person has answered. A call that was announced is
// closed first.
func (p *Projector) blockAgent(a *agent, at int64, th *conversation.Thread) {
	if a.status == Blocked {
		return
	}
	p.flushPending(a)
	p.walkToStatus(a, at, Thinking)
	p.moveToStatus(a, at, Blocked, Redact(th.Wants()))
}

// unblockAgent goes on with an agent that has an answer, unless it waits for another one.
func (p *Projector) unblockAgent(a *agent, at int64, th *conversation.Thread) {
	if a.status == Blocked && !th.Blocked() {
		a.text = nil // it said that it waits
		p.moveToStatus(a, at, Thinking, "operator response")
	}
}

// resumeAgent goes on with an agent after an interruption: with a new message.
func (p *Projector) resumeAgent(a *agent, e *wire.Event) {
	p.goesOn(a, e.Timestamp)
	p.flushPending(a)
	p.walkToStatus(a, e.Timestamp, Thinking)
}

// implicitReason is the reason of transitions that follow from others.
const implicitReason = "implicit"

// nextStatus is where an agent goes by itself, without a decision of its own.
var nextStatus = map[Status]Status{ToolCall: ToolResult, ToolResult: Response, Response: Reflect, Reflect: Thinking, Blocked: Thinking}

// walkToStatus brings an agent to a status by legal transitions that follow from each
// other. Beyond thinking nothing follows by itself.
func (p *Projector) walkToStatus(a *agent, at int64, to Status) {
	reason := implicitReason
	if a.status == Response || a.status == Reflect {
		reason = "" // the usual way
	}
	for a.status != to {
		hop, ok := nextStatus[a.status]
		if !ok {
			return
		}
		p.moveToStatus(a, at, hop, reason)
	}
}

// moveToStatus tells a transition. One that KAHN doesn't know is left out if the projection
// is strict, and the agent stays where it was.
func (p *Projector) moveToStatus(a *agent, at int64, to Status, reason string) {
	if !Legal(a.status, to) && p.Strict {
		p.Dropped++
		return
	}
	if a.status == Reflect && to == Thinking {
		a.step++
	}
	b := &Transition{Step: a.step, From: a.status, To: to}
	if reason != "" {
		b.Reason = &reason
	}
	a.status = to
	a.told = a.step + 1
	p.emitLine(p.newLine(at, a, b))
}

// lastMs is the last millisecond of the year 9999.
const lastMs = 253402300799999

func timeOf(ms int64) string {
	return time.UnixMilli(min(max(ms, 0), lastMs)).UTC().Format(timeLayout)
}

func secondsOf(ms int64) float64 { return float64(max(ms, 0)) / 1000 }

// extension is what lines say beyond KAHN, in ext.
type extension struct {
	Agent     string   `json:"agent,omitempty"`
	TokensIn  *int64   `json:"tokens_in,omitempty"` // those of the cache included
	TokensOut *int64   `json:"tokens_out,omitempty"`
	CostUsd   *float64 `json:"cost_usd,omitempty"` // absent: nothing is known
	CostBasis string   `json:"cost_basis,omitempty"`
}

// spendingOf is what an agent has used and cost, nil if it made no model call.
func spendingOf(s wire.Spending) *extension {
	if s == (wire.Spending{}) {
		return nil
	}
	x := &extension{TokensIn: new(ledger.TokensIn(s)), TokensOut: &s.OutputTokens, CostBasis: ledger.Basis(s.CostUsd, s.ComputedUsd, s.Unpriced)}
	if x.CostBasis != "" && (s.CostUsd > 0 || x.CostBasis != wire.CostPartly) {
		x.CostUsd = &s.CostUsd
	}
	return x
}

// Spending returns what a line says that its agent has used and cost in the run so far, all tokens of its input as one number;
// zero if it says nothing of that.
func (e *Event) Spending() (s wire.Spending) {
	var x extension
	i := slices.IndexFunc(e.Unknown, func(f Field) bool { return f.Name == "ext" })
	if i < 0 || json.Unmarshal(e.Unknown[i].Value, &x) != nil {
		return s
	}
	s.InputTokens, s.OutputTokens = max(0, wire.ValueOf(x.TokensIn)), max(0, wire.ValueOf(x.TokensOut))
	s.CostUsd = min(max(0, wire.ValueOf(x.CostUsd)), wire.MaxCostUsd)
	switch x.CostBasis {
	case wire.CostComputed:
		s.ComputedUsd = s.CostUsd
	case wire.CostPartly:
		s.Unpriced = 1
	}
	return s
}

// addExtension says on a line what KAHN has no field for.
func (e *Event) addExtension(x *extension) {
	b, err := json.Marshal(x)
	if err == nil {
		e.Unknown = []Field{{Name: "ext", Value: b}}
	}
}
