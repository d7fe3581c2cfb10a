package run

import (
	"bytes"
	"slices"

	"wake/pkg/wire"
)

// actor is the node that an agent's event is written on.
type actor struct {
	id      string
	n       wire.NodeState
	current bool // the event is about its latest execution, which is open
}

// actor finds who speaks. An event without an execution is about the latest
// one; on [wire.RunNode] it is about the run.
func (f *fold) actor() (actor, error) {
	a := actor{id: f.e.NodeID, n: f.s.Nodes[f.e.NodeID]}
	if f.e.ExecID == "" || a.id == wire.RunNode {
		a.current = a.n.Open()
		return a, nil
	}
	if f.s.Imported != "" && a.n.Exec != f.e.ExecID {
		return a, nil
	}
	current, err := f.current(a.id, a.n)
	a.current = current && a.n.Open()
	return a, err
}

func (f *fold) put(a actor) { f.s.Nodes[a.id] = a.n }

// own reports whether the event is of the node's own agent in its latest
// execution, not of a sub-agent.
func (f *fold) own(a actor) bool { return a.current && f.e.Parent == "" }

// agentStart binds the session. In an imported run it may be the first that is
// heard of the execution.
func (f *fold) agentStart(a actor) {
	if f.s.Imported != "" && !a.current && f.e.Parent == "" && a.id != wire.RunNode {
		a.n = f.adopt(a.id, a.n)
		a.current = true
		f.begin(a.id, a.n)
		a.n = f.s.Nodes[a.id]
	}
	if !f.own(a) {
		return
	}
	f.bind(a, f.e.SessionID)
	f.breakpoint(actor{a.id, f.s.Nodes[a.id], true}, "READY")
	if f.s.Imported == "" && a.n.Turns == 0 { // its prompt; whoever goes on is told more, which isn't a point
		f.forkPoint(a.id, "")
	}
}

// pausedOutput is the output of a node whose agent is interrupted.
var pausedOutput = mustMarshal(map[string]any{"paused": true})

// agentPaused keeps the execution open: it can go on.
func (f *fold) agentPaused(a actor) {
	f.reason(a, "paused")
	if _, has := f.s.Outputs[a.id]; f.own(a) && !has {
		f.s.Outputs[a.id] = pausedOutput
	}
}

// agentResumed says that the execution goes on, or, of one that is only held, that its
// open calls have been dealt with: what its agent is to be told is told later.
func (f *fold) agentResumed(a actor) {
	if !f.own(a) {
		return
	}
	var rest *wire.Resume
	if r := a.n.Resume; r != nil && r.Hold && r.Message != "" {
		rest = &wire.Resume{Message: r.Message, Strategy: r.Strategy}
	}
	a.n.Reason, a.n.Resume = "", rest
	if len(a.n.Asked) > 0 {
		a.n.Reason, a.n.AgentStatus = reasonQuestion, statusBlocked
	}
	f.put(a)
	if bytes.Equal(f.s.Outputs[a.id], pausedOutput) {
		delete(f.s.Outputs, a.id)
	}
}

// forkPoint counts a message or a result of the node's own agent: behind it the
// run can be forked.
func (f *fold) forkPoint(id, point string) {
	f.s.ForkPoints++
	if n := f.s.Nodes[id]; point != "" {
		n.Point = point
		f.s.Nodes[id] = n
	}
}

// bind ties the execution to the agent's session.
func (f *fold) bind(a actor, session string) {
	if !f.own(a) || session == "" {
		return
	}
	a.n.Session = session
	f.put(a)
	f.s.AgentSessions[a.id] = session
	f.s.ExecSessions[a.n.Exec] = session
}

func (f *fold) reason(a actor, why string) {
	if f.own(a) {
		a.n.Reason = why
		f.put(a)
	}
}

