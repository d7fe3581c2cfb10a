package kahn

import (
	"encoding/json"
	"strings"
	"time"

	"wake/pkg/wire"
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

	text    *moment         // text that isn't told yet
	calling *moment         // the last call that began
	results *moment         // all calls have their results, which isn't told yet
	open    map[string]call // calls without a result
	asked   map[string]bool // calls that a person has to decide about
	breach  bool            // it left its scope

	began                         int64
	calls, audits, passed, failed int64 // of all its executions
	failedNow                     int64
	durationMs                    int64
}

// moment is when something happened, and in which message of the model.
type moment struct {
	at    int64
	turn  int
	batch string
}

// same reports whether two are known to be of one message.
func (m moment) same(o moment) bool {
	if m.turn != 0 && o.turn != 0 {
		return m.turn == o.turn
	}
	return m.batch != "" && m.batch == o.batch
}

// call is an open tool call.
type call struct {
	moment
	name string
}

// reset begins an execution.
func (a *agent) reset(e *wire.Event) {
	a.exec, a.active, a.status, a.step = e.ExecID, true, Thinking, a.told
	a.text, a.calling, a.results, a.breach, a.failedNow = nil, nil, nil, false, 0
	clear(a.open)
	clear(a.asked)
	a.began = e.Timestamp
}

// askTool is the tool of agents by which they ask a person.
const askTool = "AskUserQuestion"

// act takes what an agent does.
func (p *Projector) act(a *agent, e *wire.Event) {
	at := e.Timestamp
	now := moment{at: at, turn: e.Turn}
	switch b := e.Payload.(type) {
	case *wire.AgentText:
		p.says(a, now, b.Content)
	case *wire.AgentTextDelta:
		p.says(a, now, b.Content)
	case *wire.AgentThinking, *wire.AgentThinkingDelta:
		p.over(a, now)
	case *wire.ToolIntent:
		now.batch = b.Batch
		p.intent(a, e, b, now)
	case *wire.AgentTool:
		p.result(a, e, b, now)
	case *wire.PermissionRequired:
		p.ask(a, at, e.CallID, "approval:"+b.ToolName)
	case *wire.PermissionDecided:
		p.answered(a, at, e.CallID)
	case *wire.CCMessage:
		if b.Priority != wire.PriorityInfo {
			p.ask(a, at, "", string(b.Priority))
		}
	case *wire.UserMessage:
		p.answered(a, at, "")
	case *wire.TurnStart:
		p.settle(a)
		if a.status == Reflect || a.status == Response {
			p.walk(a, at, Thinking)
		}
	case *wire.TurnEnd:
		p.settle(a)
		if a.status == Response || a.status == ToolResult {
			p.walk(a, at, Reflect)
		}
	case *wire.AgentComplete:
		p.settle(a)
	case *wire.AgentAborted:
		p.conclude(a, e, ending{kind: external, cause: "aborted"})
	}
}

// says takes text, which is told once its message is over.
func (p *Projector) says(a *agent, now moment, content string) {
	if strings.TrimSpace(content) == "" || a.calling != nil && a.calling.same(now) {
		return // nothing, or what is said beside a call
	}
	p.over(a, now)
	p.unblock(a, now.at)
	if a.text != nil && !a.text.same(now) && now.turn != 0 {
		p.tell(a)
	}
	a.text = &now
}

// over tells the results of the message before, when another one has begun.
func (p *Projector) over(a *agent, now moment) {
	if a.results != nil && !a.results.same(now) {
		p.returned(a)
	}
}

// returned tells that all calls of a message have their results.
func (p *Projector) returned(a *agent) {
	if a.results == nil {
		return
	}
	at := a.results.at
	a.results = nil
	if a.status == ToolCall {
		p.move(a, at, ToolResult, "")
	}
}

// settle tells what waits, since the message is over.
func (p *Projector) settle(a *agent) {
	p.returned(a)
	p.tell(a)
}

// tell tells text that turned out to be a response. KAHN has no way from thinking
// to there without a tool.
func (p *Projector) tell(a *agent) {
	if a.text == nil {
		return
	}
	at := a.text.at
	a.text = nil
	switch a.status {
	case ToolResult:
		p.move(a, at, Response, "")
	case Reflect, Blocked:
		p.walk(a, at, Thinking)
		p.move(a, at, Response, ExtensionPrefix+"no_tool")
	case Thinking:
		p.move(a, at, Response, ExtensionPrefix+"no_tool")
	default: // it speaks while tools run, or goes on with its response
	}
}

// intent takes a tool call that is about to begin.
func (p *Projector) intent(a *agent, e *wire.Event, b *wire.ToolIntent, now moment) {
	if a.results != nil && a.results.same(now) {
		a.results = nil // its message goes on
	}
	p.returned(a)
	if a.text != nil && (a.text.same(now) || a.text.turn == 0 || now.turn == 0) {
		a.text = nil // a preamble
	}
	p.tell(a)
	a.open[e.CallID], a.calling = call{now, b.ToolName}, &now
	if b.ToolName == askTool {
		p.ask(a, now.at, e.CallID, "question")
		return
	}
	p.unblock(a, now.at)
	if a.status != Blocked {
		p.toCall(a, now.at, b.ToolName)
	}
}

