package flow

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Decision is what the owner of a run appends to [wire.RunNode] next.
type Decision struct {
	Events []*wire.Event // in order; ExecID, Timestamp and Payload are set
	Wake   int64         // Unix ms when to ask again even if nothing happens; 0: not needed
	Costly bool          // its expressions have taken so long that commands come before the next decision
}

// Decide returns what follows from the state of a run, which is that of an owner
// that has claimed it. It decides as far as it can see: when the events are
// folded there is nothing more to decide until something happens. Each event
// follows from the state before it alone, so it does no harm if only the first
// ones are stored. A run that is not running needs no decision.
//
// Large values that the log keeps elsewhere have to be in the state; see
// [run.Inline]. Only a state that the definition can't have led to is an error.
// stop says what stops the run; nil: nothing does.
func Decide(d *Definition, s *wire.State, now int64, stop *Stop) (Decision, error) {
	if s.Status != wire.RunRunning && !isOutOfMoney(s) || s.Imported != "" {
		return Decision{}, nil
	}
	if s.DefinitionHash != d.hash {
		return Decision{}, fmt.Errorf("flow: run %s is of definition %s, not %s", s.RunID, s.DefinitionHash, d.hash)
	}
	p := &planner{d: d, s: s, now: now, stop: stop, cache: map[*byte]any{}}
	if isOutOfMoney(s) {
		p.finishSpent()
		return Decision{Events: p.events}, nil
	}
	p.makeSteps()
	if p.err != nil {
		return Decision{}, p.err
	}
	if p.s.Status != wire.RunRunning {
		p.wake = 0
	} else if p.s.Deadline > 0 {
		p.wakeAt(p.s.Deadline)
	}
	return Decision{Events: p.events, Wake: p.wake, Costly: p.budgetSpent() >= 1}, nil
}

// Start returns the events that begin a run, for an owner that has claimed it.
// The state of the request is merged into the flow's own, objects field by
// field; its labels come before those of the flow.
func Start(d *Definition, r wire.RunRequest) []*wire.Event {
	labels := map[string]string{}
	maps.Copy(labels, d.Labels)
	maps.Copy(labels, r.Labels)
	var limits wire.Raw
	if b := d.Budget; b != nil {
		limits = ledger.Budget{Usd: b.Usd, Tokens: b.Tokens, Then: b.Then}.Limits()
	}
	limits = ledger.WithTimeout(limits, d.TimeoutMs)
	events := []*wire.Event{{Payload: &wire.FlowStart{
		FlowName: d.Name, Definition: d.raw, DefinitionHash: d.hash,
		Input: r.Input, Labels: labels, ParentRun: r.ParentRun, ParentNode: r.ParentNode, ParentCall: r.ParentCall,
		Limits: ledger.MergeLimits(limits, r.Limits), Overrides: r.Overrides, Fixtures: r.Fixtures, Workspace: r.Workspace, By: r.By,
	}}}
	if given, ok := r.State.Any().(map[string]any); ok && len(given) > 0 {
		state, _ := d.State.Any().(map[string]any)
		events = append(events, &wire.Event{Payload: &wire.StatePatch{
			Patch: wire.Patch{Op: wire.PatchSet, Value: wire.RawOf(mergeObjects(state, given))},
		}})
	}
	return events
}

// mergeObjects is a with the fields of b, objects merged in turn.
func mergeObjects(a, b map[string]any) map[string]any {
	out := maps.Clone(b)
	for name, v := range a {
		inner, ok := out[name].(map[string]any)
		if below, isObject := v.(map[string]any); ok && isObject {
			out[name] = mergeObjects(below, inner)
		} else if _, given := out[name]; !given {
			out[name] = v
		}
	}
	return out
}

// makeSteps makes steps as long as the run goes on, and there are some to make.
func (p *planner) makeSteps() {
	for !p.isFull() && p.s.Status == wire.RunRunning && p.err == nil && p.makeStep() {
	}
}