// breakpoint records a step of the execution and the status that follows from
// it.
func (f *fold) breakpoint(a actor, at string) {
	if !f.own(a) {
		return
	}
	a.n.Breakpoint = at
	switch at {
	case "PRE_MODEL", "STREAMING_MODEL":
		a.n.AgentStatus = "thinking"
	case "TOOL_PENDING", "PRE_TOOL", "TOOL_EXECUTING":
		a.n.AgentStatus = "tool_call"
	case "AWAITING_APPROVAL":
		a.n.AgentStatus = statusBlocked
	case "POST_TOOL":
		a.n.AgentStatus = "tool_result"
	default:
		a.n.AgentStatus = ""
	}
	if len(a.n.Asked) > 0 {
		a.n.AgentStatus = statusBlocked
	}
	f.put(a)
}

// statusBlocked is the status of an agent that waits for somebody.
const statusBlocked = "blocked-on-clarification"

func (f *fold) turnStart(a actor) {
	f.s.Usage.Turns++
	if f.own(a) {
		a.n.Turns++
		a.n.Fork = nil // until then the agent may not have stored the copy
	}
	f.breakpoint(a, "PRE_MODEL")
}

// turnEnd adds what the turn cost. An older execution has cost money too.
func (f *fold) turnEnd(a actor, p *wire.TurnEnd) {
	if p.TurnCostUsd != nil && *p.TurnCostUsd > 0 {
		f.spend(&a, *p.TurnCostUsd)
	}
	f.put(a)
	f.breakpoint(a, "READY")
	if f.own(a) && len(a.n.Asked) == 0 {
		n := f.s.Nodes[a.id]
		n.AgentStatus = "reflect"
		f.s.Nodes[a.id] = n
	}
}

// agentComplete adds what the execution cost beyond its turns: agents that
// report no cost per turn report it here.
func (f *fold) agentComplete(a actor, p *wire.AgentComplete) {
	if f.own(a) && p.TotalCostUsd != nil && *p.TotalCostUsd > a.n.ExecCost {
		f.spend(&a, *p.TotalCostUsd-a.n.ExecCost)
	}
	f.put(a)
	f.breakpoint(a, "READY")
}

func (f *fold) spend(a *actor, usd float64) {
	f.s.Usage.CostUsd = min(f.s.Usage.CostUsd+usd, wire.MaxCostUsd)
	a.n.CostUsd = min(a.n.CostUsd+usd, wire.MaxCostUsd)
	if a.current {
		a.n.ExecCost = min(a.n.ExecCost+usd, wire.MaxCostUsd)
	}
}

// usage counts the tokens of a model call. One that is told again, since a block
// of the same message follows or a session was read again, is not counted again.
// Its cost is part of the turn's.
func (f *fold) usage(a actor, p *wire.Usage) {
	if slices.Contains(a.n.Counted, p.MessageID) {
		return
	}
	u := &f.s.Usage
	u.InputTokens += p.InputTokens
	u.OutputTokens += p.OutputTokens
	if p.CacheCreationInputTokens != nil {
		u.CacheCreationInputTokens += *p.CacheCreationInputTokens
	}
	if p.CacheReadInputTokens != nil {
		u.CacheReadInputTokens += *p.CacheReadInputTokens
	}
	if p.MessageID == "" || len(p.MessageID) > maxMessageID {
		return
	}
	last := a.n.Counted[max(0, len(a.n.Counted)-maxCounted+1):]
	a.n.Counted = append(slices.Clone(last), p.MessageID) // a copy: states share it
	f.put(a)
}

// Bounds of what is remembered of the messages of a node. Repetitions follow at
// once, but those of sub-agents that work at the same time stand in between.
const (
	maxCounted   = 16  // messages
	maxMessageID = 128 // bytes of an id; longer ones are counted each time
)

// todoChanged replaces the list of the node's own agent.
func (f *fold) todoChanged(p *wire.TodoChanged) {
	if f.e.Parent != "" {
		return
	}
	node := f.e.NodeID
	f.s.Todos = slices.DeleteFunc(f.s.Todos, func(t wire.TodoItem) bool { return t.Node == node })
	for _, t := range p.Items {
		f.s.Todos = append(f.s.Todos, wire.TodoItem{Node: node, ID: t.ID, Content: t.Content, Status: t.Status})
	}
}
