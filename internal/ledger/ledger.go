// Package ledger folds what a node's events say of model calls into one account: each call once,
// and what results tell beyond the calls. Every reader that counts tokens or costs counts these entries.
package ledger

import (
	"cmp"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// Ledger is the account of a node's open execution. The zero value is that of one that hasn't
// begun. It is bounded, and can be stored.
//
// Two feeds tell the same: each model call tells its usage when it is over, and the result of a
// turn tells what all calls since the last result used and cost, those included which the agent's
// output doesn't show (of sub-agents, of its small model, of a compaction). The calls count at
// once. A result replaces what they have told since the one before.
type Ledger struct {
	Exec      string          `json:"exec,omitempty"`
	ExecCost  float64         `json:"execCost,omitempty"` // of this execution, in US dollars
	Counted   []string        `json:"counted,omitempty"`  // messages that were counted last, oldest first
	Unsettled []wire.Spending `json:"unsettled,omitempty"`
	Settled   bool            `json:"settled,omitempty"` // a result has told what calls of this execution used
}

// Entry is what an event adds to the account. What a result tells less than its calls did is
// negative. Sums of entries never are, but for rounding.
type Entry struct {
	wire.Spending

	Source  string // SourceStream, SourceResult, or of [wire.Usage.Source]
	Message string // of the model, by its id; "" of a result
	Parent  string // the call that began the sub-agent
}

// Where entries come from, besides the sources of [wire.Usage].
const (
	SourceStream = "stream" // what the agent printed
	SourceResult = "result" // the result of a turn, or of the execution: what it tells beyond the calls before it
)

// Bounds of what is remembered of messages. Repetitions follow at once, but those of sub-agents
// that work at the same time stand in between.
const (
	maxCounted   = 16  // messages
	maxMessageID = 128 // bytes of an id; longer ones are counted each time
	maxModels    = 32  // with unsettled calls; the others are counted as one without a name
)

// Apply takes the next event of the node and returns what it adds, in a fixed order.
func (l *Ledger) Apply(e *wire.Event) []Entry {
	switch p := e.Payload.(type) {
	case *wire.NodeStart:
		l.beginExecution(e.ExecID)
	case *wire.AgentStart:
		if e.Parent == "" {
			l.beginExecution(e.ExecID)
			if !p.Resumed || p.Provider != wire.ProviderNative {
				l.Unsettled = nil // a result tells of calls of its own process
			}
		}
	case *wire.NodeComplete, *wire.NodeError:
		if l.isCurrent(e) {
			l.Counted, l.Unsettled, l.Settled = nil, nil, false
		}
	case *wire.Usage, *wire.TurnEnd, *wire.AgentComplete:
		if l.isCurrent(e) {
			return l.account(e)
		}
		late := Ledger{Exec: e.ExecID, Counted: l.Counted}
		entries := late.account(e)
		l.Counted = late.Counted
		return entries
	}
	return nil
}

// beginExecution begins an execution, unless it is the one that goes on.
func (l *Ledger) beginExecution(exec string) {
	if exec != "" && exec != l.Exec {
		*l = Ledger{Exec: exec}
	}
}

// isCurrent reports whether an event is about the execution that goes on. The first one that
// an event names is.
func (l *Ledger) isCurrent(e *wire.Event) bool {
	l.Exec = cmp.Or(l.Exec, e.ExecID)
	return e.ExecID == "" || e.ExecID == l.Exec
}

func (l *Ledger) account(e *wire.Event) (entries []Entry) {
	switch p := e.Payload.(type) {
	case *wire.Usage:
		entries = l.addCall(e, p)
	case *wire.TurnEnd:
		r := result{p.ModelUsage, p.Usage, p.TurnCostUsd, p.CostSource}
		entries = l.settleResult(r, e.Parent == "")
	case *wire.AgentComplete:
		if e.Parent == "" {
			entries = l.conclude(p)
		}
	}
	for _, x := range entries {
		l.ExecCost = min(max(0, l.ExecCost+x.CostUsd), wire.MaxCostUsd)
	}
	return entries
}

// addCall counts a model call. One that is told again, since a block of the same message follows or
// a session was read again, isn't counted again.
func (l *Ledger) addCall(e *wire.Event, p *wire.Usage) []Entry {
	if slices.Contains(l.Counted, p.MessageID) {
		return nil
	}
	if p.MessageID != "" && len(p.MessageID) <= maxMessageID {
		last := l.Counted[max(0, len(l.Counted)-maxCounted+1):]
		l.Counted = append(append(make([]string, 0, len(last)+1), last...), p.MessageID) // a copy: states share it
	}
	x := Entry{
		Spending: wire.Spending{
			Model: ModelName(p.Model), Calls: 1, InputTokens: AddTokens(0, p.InputTokens), OutputTokens: AddTokens(0, p.OutputTokens),
			CacheCreationInputTokens: AddTokens(0, wire.ValueOf(p.CacheCreationInputTokens)),
			CacheReadInputTokens:     AddTokens(0, wire.ValueOf(p.CacheReadInputTokens)),
		},
		Source: p.Source, Message: p.MessageID, Parent: e.Parent,
	}
	x.Source = cmp.Or(x.Source, SourceStream)
	if usd := costOf(p.CostUsd); usd == nil {
		x.Unpriced = 1
	} else if x.CostUsd = *usd; p.CostSource != "" {
		x.ComputedUsd = *usd
	}
	if p.Source != wire.SourceRecovered { // the result of another process doesn't count it
		l.Unsettled = addSpending(l.Unsettled, x.Spending)
	}
	return []Entry{x}
}

// addSpending adds to the sums by model, of which it returns a copy: states share them.
func addSpending(sums []wire.Spending, x wire.Spending) []wire.Spending {
	sums = slices.Clone(sums)
	i := slices.IndexFunc(sums, func(s wire.Spending) bool { return s.Model == x.Model })
	if i < 0 && len(sums) >= maxModels {
		x.Model = ""
		i = slices.IndexFunc(sums, func(s wire.Spending) bool { return s.Model == "" })
	}
	if i < 0 {
		return append(sums, x)
	}
	sums[i] = Add(sums[i], x)
	return sums
}

// Accounts are the ledgers of a run's nodes. Its zero value is that of a run that hasn't begun.
type Accounts struct{ nodes map[string]*Ledger }

// Apply takes the next event of the run, see [Ledger.Apply].
func (a *Accounts) Apply(e *wire.Event) []Entry {
	l := a.nodes[e.NodeID]
	if l == nil {
		l = new(Ledger)
		if a.nodes == nil {
			a.nodes = map[string]*Ledger{}
		}
		a.nodes[e.NodeID] = l
	}
	return l.Apply(e)
}

// MaxTokens bounds tokens, and what they come to in a run: agents tell what they like.
const MaxTokens = 1 << 50

// AddTokens adds to a sum of tokens, which stays within 0 and [MaxTokens], whatever is added.
func AddTokens(sum, n int64) int64 {
	return min(max(0, sum+min(max(n, -MaxTokens), MaxTokens)), MaxTokens)
}

// Add returns the sum of two, which has the model of the first.
func Add(a, b wire.Spending) wire.Spending {
	a.Calls += b.Calls
	a.InputTokens = AddTokens(a.InputTokens, b.InputTokens)
	a.OutputTokens = AddTokens(a.OutputTokens, b.OutputTokens)
	a.CacheCreationInputTokens = AddTokens(a.CacheCreationInputTokens, b.CacheCreationInputTokens)
	a.CacheReadInputTokens = AddTokens(a.CacheReadInputTokens, b.CacheReadInputTokens)
	a.CostUsd = min(max(0, a.CostUsd+b.CostUsd), wire.MaxCostUsd)
	a.ComputedUsd = min(max(0, a.ComputedUsd+b.ComputedUsd), wire.MaxCostUsd)
	a.Unpriced += b.Unpriced
	return a
}

// TokensIn are the tokens that the model was given, those of the cache included.
func TokensIn(s wire.Spending) int64 {
	return s.InputTokens + s.CacheCreationInputTokens + s.CacheReadInputTokens
}

// TotalIn is [TokensIn] of the totals of a run.
func TotalIn(u wire.UsageTotals) int64 {
	return u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens
}

// ModelName is a model without the size of its window: results name it with that ("opus[1m]"), calls
// without.
func ModelName(name string) string {
	base, _, _ := strings.Cut(name, "[")
	return base
}

// costOf is a cost that an agent tells, within its bounds; nil if it tells none, or one that is none.
func costOf(usd *float64) *float64 {
	if usd == nil || !(*usd >= 0) { // not a number, too
		return nil
	}
	return new(min(*usd, wire.MaxCostUsd))
}

// Basis says what is known of a cost; "" if there is none. Of a cost of 0 that is partly unknown
// nothing is known.
func Basis(usd, computed float64, unpriced int64) string {
	switch {
	case unpriced > 0:
		return wire.CostPartly
	case computed > rounding:
		return wire.CostComputed
	case usd > 0:
		return wire.CostReported
	}
	return ""
}
