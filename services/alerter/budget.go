package alerter

import (
	"fmt"
	"math"
	"time"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// spending finds that a run has cost more than a budget, or used more tokens.
type spending struct {
	Usd    float64                  `json:"usd,omitempty"`
	Tokens int64                    `json:"tokens,omitempty"`
	Nodes  map[string]ledger.Ledger `json:"nodes,omitempty"`  // the accounts of open executions
	Limits wire.Raw                 `json:"limits,omitempty"` // the run's own
	From   wire.Spent               `json:"from"`             // what had been spent when they were last granted again
	Spent  bool                     `json:"spent,omitempty"`  // that has paused the run
	Told   float64                  `json:"told,omitempty"`   // the highest budget that was told
	Share  float64                  `json:"share,omitempty"`  // of the limits that was told
	Day    int64                    `json:"day,omitempty"`    // days since 1970, UTC
	OfDay  float64                  `json:"ofDay,omitempty"`  // what was spent on it
}

// detect is a [detector].
func (s spending) detect(in input) (spending, []finding) {
	e := in.Event
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		s.Limits = p.Limits
	case *wire.RunForked:
		var parent wire.State
		if wire.Unmarshal(p.State, &parent) == nil {
			s.Limits = parent.Limits
		}
	case *wire.FlowPaused:
		s.Spent = p.Reason == wire.PauseBudget
	case *wire.FlowResumed:
		return s.grantBudget(p), nil
	case *wire.NodeStart, *wire.AgentStart, *wire.Usage, *wire.TurnEnd, *wire.AgentComplete:
		if e.NodeID == wire.RunNode {
			return s, nil
		}
		account := s.Nodes[e.NodeID]
		for _, x := range account.Apply(e) {
			s = s.addCost(in.At, x.CostUsd)
			s.Tokens = ledger.AddTokens(s.Tokens, ledger.TokensIn(x.Spending)+x.OutputTokens)
		}
		s.Nodes = withKey(s.Nodes, e.NodeID, account)
		return s.crossBudget(in)
	case *wire.AgentTool: // the day has it from the run that the call has started
		if usd := wire.ValueOf(p.ChildCostUsd); usd > 0 || p.ChildTokens > 0 {
			s.Usd, s.Tokens = min(s.Usd+max(0, usd), wire.MaxCostUsd), s.Tokens+max(0, p.ChildTokens)
			return s.crossBudget(in)
		}
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled:
		s.Nodes = withoutKey(s.Nodes, e.Node())
	}
	return s, nil
}

// grantBudget counts anew what is spent of a budget that was granted again; a budget that takes
// the place of another counts all that the run spends.
func (s spending) grantBudget(p *wire.FlowResumed) spending {
	switch {
	case ledger.BoundsSpending(p.Limits):
		s.Limits, s.From, s.Share = ledger.MergeLimits(s.Limits, p.Limits), wire.Spent{}, 0
	case s.Spent && !p.Hold:
		s.From, s.Share = s.sum(), 0
	}
	s.Spent = s.Spent && p.Hold
	return s
}

func (s spending) sum() wire.Spent { return wire.Spent{Usd: s.Usd, Tokens: s.Tokens} }

// addCost adds what an entry of the ledger says, which may be less than nothing.
func (s spending) addCost(at int64, usd float64) spending {
	if day := at / dayMs; day != s.Day && usd != 0 {
		s.Day, s.OfDay = day, 0
	}
	s.Usd, s.OfDay = min(max(0, s.Usd+usd), wire.MaxCostUsd), min(max(0, s.OfDay+usd), wire.MaxCostUsd)
	return s
}

// crossBudget tells the highest budget that has been reached.
func (s spending) crossBudget(in input) (spending, []finding) {
	own := ledger.BudgetOf(s.Limits)
	if own.Usd <= 0 && own.Tokens <= 0 || len(in.Limits.Budget.Shares) == 0 {
		b, ok := highestReached(in.Limits.Budget.Run, s.Usd)
		if !ok || b <= s.Told {
			return s, nil
		}
		s.Told = b
		f := budgetFinding(in, wire.SeverityWarning, "usd"+formatNumber(b))
		f.Text, f.Data = fmt.Sprintf(textSpent, ledger.DollarsText(s.Usd), ledger.DollarsText(b)), budgetData(s.Usd, b)
		return s, []finding{f}
	}
	spent, ofTokens := own.Share(s.sum(), s.From)
	share, ok := highestReached(in.Limits.Budget.Shares, spent+rounding)
	if !ok || share <= s.Share {
		return s, nil
	}
	s.Share = share
	severity := wire.SeverityWarning
	if share >= 1 {
		severity = wire.SeverityError
	}
	f := budgetFinding(in, severity, "share"+formatNumber(share))
	if usd, tokens := s.Usd-s.From.Usd, s.Tokens-s.From.Tokens; ofTokens {
		f.Text = fmt.Sprintf(textUsed, formatCount(tokens, "token"), own.Tokens)
		f.Data = map[string]any{"tokens": tokens, "budgetTokens": own.Tokens, "costUsd": usd, "currentCost": usd}
	} else {
		f.Text, f.Data = fmt.Sprintf(textSpent, ledger.DollarsText(usd), ledger.DollarsText(own.Usd)), budgetData(usd, own.Usd)
	}
	return s, []finding{f}
}

func budgetFinding(in input, severity wire.Severity, level string) finding {
	f := in.finding(kindBudget, severity, "", nil)
	f.Level, f.Event = level, "budget_alert"
	return f
}

// budgetData has the fields under both names that are in use for them.
func budgetData(usd, budget float64) map[string]any {
	usd = math.Round(usd*1e6) / 1e6
	return map[string]any{"costUsd": usd, "budgetUsd": budget, "currentCost": usd, "threshold": budget}
}

// daySum adds up what all runs spend on a day.
type daySum struct {
	day  int64
	runs map[string]float64
	sum  float64
	told float64 // the highest budget of the day that was told
}

// noteSpending notes what a run has spent on its latest day; days that are over don't count.
func (l *daySum) noteSpending(runID string, s spending) {
	if s.Day < l.day || s.OfDay == 0 {
		return
	}
	if s.Day > l.day {
		*l = daySum{day: s.Day, runs: map[string]float64{}}
	}
	l.sum += s.OfDay - l.runs[runID]
	l.runs[runID] = s.OfDay
}

// crossBudget tells the highest budget of the day that has been reached. Each alerter
// that adds up the same day finds the same under the same key.
func (l *daySum) crossBudget(b Budget) (found []finding, budget float64) {
	budget, ok := highestReached(b.Day, l.sum)
	if !ok || budget <= l.told {
		return nil, 0
	}
	day := time.UnixMilli(l.day * dayMs).UTC().Format(time.DateOnly)
	return []finding{{
		Kind: kindBudget, Severity: wire.SeverityWarning, NodeID: wire.RunNode, Armed: uint64(max(l.day, 0)), Level: "day-usd" + formatNumber(budget),
		Text: fmt.Sprintf(textSpentDay, ledger.DollarsText(l.sum), day, ledger.DollarsText(budget)), Event: "budget_alert", Data: budgetData(l.sum, budget),
	}}, budget
}