// toCall moves an agent to a tool call.
func (p *Projector) toCall(a *agent, at int64, tool string) {
	if a.status != ToolCall {
		p.walk(a, at, Thinking)
		p.move(a, at, ToolCall, "tool_call:"+Redact(tool))
	}
}

// result takes a finished call.
func (p *Projector) result(a *agent, e *wire.Event, b *wire.AgentTool, now moment) {
	c, known := a.open[e.CallID]
	delete(a.open, e.CallID)
	if e.CallID != "" {
		p.answered(a, now.at, e.CallID)
	}
	p.scope(a, b)
	if known {
		now.batch = c.batch
		if c.turn != 0 {
			now.turn = c.turn
		}
	}
	if a.status != Blocked { // another call may wait for a decision
		if a.status != ToolCall {
			p.settle(a)
		}
		p.toCall(a, now.at, b.ToolName)
	}
	a.told = a.step + 1
	p.emit(p.line(now.at, a, invocation(a.step, b, c, known, now.at)))
	a.calls++
	if len(a.open) == 0 && a.status == ToolCall {
		a.results = &now
	}
}

func invocation(step int64, b *wire.AgentTool, c call, known bool, at int64) *ToolInvocation {
	body := &ToolInvocation{
		Step: step, ToolName: b.ToolName, OK: b.Error == "" && !b.Denied,
		InputSummary: summaryOf(b.ToolInput), OutputSummary: summaryOf(b.ToolOutput),
	}
	switch {
	case b.DurationMs != nil:
		body.DurationS = secondsOf(*b.DurationMs)
	case known:
		body.DurationS = secondsOf(at - c.at)
	}
	switch {
	case b.Error != "":
		body.Error = new(Summary(b.Error))
	case b.Denied:
		body.Error = new("denied")
	}
	return body
}

// ask blocks an agent until somebody has answered. A call that was announced is
// closed first.
func (p *Projector) ask(a *agent, at int64, call, reason string) {
	p.settle(a)
	if call != "" {
		a.asked[call] = true
	}
	if a.status != Blocked {
		p.walk(a, at, Thinking)
		p.move(a, at, Blocked, Redact(reason))
	}
}

// answered takes the answer to one question; to the agent's own, if call is "".
func (p *Projector) answered(a *agent, at int64, call string) {
	if call != "" && !a.asked[call] {
		return
	}
	delete(a.asked, call)
	if a.status == Blocked && len(a.asked) == 0 {
		p.move(a, at, Thinking, "operator response")
	}
}

// unblock goes on with an agent that didn't wait for an answer.
func (p *Projector) unblock(a *agent, at int64) {
	if a.status == Blocked && len(a.asked) == 0 {
		p.move(a, at, Thinking, implicit)
	}
}

// resumed goes on with an agent after an interruption: with a new message.
func (p *Projector) resumed(a *agent, e *wire.Event) {
	p.settle(a)
	clear(a.open)
	clear(a.asked)
	p.walk(a, e.Timestamp, Thinking)
}

// implicit is the reason of transitions that follow from others.
const implicit = "implicit"

// next is where an agent goes by itself, without a decision of its own.
var next = map[Status]Status{ToolCall: ToolResult, ToolResult: Response, Response: Reflect, Reflect: Thinking, Blocked: Thinking}

// walk brings an agent to a status by legal transitions that follow from each
// other. Beyond thinking nothing follows by itself.
func (p *Projector) walk(a *agent, at int64, to Status) {
	reason := implicit
	if a.status == Response || a.status == Reflect {
		reason = "" // the usual way
	}
	for a.status != to {
		hop, ok := next[a.status]
		if !ok {
			return
		}
		p.move(a, at, hop, reason)
	}
}

// move tells a transition. One that KAHN doesn't know is left out if the projection
// is strict, and the agent stays where it was.
func (p *Projector) move(a *agent, at int64, to Status, reason string) {
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
	p.emit(p.line(at, a, b))
}

// lastMs is the last millisecond of the year 9999.
const lastMs = 253402300799999

// timeOf is a time as lines have it.
func timeOf(ms int64) string {
	return time.UnixMilli(min(max(ms, 0), lastMs)).UTC().Format(timeLayout)
}

func secondsOf(ms int64) float64 { return float64(max(ms, 0)) / 1000 }

func extOf(name string) json.RawMessage {
	value, err := wire.Marshal(map[string]any{"agent": strings.ToValidUTF8(name, "\uFFFD")})
	if err != nil {
		return json.RawMessage("{}")
	}
	b, err := wire.AppendJSON(nil, value)
	if err != nil {
		return json.RawMessage("{}")
	}
	return b
}
