package flow

import (
	"cmp"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
)

// scheduleNode begins an execution, or skips the node if its condition is false.
func (p *planner) scheduleNode(v *vertex, id string, attempt int, it *item) {
	sc := p.scopeOf(v, it)
	ok, err := v.when.isTrue(sc)
	if err != nil {
		err = fmt.Errorf("when: %w", err)
	}
	if err == nil && !ok {
		p.emit("", &wire.NodeSkipped{Target: id, Reason: "when"})
		return
	}
	n := &wire.NodeScheduled{
		Target: id, Attempt: attempt, Iteration: p.iterationOf(v), Pool: cmp.Or(v.Pool, p.d.Pool),
	}
	if it != nil {
		n.Index, n.Count, n.Item = &it.index, it.count, it.value
	}
	if err == nil {
		n.Input, err = v.resolveInput(sc)
	}
	if err != nil {
		n.Error = err.Error()
	}
	p.emit(p.nextExec(id), n)
}

// retryNode tries a failed node again when its time has come.
func (p *planner) retryNode(v *vertex, id string, it *item) {
	n, retry := p.s.Nodes[id], (*Retry)(nil)
	if v.Policy != nil {
		retry = v.Policy.Retry
	}
	due, _ := nextTry(p.s, id, retry)
	attempt := n.Attempt
	if n.Due == 0 { // else the try before isn't one of the policy's
		attempt++
	}
	if p.now < due {
		p.wakeAt(due)
		return
	}
	p.scheduleNode(v, id, attempt, it)
}

// refuseNode schedules a node that can't be run, so that its failure is on record.
func (p *planner) refuseNode(v *vertex, err error) {
	p.emit(p.nextExec(v.ID), &wire.NodeScheduled{
		Target: v.ID, Attempt: 1, Iteration: p.iterationOf(v), Error: err.Error(),
	})
}

// resolveInput returns the node's input with its bindings replaced.
func (v *vertex) resolveInput(sc *scope) (wire.Raw, error) {
	if v.Type == TypeFlow {
		return v.resolveFlow(sc)
	}
	if v.Input == nil || !v.input.bound {
		return v.Input, nil
	}
	value, _, err := v.input.resolveValue(sc)
	if err != nil {
		return nil, err
	}
	if fields, ok := value.(map[string]any); ok {
		if err := coerceInput(v.Type, fields); err != nil {
			return nil, err
		}
	}
	raw, err := wire.Marshal(value)
	if _, isWait := waitFields[v.Type]; isWait && err == nil {
		if _, err := dueTime(v.Type, raw, 0); err != nil {
			return raw, waitProblem(v.Type, err)
		}
	}
	return raw, err
}

// resolveFlow leaves the child's definition as it is.
func (v *vertex) resolveFlow(sc *scope) (wire.Raw, error) {
	value, _, err := v.input.resolveValue(sc)
	fields, ok := value.(map[string]any)
	if err != nil || !ok {
		return nil, err
	}
	fields["flow"] = v.Input.Get("flow")
	return wire.Marshal(fields)
}
