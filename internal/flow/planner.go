package flow

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/jsonata"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// maxEvents bounds a decision, so that it fits into one batch of the log. What
// is left over is decided when the owner asks again.
const maxEvents = 500

// planner makes one decision. It folds its own events as it goes, into a copy of
// the state.
type planner struct {
	d      *Definition
	s      *wire.State
	own    bool // s is a copy
	free   bool // the budget isn't looked at: only what completes the run counts
	now    int64
	events []*wire.Event
	wake   int64
	err    error
	cache  map[*byte]any
	stop   *Stop
	budget *jsonata.Budget // of the latest scope
	before float64         // what the earlier ones have spent
}

// budgetSpent is how much of an expression's budget the decision has used: a whole one is enough for a decision, so
// that the operator can abort a run that only calculates.
func (p *planner) budgetSpent() float64 {
	if p.budget == nil {
		return 0
	}
	return p.before + p.budget.Spent()
}

// isFull reports whether the decision is large enough.
func (p *planner) isFull() bool { return len(p.events) >= maxEvents || p.budgetSpent() >= 1 }

// emit decides an event.
func (p *planner) emit(exec string, payload wire.Payload) {
	if p.err != nil {
		return
	}
	if !p.own {
		p.s, p.own = run.Clone(p.s), true
	}
	e := &wire.Event{ExecID: exec, Timestamp: p.now, Payload: payload}
	p.events = append(p.events, e)
	stamped := *e
	owner := p.s.Nodes[wire.RunNode]
	stamped.RunID, stamped.NodeID = p.s.RunID, wire.RunNode
	stamped.Seq, stamped.Epoch = owner.Seq+1, owner.Epoch
	pos := p.s.Position
	pos.Seq++
	if err := run.Apply(p.s, pos, &stamped); err != nil {
		p.err = fmt.Errorf("flow: decision: %w", err)
	}
}

// wakeAt asks to be called again at a time.
func (p *planner) wakeAt(t int64) {
	if p.wake == 0 || t < p.wake {
		p.wake = t
	}
}

// isSettled reports whether a node or an item has come to its end in this pass.
func (p *planner) isSettled(id string) bool {
	v := p.d.graph.vertexOf(id)
	status := p.s.NodeStatus[id]
	return status == wire.NodeDone || status == wire.NodeFailed && v != nil && !p.willRetry(v, id)
}

// isLost reports whether a node or an item has failed for good, and the run with
// it. A run does not go on after an execution that was withdrawn.
func (p *planner) isLost(id string) bool {
	v := p.d.graph.vertexOf(id)
	if v == nil || p.s.NodeStatus[id] != wire.NodeFailed || p.willRetry(v, id) {
		return false
	}
	return !v.continuesOnError() || p.s.Nodes[id].ErrorType == wire.ErrorCancelled
}

// lostNodes are those that have failed for good, in a fixed order.
func (p *planner) lostNodes() []string {
	var ids []string
	for id, status := range p.s.NodeStatus {
		if status == wire.NodeFailed && p.isLost(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, p.compareNodes)
	return ids
}

// openNodes are the nodes and items with an open execution, in a fixed order.
func (p *planner) openNodes() []string {
	var ids []string
	for id, n := range p.s.Nodes {
		if n.Open() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, p.compareNodes)
	return ids
}

// compareNodes orders by place in the flow; the items of a node come before it, by
// index.
func (p *planner) compareNodes(a, b string) int {
	return cmp.Or(
		cmp.Compare(p.rankOf(a), p.rankOf(b)),
		cmp.Compare(indexOf(a), indexOf(b)),
		cmp.Compare(a, b),
	)
}

// rankOf is the place of a node in the flow; nodes that aren't in it come last.
func (p *planner) rankOf(id string) int {
	v := p.d.graph.vertexOf(id)
	if v == nil {
		return len(p.d.graph.order)
	}
	return v.rank
}

// failRun ends the run badly. What still runs is withdrawn first.
func (p *planner) failRun(node, format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	for _, id := range p.openNodes() {
		p.emit(p.s.Nodes[id].Exec, &wire.NodeCancelled{Target: id, Reason: problem})
	}
	p.emit("", &wire.FlowComplete{
		FlowName: p.s.FlowName, Status: wire.FlowStatusFailed, Error: problem, FailedNode: node,
		DurationMs: p.now - p.s.StartedAt,
	})
}

// iterationOf is how often the innermost loop around a node has gone round.
func (p *planner) iterationOf(v *vertex) int {
	if v.loop == nil {
		return 0
	}
	return p.s.LoopCounters[v.loop.key]
}

// scopeOf is what the expressions of a node see.
func (p *planner) scopeOf(v *vertex, it *item) *scope {
	p.before, p.budget = p.budgetSpent(), jsonata.NewBudget()
	sc := &scope{state: p.s, now: p.now, cache: p.cache, budget: p.budget}
	switch {
	case it != nil:
		sc.item, sc.value = it.name, it.value
		sc.vars = map[string]any{
			"iteration": float64(it.index), "first": it.index == 0, "last": it.index == it.count-1,
			"maxIterations": float64(it.count),
		}
	case v.loop != nil:
		sc.vars = loopVars(p.iterationOf(v), v.loop.MaxIterations)
	}
	return sc
}

func loopVars(iteration, limit int) map[string]any {
	return map[string]any{
		"iteration": float64(iteration), "first": iteration == 0, "last": iteration >= limit,
		"maxIterations": float64(limit),
	}
}

func (p *planner) nextExec(id string) string { return run.ExecID(id, p.s.Nodes[id].Execs+1) }

// Stop is what stops runs from outside of them: a budget is spent that they share.
type Stop struct {
	Why   string
	Abort bool // or else the run pauses
}

// item is one of the list that a node runs for.
type item struct {
	name  string // in expressions
	index int
	count int
	value wire.Raw
}

// indexOf returns the index in the id of an item; a node comes after its items.
func indexOf(id string) int {
	_, digits, isItem := strings.Cut(id, "/")
	i, err := strconv.Atoi(digits)
	if !isItem || err != nil {
		return math.MaxInt
	}
	return i
}

// willRetry reports whether a failed node is going to be tried again.
func (p *planner) willRetry(v *vertex, id string) bool {
	var r *Retry
	if v.Policy != nil {
		r = v.Policy.Retry
	}
	_, again := nextTry(p.s, id, r)
	return again
}

func (v *vertex) continuesOnError() bool { return v.Policy != nil && v.Policy.ContinueOnError }
