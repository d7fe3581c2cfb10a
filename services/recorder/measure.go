package recorder

import (
	"maps"
	"slices"
	"strings"

	"wake/pkg/wire"
)

// day is the length of a day in milliseconds.
const day = 24 * 60 * 60 * 1000

// measure notes what an event says about calls of tools and models.
func (w *writer) measure(r *runRow, n *nodeRow, pos uint64, e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.AgentTool:
		var took any
		if p.DurationMs != nil {
			took = *p.DurationMs
		}
		outcome := "ok"
		switch {
		case p.Denied:
			outcome = "denied"
		case p.Error != "":
			outcome = "error"
		}
		w.add(addCall, pos, r.id, n.id, e.ExecID, e.CallID, p.ToolName, e.Timestamp, took, outcome, brief(p.Error))
	case *wire.Usage:
		return w.used(r, n, pos, e, p)
	case *wire.TurnEnd:
		return w.costs(r, n, e, p.ModelUsage)
	case *wire.AgentComplete:
		return w.costs(r, n, e, p.ModelUsage)
	}
	return nil
}

// used counts the tokens of a model call, those of one message once.
func (w *writer) used(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.Usage) error {
	session, err := w.in(r, n, pos, e)
	if err != nil {
		return err
	}
	if err := w.answers(r, n, pos, e, p.Model); err != nil {
		return err
	}
	stmt, err := w.stmt(addSeen)
	if err != nil {
		return err
	}
	in := p.InputTokens + value(p.CacheCreationInputTokens) + value(p.CacheReadInputTokens)
	model := modelKey(orElse(p.Model, n.model))
	added, err := stmt.ExecContext(w.ctx, n.id, callKey(p.MessageID), r.id, pos, session, orElse(e.AgentID, n.node), n.talk.turnOf(e), model, in, p.OutputTokens, e.Timestamp)
	if err != nil {
		return err
	}
	if fresh, err := added.RowsAffected(); err != nil || fresh == 0 {
		return err
	}
	n.tokensIn += in
	n.tokensOut += p.OutputTokens
	w.spend(r, n, e.Timestamp/day, model, in, p.OutputTokens)
	return nil
}

// spendKey names a row of spend.
type spendKey struct {
	node, day int64
	model     string
}

// spending is what the batch adds to a row of spend, without the cost.
type spending struct {
	spendKey

	run, calls, in, out int64
}

// spend adds a model call to what the batch adds.
func (w *writer) spend(r *runRow, n *nodeRow, day int64, model string, in, out int64) {
	key := spendKey{n.id, day, model}
	s := w.spendings[key]
	if s == nil {
		s = &spending{spendKey: key, run: r.id}
		if w.spendings == nil {
			w.spendings = map[spendKey]*spending{}
		}
		w.spendings[key] = s
		w.spent = append(w.spent, s)
	}
	s.calls, s.in, s.out = s.calls+1, s.in+in, s.out+out
}

// writeSpend writes what the batch adds to spend.
func (w *writer) writeSpend() error {
	for _, s := range w.spent {
		if err := w.exec(addSpend, s.run, s.node, s.day, s.model, s.calls, s.in, s.out, 0.0); err != nil {
			return err
		}
	}
	return nil
}

// modelKey is a model's name as far as an index takes it.
func modelKey(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxKey)], "")
}

// costs notes what a node has cost beyond what is noted. The state says that: it
// turns totals into what they add. Models share it as the agent says they did.
func (w *writer) costs(r *runRow, n *nodeRow, e *wire.Event, models map[string]wire.ModelUsage) error {
	if r.state == nil {
		return nil
	}
	var noted float64
	if err := w.scan(sumSpend, []any{n.id}, &noted); err != nil {
		return err
	}
	cost := r.state.Nodes[n.node].CostUsd - noted
	if cost < 1e-9 {
		return nil // nothing but the rounding of sums
	}
	total := 0.0
	for _, m := range models {
		if m.CostUsd != nil {
			total += max(0, *m.CostUsd)
		}
	}
	if total <= 0 {
		return w.exec(addSpend, r.id, n.id, e.Timestamp/day, modelKey(n.model), 0, 0, 0, cost)
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		m := models[model]
		if m.CostUsd == nil || *m.CostUsd <= 0 {
			continue
		}
		if err := w.exec(addSpend, r.id, n.id, e.Timestamp/day, modelKey(model), 0, 0, 0, cost**m.CostUsd/total); err != nil {
			return err
		}
	}
	return nil
}
