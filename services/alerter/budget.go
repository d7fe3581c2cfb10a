package alerter

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// spending finds that a run has cost more than a budget.
type spending struct {
	Usd   float64            `json:"usd,omitempty"`
	Execs map[string]float64 `json:"execs,omitempty"` // what the turns of open executions cost
	Limit float64            `json:"limit,omitempty"` // the run's own
	Told  float64            `json:"told,omitempty"`  // the highest budget that was told
	Share float64            `json:"share,omitempty"` // of Limit that was told
	Day   int64              `json:"day,omitempty"`   // days since 1970, UTC
	OfDay float64            `json:"ofDay,omitempty"` // what was spent on it
}

const dayMs = 24 * int64(time.Hour/time.Millisecond)

// detect is a [detector].
func (s spending) detect(in input) (spending, []finding, int64) {
	if in.Event == nil {
		return s, nil, 0
	}
	e := in.Event
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		s.Limit, _ = numberOf(p.Limits.Get("maxCostUsd"))
	case *wire.TurnEnd:
		if p.TurnCostUsd != nil && *p.TurnCostUsd > 0 {
			s = s.addCost(in.At, *p.TurnCostUsd)
			s.Execs = withKey(s.Execs, e.ExecID, min(s.Execs[e.ExecID]+*p.TurnCostUsd, wire.MaxCostUsd))
			return s.crossBudget(in)
		}
	case *wire.AgentComplete: // agents that don't tell the cost of turns tell it here
		if p.TotalCostUsd != nil && *p.TotalCostUsd > s.Execs[e.ExecID] {
			s = s.addCost(in.At, *p.TotalCostUsd-s.Execs[e.ExecID])
			s.Execs = withKey(s.Execs, e.ExecID, *p.TotalCostUsd)
			return s.crossBudget(in)
		}
	case *wire.AgentTool: // the day has it from the run that the call has started
		if p.ChildCostUsd != nil && *p.ChildCostUsd > 0 {
			s.Usd = min(s.Usd+*p.ChildCostUsd, wire.MaxCostUsd)
			return s.crossBudget(in)
		}
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled:
		s.Execs = withoutKey(s.Execs, e.ExecID)
	}
	return s, nil, 0
}

func (s spending) addCost(at int64, usd float64) spending {
	if day := at / dayMs; day != s.Day {
		s.Day, s.OfDay = day, 0
	}
	s.Usd, s.OfDay = min(s.Usd+usd, wire.MaxCostUsd), min(s.OfDay+usd, wire.MaxCostUsd)
	return s
}

// crossBudget tells the highest budget that has been reached.
func (s spending) crossBudget(in input) (spending, []finding, int64) {
	var found []finding
	if s.Limit <= 0 || len(in.Limits.Budget.Shares) == 0 {
		if b, ok := highestReached(in.Limits.Budget.Run, s.Usd); ok && b > s.Told {
			s.Told = b
			found = append(found, s.budgetFinding(in, b, wire.SeverityWarning, "usd"+formatNumber(b)))
		}
		return s, found, 0
	}
	if share, ok := highestReached(in.Limits.Budget.Shares, s.Usd/s.Limit); ok && share > s.Share {
		s.Share = share
		severity := wire.SeverityWarning
		if share >= 1 {
			severity = wire.SeverityError
		}
		found = append(found, s.budgetFinding(in, s.Limit, severity, "share"+formatNumber(share)))
	}
	return s, found, 0
}

func (s spending) budgetFinding(in input, budget float64, severity wire.Severity, level string) finding {
	return finding{
		Kind: kindBudget, Severity: severity, NodeID: in.Event.Node(), ExecID: in.Event.ExecID, Armed: in.Pos, Level: level,
		Text: fmt.Sprintf(textSpent, formatDollars(s.Usd), formatDollars(budget)), Event: "budget_alert", Data: budgetData(s.Usd, budget),
	}
}

// budgetData has the fields under both names that are in use for them.
func budgetData(usd, budget float64) map[string]any {
	usd = math.Round(usd*1e6) / 1e6
	return map[string]any{"costUsd": usd, "budgetUsd": budget, "currentCost": usd, "threshold": budget}
}

// highestReached returns the highest of ascending thresholds that x has come up to.
func highestReached[N int | float64](thresholds []N, x N) (highest N, ok bool) {
	for _, t := range thresholds {
		if x >= t {
			highest, ok = t, true
		}
	}
	return highest, ok
}

// formatNumber is a number as it is written in a key.
func formatNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// numberOf reads a value that is a number.
func numberOf(v wire.Raw) (float64, bool) {
	switch x := v.Any().(type) {
	case int64:
		return float64(x), true
	case uint64:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}

// ledger adds up what all runs spend on a day.
type ledger struct {
	day  int64
	runs map[string]float64
	sum  float64
	told float64 // the highest budget of the day that was told
}

// noteSpending notes what a run has spent on its latest day; days that are over don't count.
func (l *ledger) noteSpending(runID string, s spending) {
	if s.Day < l.day || s.OfDay == 0 {
		return
	}
	if s.Day > l.day {
		*l = ledger{day: s.Day, runs: map[string]float64{}}
	}
	l.sum += s.OfDay - l.runs[runID]
	l.runs[runID] = s.OfDay
}

// crossBudget tells the highest budget of the day that has been reached. Whoever
// adds up the same day finds the same under the same key.
func (l *ledger) crossBudget(b Budget) (found []finding, budget float64) {
	budget, ok := highestReached(b.Day, l.sum)
	if !ok || budget <= l.told {
		return nil, 0
	}
	day := time.UnixMilli(l.day * dayMs).UTC().Format(time.DateOnly)
	return []finding{{
		Kind: kindBudget, Severity: wire.SeverityWarning, NodeID: wire.RunNode, Armed: uint64(max(l.day, 0)), Level: "day-usd" + formatNumber(budget),
		Text: fmt.Sprintf(textSpentDay, formatDollars(l.sum), day, formatDollars(budget)), Event: "budget_alert", Data: budgetData(l.sum, budget),
	}}, budget
}
