package run

import (
	"bytes"
	"slices"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// actor is the node that an agent's event is written on.
type actor struct {
	id      string
	n       wire.NodeState
	current bool // the event is about its latest execution, which is open
}

// eventActor finds the actor of an event. An event without an execution is about the latest
// one; on [wire.RunNode] it is about the run.
func (f *fold) eventActor() (actor, error) {
	a := actor{id: f.e.NodeID, n: f.s.Nodes[f.e.NodeID]}
	if f.e.ExecID == "" || a.id == wire.RunNode {
		a.current = a.n.Open()
		return a, nil
	}
	if f.s.Imported != "" && a.n.Exec != f.e.ExecID {
		return a, nil
	}
	current, err := f.isCurrent(a.id, a.n)
	a.current = current && a.n.Open()
	return a, err
}

func (f *fold) putActor(a actor) { f.s.Nodes[a.id] = a.n }

// isOwnAgent reports whether the event is of the node's own agent in its latest
// execution, not of a sub-agent.
func (f *fold) isOwnAgent(a actor) bool { return a.current && f.e.Parent == "" }

// agentStart binds the session. In an imported run it may be the first that is
// heard of the execution.
func (f *fold) agentStart(a actor) {
	if f.s.Imported != "" && !a.current && f.e.Parent == "" && a.id != wire.RunNode {
		a.n = f.adoptExecution(a.id, a.n)
		a.current = true
		f.beginExecution(a.id, a.n)
		a.n = f.s.Nodes[a.id]
	}
	if !f.isOwnAgent(a) {
		return
	}
	f.accountSpending(a)
	a.n = f.s.Nodes[a.id]
	f.bindSession(a, f.e.SessionID)
	f.setBreakpoint(actor{a.id, f.s.Nodes[a.id], true}, "READY")
	if f.s.Imported != wire.ImportedIngest && a.n.Turns == 0 { // its prompt; an agent that goes on is told more, which isn't a point
		f.forkPoint(a.id, "")
	}
}

// pausedOutput is the output of a node while its agent is interrupted.
var pausedOutput = mustMarshal(map[string]any{"paused": true})

// agentPaused keeps the execution open: it can go on.
func (f *fold) agentPaused(a actor) {
	f.setReason(a, "paused")
	if _, has := f.s.Outputs[a.id]; f.isOwnAgent(a) && !has {
		f.s.Outputs[a.id] = pausedOutput
	}
}

// agentResumed says that the execution goes on, or, of one that is only held, that its
// open calls have been dealt with: what its agent is to be told is told later.
func (f *fold) agentResumed(a actor) {
	if !f.isOwnAgent(a) {
		return
	}
	var rest *wire.Resume
	if r := a.n.Resume; r != nil && r.Hold && r.Message != "" {
		rest = &wire.Resume{Message: r.Message, Strategy: r.Strategy, MessageAt: r.MessageAt}
	}
	a.n.Reason, a.n.Resume = "", rest
	if len(a.n.Asked) > 0 {
		a.n.Reason, a.n.AgentStatus = reasonQuestion, statusBlocked
	}
	f.putActor(a)
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

// bindSession ties the execution to the agent's session.
func (f *fold) bindSession(a actor, session string) {
	if !f.isOwnAgent(a) || session == "" {
		return
	}
	a.n.Session = session
	f.putActor(a)
	f.s.AgentSessions[a.id] = session
	f.s.ExecSessions[a.n.Exec] = session
}

func (f *fold) setReason(a actor, why string) {
	if f.isOwnAgent(a) {
		a.n.Reason = why
		f.putActor(a)
	}
}

// setBreakpoint records a step of the execution and the status that follows from
// it.
func (f *fold) setBreakpoint(a actor, at string) {
	if !f.isOwnAgent(a) {
		return
	}
	a.n.Breakpoint, a.n.Ending = at, false
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
	f.putActor(a)
}

// statusBlocked is the status of an agent that waits for a person.
const statusBlocked = "blocked-on-clarification"

// countCall adds what a model call has used. Its reason to stop tells whether the agent is about to end its turn.
func (f *fold) countCall(a actor, p *wire.Usage) {
	f.accountSpending(a)
	if f.isOwnAgent(a) {
		n := f.s.Nodes[a.id]
		n.Ending = slices.Contains(lastReasons, p.StopReason)
		f.s.Nodes[a.id] = n
	}
}

// lastReasons are those for which a model stops at the end of a turn.
var lastReasons = []string{"end_turn", "stop_sequence", "refusal"}

func (f *fold) turnStart(a actor) {
	f.s.Usage.Turns++
	if f.isOwnAgent(a) {
		a.n.Turns++
		a.n.Fork = nil // until then the agent may not have stored the copy
	}
	f.setBreakpoint(a, "PRE_MODEL")
}

// turnEnd adds what the turn cost. An older execution has cost money too.
func (f *fold) turnEnd(a actor) {
	f.accountSpending(a)
	f.setBreakpoint(actor{a.id, f.s.Nodes[a.id], a.current}, "READY")
	if f.isOwnAgent(a) && len(a.n.Asked) == 0 {
		n := f.s.Nodes[a.id]
		n.AgentStatus = "reflect"
		f.s.Nodes[a.id] = n
	}
}

func (f *fold) agentComplete(a actor) {
	f.accountSpending(a)
	f.setBreakpoint(actor{a.id, f.s.Nodes[a.id], a.current}, "READY")
}

// accountSpending adds what the event says of model calls, as the ledger has it. Calls of executions that are over count, but
// belong to none.
func (f *fold) accountSpending(a actor) {
	l := ledger.Ledger{Exec: f.e.ExecID, Counted: a.n.Counted}
	if a.current {
		l.ExecCost, l.Unsettled, l.Settled = a.n.ExecCost, a.n.Unsettled, a.n.Settled
	}
	for _, x := range l.Apply(f.e) {
		u := &f.s.Usage
		u.InputTokens = ledger.AddTokens(u.InputTokens, x.InputTokens)
		u.OutputTokens = ledger.AddTokens(u.OutputTokens, x.OutputTokens)
		u.CacheCreationInputTokens = ledger.AddTokens(u.CacheCreationInputTokens, x.CacheCreationInputTokens)
		u.CacheReadInputTokens = ledger.AddTokens(u.CacheReadInputTokens, x.CacheReadInputTokens)
		u.CostUsd, u.ComputedUsd = addCost(u.CostUsd, x.CostUsd), addCost(u.ComputedUsd, x.ComputedUsd)
		a.n.CostUsd, a.n.ComputedUsd = addCost(a.n.CostUsd, x.CostUsd), addCost(a.n.ComputedUsd, x.ComputedUsd)
		u.Unpriced += x.Unpriced
		a.n.Unpriced += x.Unpriced
	}
	a.n.Counted = l.Counted
	if a.current {
		a.n.ExecCost, a.n.Unsettled, a.n.Settled = l.ExecCost, l.Unsettled, l.Settled
	}
	f.putActor(a)
}

// addCost adds to a sum of costs, which stays within its bounds.
func addCost(sum, usd float64) float64 { return min(max(0, sum+usd), wire.MaxCostUsd) }

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
