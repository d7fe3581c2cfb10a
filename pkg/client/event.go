package client

import (
	"iter"
	"strings"

	"wake/internal/run"
	"wake/pkg/wire"
)

// Channel is one of the three ways in which an agent tells what it does.
type Channel string

// The channels.
const (
	Progress Channel = "progress" // what it says and does, piece by piece
	Control  Channel = "control"  // what waits for somebody's decision
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
var progressTypes = map[string]bool{ //nolint:gochecknoglobals // constant
	"think_chunk_start": true, "think_chunk": true, "think_chunk_end": true,
	"text_chunk_start": true, "text_chunk": true, "text_chunk_end": true,
	"tool:start": true, "tool:end": true, "tool:error": true, "done": true,
}

// projection makes the events of a subscription of those of the log. It is pure:
// the same events make the same.
type projection struct {
	agents map[speaker]*agentView
	out    []Event
	in     *wire.Event
}

// speaker is the agent of a node, or the sub-agent that a call of it has begun.
type speaker struct{ node, parent string }

// agentView is what a projection remembers of an agent.
type agentView struct {
	block      string // text or think, while pieces of one come
	number     int    // of the block
	text       strings.Builder
	breakpoint string
	calls      map[string]*Call
	sealed     map[string]bool
}

func newProjection() *projection { return &projection{agents: map[speaker]*agentView{}} }

// take returns what an event means.
func (p *projection) take(e *wire.Event) []Event {
	p.out, p.in = nil, e
	who := speaker{e.Node(), e.Parent}
	v := p.agents[who]
	if v == nil {
		v = &agentView{calls: map[string]*Call{}, sealed: map[string]bool{}}
		p.agents[who] = v
	}
	switch d := e.Payload.(type) {
	case *wire.AgentThinkingDelta:
		p.piece(v, "think", d.Block, d.Content)
	case *wire.AgentTextDelta:
		p.piece(v, "text", d.Block, d.Content)
	case *wire.AgentThinking:
		p.whole(v, "think", d.Block, d.Content)
	case *wire.AgentText:
		p.whole(v, "text", d.Block, d.Content)
	default:
		p.flow()
		p.lifecycle(v)
		p.tool(v)
		p.facts()
	}
	return p.out
}

func (p *projection) emit(c Channel, kind string, e Event) {
	e.Channel, e.Type, e.Wire = c, kind, p.in
	e.Node, e.Exec, e.Step = p.in.Node(), p.in.ExecID, p.in.Turn
	p.out = append(p.out, e)
}

// piece tells of a streamed piece, and where a block begins.
func (p *projection) piece(v *agentView, kind string, number int, content string) {
	if v.block != kind || v.number != number {
		p.closeBlock(v)
		v.block, v.number = kind, number
		p.at(v, "STREAMING_MODEL")
		p.emit(Progress, kind+"_chunk_start", Event{})
	}
	v.text.WriteString(content)
	p.emit(Progress, kind+"_chunk", Event{Delta: content})
}

// whole tells of a block that wasn't streamed; of one that was, its end.
func (p *projection) whole(v *agentView, kind string, number int, content string) {
	if v.block != kind || v.number != number {
		p.piece(v, kind, number, content)
	}
	v.text.Reset()
	v.text.WriteString(content)
	p.closeBlock(v)
}

func (p *projection) closeBlock(v *agentView) {
	if v.block == "" {
		return
	}
	p.emit(Progress, v.block+"_chunk_end", Event{Text: v.text.String()})
	v.block = ""
	v.text.Reset()
}

// at tells of a step of the agent's state machine.
func (p *projection) at(v *agentView, step string) {
	if p.in.Parent != "" || v.breakpoint == step {
		return
	}
	p.emit(Monitor, "breakpoint_changed", Event{Previous: v.breakpoint, Current: step})
	v.breakpoint = step
}

// flow tells how the run is.
func (p *projection) flow() {
	state := func(s, why string) { p.emit(Monitor, "state_changed", Event{State: s, Reason: why}) }
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

// lifecycle tells of the turns and the end of an agent.
func (p *projection) lifecycle(v *agentView) {
	switch d := p.in.Payload.(type) {
	case *wire.AgentStart:
		p.closeBlock(v)
		clear(v.calls)
		p.at(v, "READY")
	case *wire.TurnStart:
		p.at(v, "PRE_MODEL")
	case *wire.TurnEnd:
		p.closeBlock(v)
		p.emit(Monitor, "step_complete", Event{Reason: d.StopReason})
		p.at(v, "READY")
	case *wire.AgentComplete:
		p.closeBlock(v)
		p.at(v, "READY")
		p.emit(Progress, "done", Event{Reason: "completed", Message: d.Result})
	case *wire.AgentPaused:
		p.closeBlock(v)
		p.emit(Progress, "done", Event{Reason: "interrupted", Message: d.Reason})
	case *wire.AgentAborted:
		p.closeBlock(v)
		p.emit(Progress, "done", Event{Reason: "interrupted", Message: d.Reason})
	case *wire.AgentResumed:
		p.emit(Monitor, "agent_resumed", Event{Strategy: d.Strategy, Sealed: d.Sealed})
	case *wire.BreakpointChanged:
		p.at(v, d.Current)
	}
}

// tool tells of tool calls and of permissions, and what follows for the agent.
func (p *projection) tool(v *agentView) {
	id := p.in.CallID
	switch d := p.in.Payload.(type) {
	case *wire.ToolIntent:
		p.closeBlock(v)
		v.calls[id] = &Call{ID: id, Name: d.ToolName, Input: d.ToolInput, State: wire.ToolPending}
		p.emit(Progress, "tool:start", Event{Call: v.copy(id)})
	case *wire.ToolState:
		v.call(id).State = d.To
	case *wire.PermissionRequired:
		c := v.call(id)
		c.Name, c.Input, c.State = d.ToolName, d.ToolInput, wire.ToolApprovalRequired
		p.emit(Control, "permission_required", Event{Call: v.copy(id), Message: d.Description})
	case *wire.PermissionDecided:
		v.call(id).State = wire.ToolDenied
		if d.Decision == wire.DecisionAllow {
			v.call(id).State = wire.ToolApproved
		}
		p.emit(Control, "permission_decided", Event{Call: v.copy(id), Decision: string(d.Decision), By: d.By, Note: d.Note})
	case *wire.ToolSealed:
		c := v.call(id)
		c.Name, c.State, c.Error, c.Recommendations = d.ToolName, wire.ToolSealedState, d.Message, d.Recommendations
		p.emit(Progress, "tool:end", Event{Call: v.copy(id)})
		v.sealed[id] = true
	case *wire.AgentTool:
		p.toolEnd(v, id, d)
	default:
		return
	}
	p.at(v, run.Breakpoint(v.states()))
}

// toolEnd tells of a result. That of a sealed call has been told.
func (p *projection) toolEnd(v *agentView, id string, d *wire.AgentTool) {
	c := v.call(id)
	defer delete(v.calls, id)
	if v.sealed[id] {
		delete(v.sealed, id)
		return
	}
	c.Name, c.Input, c.Output, c.Error, c.State = d.ToolName, d.ToolInput, d.ToolOutput, d.Error, wire.ToolCompleted
	switch {
	case d.Denied:
		c.State = wire.ToolDenied
	case d.Error != "":
		c.State = wire.ToolFailed
		p.emit(Progress, "tool:error", Event{Call: v.copy(id), Message: d.Error})
	}
	if d.DurationMs != nil {
		c.DurationMs = *d.DurationMs
	}
	p.emit(Progress, "tool:end", Event{Call: v.copy(id)})
	p.emit(Monitor, "tool_executed", Event{Call: v.copy(id)})
}

// states yields the states of the open calls.
func (v *agentView) states() iter.Seq[wire.ToolCallState] {
	return func(yield func(wire.ToolCallState) bool) {
		for _, c := range v.calls {
			if !yield(c.State) {
				return
			}
		}
	}
}

func (v *agentView) call(id string) *Call {
	c := v.calls[id]
	if c == nil { // it began before the subscription
		c = &Call{ID: id}
		v.calls[id] = c
	}
	return c
}

// copy returns the call as it is now: what was told doesn't change.
func (v *agentView) copy(id string) *Call { return new(*v.call(id)) }

// facts tells of what needs no memory.
func (p *projection) facts() {
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
		p.emit(Monitor, "error", Event{Message: d.Message, Severity: severity, Phase: d.Phase})
	case *wire.NodeError:
		p.emit(Monitor, "error", Event{Message: d.Error, Severity: "error", Phase: "lifecycle"})
	case *wire.Usage:
		p.emit(Monitor, "token_usage", Event{})
	case *wire.TodoChanged:
		p.emit(Monitor, "todo_changed", Event{})
	case *wire.FileChanged:
		p.emit(Monitor, "file_changed", Event{Path: d.Path, Change: d.Change})
	case *wire.Compaction:
		p.emit(Monitor, "context_compression", Event{Message: d.Summary})
	case *wire.StorageFailure:
		p.emit(Monitor, "storage_failure", Event{Message: d.Message})
	case *wire.CCMessage:
		p.emit(Control, "cc_message", Event{Text: d.Text, Severity: string(d.Priority)})
	}
}
