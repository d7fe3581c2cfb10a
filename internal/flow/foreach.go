package flow

import (
	"errors"
	"fmt"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// errNoList is what the user can do about a forEach that has no list.
var errNoList = errors.New("forEach.in is no list; write [ … ] around an expression that selects any number of things")

// fanOut begins a forEach: the list is part of the decision, so that what
// happens meanwhile doesn't change it.
func (p *planner) fanOut(v *vertex, e *edge) {
	value, _, err := e.items.resolveValue(p.scopeOf(e.from, nil))
	raw, _ := value.(wire.Raw)
	if err == nil && !isList(raw) {
		err = errNoList
	}
	if err != nil {
		p.refuseNode(v, fmt.Errorf("edge %s: %w", e.key, err))
		return
	}
	p.emit(p.nextExec(v.ID), &wire.NodeScheduled{
		Target: v.ID, Attempt: 1, Iteration: p.iterationOf(v), Count: len(elementsOf(raw)), Input: raw,
	})
}

// advanceItems begins the executions of a forEach and joins them when all have ended.
func (p *planner) advanceItems(v *vertex) {
	n := p.s.Nodes[v.ID]
	values := elementsOf(n.Input)
	switch {
	case len(values) != n.Count:
		p.emit(n.Exec, &wire.NodeError{
			Target: v.ID, Error: "the list of the forEach is missing", ErrorType: wire.ErrorInput,
		})
		return
	case n.Started < n.Scheduled: // there are no items that would run
		p.emit(n.Exec, &wire.NodeStart{Target: v.ID, NodeType: string(v.Type), Attempt: 1})
		return
	}
	each := v.forEach(p.s)
	ended, room := 0, p.roomForItems(v, each, len(values))
	for i, value := range values {
		id, it := run.ItemID(v.ID, i), &item{name: each.As, index: i, count: n.Count, value: value}
		waits := !p.isBegun(v, id)
		if waits && room == 0 {
			continue
		}
		for p.advanceItem(v, id, it) {
		}
		if waits && !p.isSettled(id) {
			room--
		}
		if p.isSettled(id) {
			ended++
		}
		if p.isLost(id) || p.isFull() || p.err != nil {
			return
		}
	}
	if ended == n.Count {
		p.joinItems(v, values)
	}
}

// advanceItem does what there is to do about an item and reports whether there was
// something.
func (p *planner) advanceItem(v *vertex, id string, it *item) bool {
	before := len(p.events)
	switch {
	case p.isSettled(id):
	case p.willRetry(v, id):
		p.retryNode(v, id, it)
	case p.s.Nodes[id].Open():
		p.executeNode(v, id)
	default:
		p.scheduleNode(v, id, 1, it)
	}
	return len(p.events) > before && p.err == nil
}

// isBegun reports whether an item has been scheduled in this pass.
func (p *planner) isBegun(v *vertex, id string) bool {
	return p.isSettled(id) || p.s.Nodes[id].Open() || p.willRetry(v, id)
}

// roomForItems is how many items may begin beside those that are at work; less than 0 is any number.
func (p *planner) roomForItems(v *vertex, each *ForEach, count int) int {
	if each.Concurrency == 0 {
		return -1
	}
	room := each.Concurrency
	for i := range count {
		if id := run.ItemID(v.ID, i); p.isBegun(v, id) && !p.isSettled(id) {
			room--
		}
	}
	return max(0, room)
}

// itemName is what the fired forEach edge calls its items.
func (v *vertex) itemName(s *wire.State) string {
	if each := v.forEach(s); each != nil {
		return each.As
	}
	return ""
}

// forEach is that of the edge which has fired, nil if none has one.
func (v *vertex) forEach(s *wire.State) *ForEach {
	for _, e := range v.in {
		if e.ForEach != nil && s.EdgeStatus[e.key] == wire.EdgeFired {
			return e.ForEach
		}
	}
	return nil
}

// joinItems ends a forEach with {iterations: [{item, output | error | skipped}]}.
func (p *planner) joinItems(v *vertex, values []wire.Raw) {
	iterations := make([]any, len(values))
	for i, value := range values {
		id := run.ItemID(v.ID, i)
		one := map[string]any{"item": value}
		switch n := p.s.Nodes[id]; {
		case n.Skipped:
			one["skipped"] = true
		case p.s.NodeStatus[id] == wire.NodeFailed:
			one["error"], one["output"] = n.Error, p.s.Outputs[id]
		default:
			one["output"] = p.s.Outputs[id]
		}
		iterations[i] = one
	}
	p.emit(p.s.Nodes[v.ID].Exec, &wire.NodeComplete{
		Target: v.ID, Output: wire.RawOf(map[string]any{"iterations": iterations}),
		DurationMs: p.now - p.s.Nodes[v.ID].StartedAt,
	})
}
