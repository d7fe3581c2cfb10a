package client

import (
	"iter"
	"strings"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Channel is one of the three ways in which an agent tells what it does.
type Channel string

// The channels.
const (
	Progress Channel = "progress" // what it says and does, piece by piece
	Control  Channel = "control"  // what waits for a decision
	Monitor  Channel = "monitor"  // what an operator wants to know
)

// Event is what an agent tells. Which fields are set depends on Type.
type Event struct {
	Channel Channel
	Type    string // see [Subscribe]

	Node, Exec string
	Step       int // turn of the agent

	Delta string // think_chunk, text_chunk
	Text  string // think_chunk_end, text_chunk_end: the whole; cc_message
	Call  *Call  // tool:*, tool_executed, permission_*

	Reason   string // done: completed or interrupted; state_changed: why
	State    string // state_changed: READY, WORKING or PAUSED
	Message  string // error, storage_failure; done: the result
	Severity string // error: info, warn or error
	Phase    string // error: model, tool, system or lifecycle

	Decision, By, Note string   // permission_decided
	Strategy           string   // agent_resumed
	Sealed             []string // agent_resumed: calls
	Previous, Current  string   // breakpoint_changed
	Path, Change       string   // file_changed

	Wire *wire.Event // what it was made of, with all that there is

	respond func(allow bool, note string) error
}

// Call is a tool call.
type Call struct {
	ID              string
	Name            string
	Input, Output   wire.Raw
	State           wire.ToolCallState
	Error           string
	DurationMs      int64
	Recommendations []string // of a call that a crash interrupted
}

// progressTypes are the events that only a subscription gets.
var progressTypes = map[string]bool{
	"think_chunk_start": true, "think_chunk": true, "think_chunk_end": true,
	"text_chunk_start": true, "text_chunk": true, "text_chunk_end": true,
	"tool:start": true, "tool:end": true, "tool:error": true, "done": true,
}

// heardTypes are the events that listeners get.
var heardTypes = []string{
	"agent_resumed", "breakpoint_changed", "cc_message", "context_compression", "error", "file_changed", "permission_decided",
	"permission_required", "state_changed", "step_complete", "storage_failure", "todo_changed", "token_usage", "tool_executed",
}

// projection makes the events of a subscription of those of the log. It is pure:
// the same events make the same.
type projection struct {
	talks  map[string]*conversation.Conversation // by node
	agents map[speaker]*agentView
	out    []Event
	in     *wire.Event
}

// speaker is the agent of a node, or the sub-agent that a call of it has begun.
type speaker struct{ node, parent string }

// agentView is what a projection remembers of an agent besides its conversation.
type agentView struct {
	block      string // text or think, while pieces of one come
	number     int    // of the block
	text       strings.Builder
	breakpoint string
}

// projectEvent returns what an event at a position means.
func (p *projection) projectEvent(pos uint64, e *wire.Event) []Event {
	p.out, p.in = nil, e
	who := speaker{e.Node(), e.Parent}
	v := p.agents[who]
	if v == nil {
		v = &agentView{}
		p.agents[who] = v
	}
	talk := p.talks[who.node]
	if talk == nil {
		talk = &conversation.Conversation{}
		p.talks[who.node] = talk
	}
	step := talk.Apply(pos, e)
	switch d := e.Payload.(type) {
	case *wire.AgentThinkingDelta:
		p.emitPiece(v, "think", d.Block, d.Content)
	case *wire.AgentTextDelta:
		p.emitPiece(v, "text", d.Block, d.Content)
	case *wire.AgentThinking:
		p.emitWhole(v, "think", d.Block, d.Content)
	case *wire.AgentText:
		p.emitWhole(v, "text", d.Block, d.Content)
	default:
		p.emitFlow()
		p.emitLifecycle(v)
		p.emitTool(v, step)
		p.emitFacts()
	}
	return p.out
}

func (p *projection) emitEvent(c Channel, kind string, e Event) {
	e.Channel, e.Type, e.Wire = c, kind, p.in
	e.Node, e.Exec, e.Step = p.in.Node(), p.in.ExecID, p.in.Turn
	p.out = append(p.out, e)
}

// emitPiece tells of a streamed piece, and where a block begins.
func (p *projection) emitPiece(v *agentView, kind string, number int, content string) {
	if v.block != kind || v.number != number {
		p.closeBlock(v)
		v.block, v.number = kind, number
		p.setBreakpoint(v, "STREAMING_MODEL")
		p.emitEvent(Progress, kind+"_chunk_start", Event{})
	}
	v.text.WriteString(content)
	p.emitEvent(Progress, kind+"_chunk", Event{Delta: content})
}

// emitWhole tells of a block that wasn't streamed; of one that was, its end.
func (p *projection) emitWhole(v *agentView, kind string, number int, content string) {
	if v.block != kind || v.number != number {
		p.emitPiece(v, kind, number, content)
	}
	v.text.Reset()
	v.text.WriteString(content)
	p.closeBlock(v)
}

func (p *projection) closeBlock(v *agentView) {
	if v.block == "" {
		return
	}
	p.emitEvent(Progress, v.block+"_chunk_end", Event{Text: v.text.String()})
	v.block = ""
	v.text.Reset()
}

// setBreakpoint tells of a step of the agent's state machine.
func (p *projection) setBreakpoint(v *agentView, step string) {
	if p.in.Parent != "" || v.breakpoint == step {
		return
	}
	p.emitEvent(Monitor, "breakpoint_changed", Event{Previous: v.breakpoint, Current: step})
	v.breakpoint = step
}

// emitFlow tells how the run is.
func (p *projection) emitFlow() {
	state := func(s, why string) { p.emitEvent(Monitor, "state_changed", Event{State: s, Reason: why}) }
	switch d := p.in.Payload.(type) {
	case *wire.FlowStart, *wire.RunForked:
		state("WORKING", "started")
	case *wire.FlowPaused:
		state("PAUSED", d.Reason)
	case *wire.FlowResumed:
		if !d.Hold {
			state("WORKING", "resumed")
		}
	case *wire.FlowComplete:
		state("READY", string(d.Status))
	case *wire.FlowAborted:
		state("READY", "aborted")
	}
}

// emitLifecycle tells of the turns and the end of an agent.
func (p *projection) emitLifecycle(v *agentView) {
	switch d := p.in.Payload.(type) {
	case *wire.AgentStart:
		p.closeBlock(v)
		p.setBreakpoint(v, "READY")
	case *wire.TurnStart:
		p.setBreakpoint(v, "PRE_MODEL")
	case *wire.TurnEnd:
		p.closeBlock(v)
		p.emitEvent(Monitor, "step_complete", Event{Reason: d.StopReason})
		p.setBreakpoint(v, "READY")
	case *wire.AgentComplete:
		p.closeBlock(v)
		p.setBreakpoint(v, "READY")
		p.emitEvent(Progress, "done", Event{Reason: "completed", Message: d.Result})
	case *wire.AgentPaused:
		p.closeBlock(v)
		p.emitEvent(Progress, "done", Event{Reason: "interrupted", Message: d.Reason})
	case *wire.AgentAborted:
		p.closeBlock(v)
		p.emitEvent(Progress, "done", Event{Reason: "interrupted", Message: d.Reason})
	case *wire.AgentResumed:
		p.emitEvent(Monitor, "agent_resumed", Event{Strategy: d.Strategy, Sealed: d.Sealed})
	case *wire.BreakpointChanged:
		p.setBreakpoint(v, d.Current)
	}
}

// emitTool tells of tool calls and of permissions, and what follows for the agent.
func (p *projection) emitTool(v *agentView, step conversation.Step) {
	c := func() *Call {
		return &Call{ID: step.Call.ID, Name: step.Call.Tool, Input: step.Call.Input, State: step.Call.State}
	}
	switch d := p.in.Payload.(type) {
	case *wire.ToolIntent:
		p.closeBlock(v)
		p.emitEvent(Progress, "tool:start", Event{Call: c()})
	case *wire.ToolState:
	case *wire.PermissionRequired:
		p.emitEvent(Control, "permission_required", Event{Call: c(), Message: d.Description})
	case *wire.PermissionDecided:
		p.emitEvent(Control, "permission_decided", Event{Call: c(), Decision: string(d.Decision), By: d.By, Note: d.Note})
	case *wire.ToolSealed:
		sealed := c()
		sealed.Error, sealed.Recommendations = d.Message, d.Recommendations
		p.emitEvent(Progress, "tool:end", Event{Call: sealed})
	default:
		if step.Result == nil {
			return
		}
		if step.Call.State != wire.ToolSealedState { // else its end was told
			p.toolEnd(c(), step)
		}
	}
	p.setBreakpoint(v, run.Breakpoint(callStates(step.Thread)))
}

// toolEnd tells of a result.
func (p *projection) toolEnd(c *Call, step conversation.Step) {
	d := step.Result
	c.Output, c.Error = d.ToolOutput, d.Error
	if c.State == wire.ToolFailed {
		p.emitEvent(Progress, "tool:error", Event{Call: new(*c), Message: d.Error})
	}
	if d.DurationMs != nil {
		c.DurationMs = *d.DurationMs
	}
	p.emitEvent(Progress, "tool:end", Event{Call: new(*c)})
	p.emitEvent(Monitor, "tool_executed", Event{Call: c})
}

// callStates yields the states of an agent's open calls.
func callStates(th *conversation.Thread) iter.Seq[wire.ToolCallState] {
	return func(yield func(wire.ToolCallState) bool) {
		for i := range th.Calls {
			if !yield(th.Calls[i].State) {
				return
			}
		}
	}
}

// emitFacts emits the events that need no memory.
func (p *projection) emitFacts() {
	switch d := p.in.Payload.(type) {
	case *wire.AgentError:
		severity := "error"
		switch d.Severity {
		case wire.SeverityInfo:
			severity = "info"
		case wire.SeverityWarning:
			severity = "warn"
		default:
		}
		p.emitEvent(Monitor, "error", Event{Message: d.Message, Severity: severity, Phase: d.Phase})
	case *wire.NodeError:
		p.emitEvent(Monitor, "error", Event{Message: d.Error, Severity: "error", Phase: "lifecycle"})
	case *wire.Usage:
		p.emitEvent(Monitor, "token_usage", Event{})
	case *wire.TodoChanged:
		p.emitEvent(Monitor, "todo_changed", Event{})
	case *wire.FileChanged:
		p.emitEvent(Monitor, "file_changed", Event{Path: d.Path, Change: d.Change})
	case *wire.Compaction:
		p.emitEvent(Monitor, "context_compression", Event{Message: d.Summary})
	case *wire.StorageFailure:
		p.emitEvent(Monitor, "storage_failure", Event{Message: d.Message})
	case *wire.CCMessage:
		p.emitEvent(Control, "cc_message", Event{Text: d.Text, Severity: string(d.Priority)})
	}
}