// makeStep makes the next step. It reports false if there is none to make.
func (p *planner) makeStep() bool {
	before := len(p.events)
	p.wake = 0
	if p.endOnFailure() {
		return true
	}
	if p.isOverdue() {
		p.endOverdue()
		return true
	}
	if !p.free && p.isSpent() {
		if !p.finishFree() {
			p.keepBudget()
		}
		return len(p.events) > before
	}
	for _, v := range p.d.graph.order {
		p.advanceNode(v)
		if len(p.events) > before {
			return true
		}
	}
	for _, l := range p.d.graph.loops {
		p.goRound(l)
		if len(p.events) > before {
			return true
		}
	}
	p.finishRun()
	return len(p.events) > before
}

// endOnFailure ends the run if a node has failed for good and no one said to go on.
// An execution that was withdrawn is no cause of its own: what withdrew it is
// found again.
func (p *planner) endOnFailure() bool {
	if p.pauseIfInterrupted() {
		return true
	}
	for _, id := range p.lostNodes() {
		if n := p.s.Nodes[id]; n.ErrorType != wire.ErrorCancelled {
			p.failRun(id, "node %s: %s", id, n.Error)
			return true
		}
	}
	return false
}

// pauseIfInterrupted pauses the run if the operator has to decide about nodes that a crash
// interrupted.
func (p *planner) pauseIfInterrupted() bool {
	var ids []string
	for id := range p.s.NodeStatus {
		if run.Interrupted(p.s, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return false
	}
	slices.SortFunc(ids, p.compareNodes)
	list := strings.Join(ids, ",")
	p.emit("", &wire.FlowPaused{
		Reason:  wire.PauseRequiresAction,
		Message: fmt.Sprintf("interrupted, outcome unknown: %s; run again with `wake resume %s --rerun %s`, or give up with --fail", list, p.s.RunID, list),
	})
	return true
}

// Unfinished returns the nodes that a run which has failed executes again when it goes on, in the order of
// the flow: those that have failed for good, those that were withdrawn beside them, and those that waited for
// their next try.
func Unfinished(d *Definition, s *wire.State) []string {
	p := &planner{d: d, s: s}
	ids := p.lostNodes()
	for id := range s.NodeStatus {
		if v := d.graph.vertexOf(id); v != nil && p.willRetry(v, id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, p.compareNodes)
	return ids
}

// finishRun ends the run when every node is settled.
func (p *planner) finishRun() {
	for _, v := range p.d.graph.order {
		if p.s.Nodes[v.ID].Open() {
			return
		}
	}
	if p.wake != 0 {
		return
	}
	for _, id := range p.lostNodes() {
		p.failRun(id, "%s", p.s.Nodes[id].Error)
		return
	}
	for _, v := range p.d.graph.order {
		if !p.isSettled(v.ID) {
			p.failRun("", "Execution stalled: no ready nodes")
			return
		}
	}
	p.emit("", &wire.FlowComplete{
		FlowName: p.s.FlowName, Status: wire.FlowStatusComplete, DurationMs: p.now - p.s.StartedAt,
	})
}

// advanceNode does what there is to do about a node.
func (p *planner) advanceNode(v *vertex) {
	switch {
	case p.isLost(v.ID):
	case p.isSettled(v.ID):
		p.leaveNode(v)
	case p.willRetry(v, v.ID):
		p.retryNode(v, v.ID, nil)
	case p.s.Nodes[v.ID].Open():
		if v.forEach(p.s) != nil {
			p.advanceItems(v)
		} else {
			p.executeNode(v, v.ID)
		}
	default:
		p.enterNode(v)
	}
}

// leaveNode decides the edges that lead away from a settled node. A loop that goes
// round comes first: the edges that lead on wait for the pass that leaves it.
func (p *planner) leaveNode(v *vertex) {
	skipped := p.s.Nodes[v.ID].Skipped
	for _, e := range v.back {
		if p.s.EdgeStatus[e.key] == wire.EdgeFired {
			return
		}
		if p.isPending(e) && p.decideEdge(e, skipped) {
			return
		}
	}
	for _, e := range v.out {
		if p.isPending(e) && p.s.Status == wire.RunRunning && !p.isFull() {
			p.decideEdge(e, skipped)
		}
	}
}

func (p *planner) isPending(e *edge) bool {
	status := p.s.EdgeStatus[e.key]
	return status == "" || status == wire.EdgePending
}

// decideEdge fires or skips an edge. It reports true if a loop goes round or the
// run has failed.
func (p *planner) decideEdge(e *edge, skipped bool) bool {
	if skipped {
		p.emit("", &wire.EdgeSkip{EdgeID: e.key, From: e.From, To: e.To, Reason: "from"})
		return false
	}
	sc := p.scopeOf(e.from, nil)
	if e.MaxIterations > 0 {
		sc.vars = loopVars(p.s.LoopCounters[e.key], e.MaxIterations)
	}
	ok, err := e.when.isTrue(sc)
	switch {
	case err != nil:
		p.failRun(e.From, "edge %s: when: %v", e.key, err)
		return true
	case !ok:
		p.emit("", &wire.EdgeSkip{EdgeID: e.key, From: e.From, To: e.To, Reason: "when"})
		return false
	case e.MaxIterations > 0 && p.s.LoopCounters[e.key] >= e.MaxIterations:
		p.failRun(e.From, "loop %s exceeded %d iterations", e.key, e.MaxIterations)
		return true
	}
	p.emit("", &wire.EdgeFire{EdgeID: e.key, From: e.From, To: e.To})
	return e.MaxIterations > 0
}

// goRound begins another pass of a loop that has fired, once everything that the
// last pass began has ended.
func (p *planner) goRound(l *edge) {
	if p.s.EdgeStatus[l.key] != wire.EdgeFired {
		return
	}
	for id, n := range p.s.Nodes {
		v := p.d.graph.vertexOf(id)
		if v != nil && slices.Contains(l.again, v.ID) && (n.Open() || p.willRetry(v, id)) {
			return
		}
	}
	for _, inner := range l.within {
		if p.s.LoopCounters[inner.key] > 0 {
			p.emit("", &wire.LoopIterate{EdgeID: inner.key})
		}
	}
	p.emit("", &wire.LoopIterate{
		EdgeID: l.key, Iteration: p.s.LoopCounters[l.key] + 1, Nodes: l.again, Edges: l.edges,
	})
}

// enterNode schedules or skips a node that is pending, once its gate is decided.
func (p *planner) enterNode(v *vertex) {
	fired, skipped := 0, 0
	var each []*edge
	for _, e := range v.in {
		switch p.s.EdgeStatus[e.key] {
		case wire.EdgeFired:
			fired++
			if e.ForEach != nil {
				each = append(each, e)
			}
		case wire.EdgeSkipped:
			skipped++
		default:
			return
		}
	}
	closed := v.gate == GateAny && fired == 0 && len(v.in) > 0 || v.gate != GateAny && skipped > 0
	switch {
	case closed && !p.wasEntered(v):
		p.emit("", &wire.NodeSkipped{Target: v.ID, Reason: "edge"})
	case len(each) > 1:
		p.refuseNode(v, fmt.Errorf("forEach edges %s and %s have both fired", each[0].key, each[1].key))
	case len(each) == 1:
		p.fanOut(v, each[0])
	default:
		p.scheduleNode(v, v.ID, 1, nil)
	}
}

// wasEntered reports whether a loop has led here in this pass.
func (p *planner) wasEntered(v *vertex) bool {
	return slices.ContainsFunc(v.entries, func(l *edge) bool { return p.s.LoopCounters[l.key] > 0 })
}
