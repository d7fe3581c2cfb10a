package flow

import (
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// readBudget reads what a run may spend.
func (r *flowReader) readBudget(o *fields) *Budget {
	t := o.takeField("budget")
	if t == nil {
		return nil
	}
	in := r.openObject(t, o.fieldName("budget"))
	b := &Budget{Usd: r.takeDollars(in, "usd"), Tokens: in.takeInteger("tokens", 1, maxTokens), Then: in.takeOneOf("then", wire.BudgetPause, wire.BudgetAbort)}
	in.checkUnknown()
	if t.Kind == document.Object && t.Get("usd").IsAbsent() && t.Get("tokens").IsAbsent() {
		r.Add(t.At, o.fieldName("budget"), "needs usd or tokens")
	}
	return b
}

// takeDollars reads a positive amount.
func (r *flowReader) takeDollars(o *fields, name string) float64 {
	return r.takeNumber(o, name, "must be a positive number of US dollars", func(usd float64) bool { return usd > 0 && usd <= wire.MaxCostUsd })
}

// isSpent reports whether the run has spent its budget, or one that it shares is spent.
func (p *planner) isSpent() bool {
	return p.stop != nil || ledger.BudgetOf(p.s.Limits).IsReached(ledger.Spent(p.s.Usage), p.budgetFrom())
}

func (p *planner) budgetFrom() wire.Spent {
	if p.s.BudgetFrom == nil {
		return wire.Spent{}
	}
	return *p.s.BudgetFrom
}

// keepBudget pauses or ends a run that has spent its budget, before it spends more: nothing begins,
// and an agent that works is interrupted. One that has just ended its turn, or is about to, comes to its end first,
// since most tell only then what they have cost.
func (p *planner) keepBudget() {
	open := slices.DeleteFunc(p.openNodes(), func(id string) bool { return p.s.Nodes[id].Index == nil && p.s.Nodes[id].Count > 0 }) // items do the work
	resting := 0
	for _, id := range open {
		if n := p.s.Nodes[id]; n.Type == string(TypeAgent) && n.Turns > 0 && (n.Breakpoint == "READY" || n.Ending) {
			resting++
		}
	}
	if resting > 0 && resting == len(open) {
		return
	}
	if p.stop != nil {
		p.obeyStop()
		return
	}
	b := ledger.BudgetOf(p.s.Limits)
	text := b.Text(ledger.Spent(p.s.Usage), p.budgetFrom())
	if b.Then == wire.BudgetAbort {
		p.emit("", &wire.FlowAborted{Reason: "budget spent: " + text})
		return
	}
	p.emit("", &wire.FlowPaused{
		Reason:  wire.PauseBudget,
		Message: fmt.Sprintf("budget spent: %s; `wake resume %s` grants as much again, --budget-usd or --budget-tokens more", text, p.s.RunID),
	})
}

// isOutOfMoney reports whether a run is paused since a budget is spent.
func isOutOfMoney(s *wire.State) bool {
	return s.Status == wire.RunPaused && (s.Reason == wire.PauseBudget || s.Reason == wire.PauseSharedBudget)
}

// finishSpent completes a run that is out of money, if nothing is left to do that would cost something: what was under way came to its end
// meanwhile.
func (p *planner) finishSpent() {
	p.emit("", &wire.FlowResumed{Strategy: "crash", Message: "nothing is left to do"})
	p.free = true
	p.makeSteps()
	if p.err != nil || p.s.Status != wire.RunComplete {
		p.events = nil // it stays paused
	}
}

// finishFree completes the run if all that is left are steps that no worker takes, such as edges that don't fire. It reports whether the run
// is complete by them.
func (p *planner) finishFree() bool {
	t := &planner{d: p.d, s: p.s, now: p.now, stop: p.stop, cache: p.cache, free: true}
	t.makeSteps()
	if t.err != nil || t.s.Status != wire.RunComplete {
		return false
	}
	p.s, p.own, p.events = t.s, true, append(p.events, t.events...)
	return true
}

// obeyStop pauses or ends a run that may spend nothing any more together with others.
func (p *planner) obeyStop() {
	if p.stop.Abort {
		p.emit("", &wire.FlowAborted{Reason: p.stop.Why})
		return
	}
	p.emit("", &wire.FlowPaused{
		Reason:  wire.PauseSharedBudget,
		Message: p.stop.Why + "; the run goes on by itself once there is more (wake budget set)",
	})
}

// isAllSettled reports whether nothing of the run is left to do, but for loops that go round.
func (p *planner) isAllSettled() bool {
	return !slices.ContainsFunc(p.d.graph.order, func(v *vertex) bool { return p.s.Nodes[v.ID].Open() || !p.isSettled(v.ID) })
}
