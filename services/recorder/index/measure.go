package index

import (
	"cmp"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// maxError bounds what a row says of an error, in characters.
const maxError = 300

// measureEvent notes what an event says about calls of tools and models.
func (w *writer) measureEvent(r *runRow, n *nodeRow, pos uint64, e *wire.Event) error {
	if p, ok := e.Payload.(*wire.AgentTool); ok {
		outcome := "ok"
		switch {
		case p.Denied:
			outcome = "denied"
		case p.Error != "":
			outcome = "error"
		}
		w.queueRow(addCall, &table.ToolCall{
			Pos: pos, Run: r.ID, Node: n.ID, Exec: e.ExecID, Call: e.CallID, Tool: p.ToolName, TS: e.Timestamp,
			DurationMs: p.DurationMs, Outcome: outcome, Error: timeline.Line(p.Error, maxError),
		})
	}
	for i, x := range n.talk.Account.Apply(e) {
		if err := w.countEntry(r, n, pos, e, i, x); err != nil {
			return err
		}
	}
	return nil
}

// countEntry notes what a model call used and cost, or what a result tells beyond its calls.
func (w *writer) countEntry(r *runRow, n *nodeRow, pos uint64, e *wire.Event, number int, x ledger.Entry) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil {
		return err
	}
	if x.Calls > 0 {
		if err := w.noteModel(r, n, pos, e, x.Model); err != nil {
			return err
		}
	}
	message := callKey(x.Message)
	if x.Source == ledger.SourceResult {
		message = fmt.Sprintf("result/%d/%d", pos, number)
	}
	in, model := ledger.TokensIn(x.Spending), modelKey(cmp.Or(x.Model, ledger.ModelName(n.Model)))
	in, out := boundTokens(in), boundTokens(x.OutputTokens)
	n.TokensIn, n.TokensOut = boundTokens(n.TokensIn+in), boundTokens(n.TokensOut+out)
	w.noteSpend(r, n, e.Timestamp/table.Day, model, x.Spending)
	if in == 0 && out == 0 && x.Calls == 0 {
		return nil // it is about the cost alone
	}
	w.queueRow(addSeen, &table.Usage{
		Node: n.ID, Message: message, Run: r.ID, Pos: pos, Session: session, Agent: cmp.Or(e.AgentID, n.Node.Node),
		Turn: n.talk.Said.TurnOf(e), Model: model, TokensIn: in, TokensOut: out, TS: e.Timestamp,
	})
	return nil
}

// noteSpend adds to what the batch adds.
func (w *writer) noteSpend(r *runRow, n *nodeRow, day int64, model string, x wire.Spending) {
	key := spendKey{n.ID, day, model}
	s := w.spendings[key]
	if s == nil {
		s = &table.Spend{Run: r.ID, Node: n.ID, Day: day, Model: model}
		if w.spendings == nil {
			w.spendings = map[spendKey]*table.Spend{}
		}
		w.spendings[key] = s
		w.spent = append(w.spent, s)
	}
	s.Calls += x.Calls
	s.TokensIn, s.TokensOut = boundTokens(s.TokensIn+boundTokens(ledger.TokensIn(x))), boundTokens(s.TokensOut+boundTokens(x.OutputTokens))
	s.CostUsd, s.ComputedUsd, s.Unpriced = s.CostUsd+x.CostUsd, s.ComputedUsd+x.ComputedUsd, s.Unpriced+x.Unpriced
}

// boundTokens bounds a sum of tokens, which of one day may be less than nothing: a result may tell of less than its calls have told of
// the day before.
func boundTokens(n int64) int64 { return min(max(n, -ledger.MaxTokens), ledger.MaxTokens) }

// writeSpend writes what the batch adds to spend.
func (w *writer) writeSpend() error {
	for _, s := range w.spent {
		if err := w.putRow(addSpend, s); err != nil {
			return err
		}
	}
	return nil
}

// modelKey is a model's name as far as an index takes it.
func modelKey(name string) string {
	name = database.PostgresText(name)
	return strings.ToValidUTF8(name[:min(len(name), table.MaxKey)], "")
}
