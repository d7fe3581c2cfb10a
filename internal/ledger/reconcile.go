package ledger

import (
	"cmp"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// Reconciliation compares what the calls of a run tell with what results tell of the same calls, by node
// and model. Its zero value is that of a run that hasn't begun.
type Reconciliation struct {
	nodes map[string]*Ledger
	rows  map[account]*Row
}

// account is what a row is about.
type account struct{ node, model string }

// Row is what is told of the calls of a node to a model.
type Row struct {
	Node  string `json:"node"`
	Model string `json:"model"`

	Calls   Tokens `json:"calls"`   // as each of them told it
	Results Tokens `json:"results"` // as results told it
	Ledger  Tokens `json:"ledger"`  // as wake counts it

	CallCount int64   `json:"callCount"`
	SubCalls  int64   `json:"subCalls,omitempty"` // of those, made by sub-agents
	CostUsd   float64 `json:"costUsd"`
	CostBasis string  `json:"costBasis,omitempty"` // see [Basis]

	Why []string `json:"why,omitempty"` // each difference, explained

	cost      wire.Spending
	recovered wire.Spending // calls that were read in a session's file
	unsettled wire.Spending // calls that no result tells of
	more      Tokens        // what results told beyond the calls, and …
	less      Tokens        // … less than them
}

// Tokens are counts of tokens.
type Tokens struct {
	In  int64 `json:"in"` // those of the cache included
	Out int64 `json:"out"`
}

func (t *Tokens) add(x wire.Spending, sign int64) {
	t.In += sign * TokensIn(x)
	t.Out += sign * x.OutputTokens
}

func (t Tokens) String() string { return fmt.Sprintf("%d in, %d out", t.In, t.Out) }

// Apply takes the next event of the run.
func (r *Reconciliation) Apply(e *wire.Event) {
	l := r.nodes[e.NodeID]
	if l == nil {
		l = new(Ledger)
		if r.nodes == nil {
			r.nodes, r.rows = map[string]*Ledger{}, map[account]*Row{}
		}
		r.nodes[e.NodeID] = l
	}
	open := l.Unsettled
	entries := l.Apply(e)
	switch e.Payload.(type) {
	case *wire.NodeComplete, *wire.NodeError, *wire.AgentStart, *wire.NodeStart:
		if len(l.Unsettled) == 0 {
			r.noteUnsettled(e.NodeID, open)
		}
	}
	for _, x := range entries {
		r.addEntry(e.NodeID, x)
	}
}

func (r *Reconciliation) addEntry(node string, x Entry) {
	row := r.rowOf(node, x.Model)
	row.Ledger.add(x.Spending, 1)
	row.cost = Add(row.cost, x.Spending)
	switch x.Source {
	case SourceResult:
		row.Results.add(x.Spending, 1)
		d := Tokens{TokensIn(x.Spending), x.OutputTokens}
		row.more.In, row.less.In = row.more.In+max(0, d.In), row.less.In+max(0, -d.In)
		row.more.Out, row.less.Out = row.more.Out+max(0, d.Out), row.less.Out+max(0, -d.Out)
		return
	case wire.SourceRecovered:
		row.recovered = Add(row.recovered, x.Spending)
	default:
		row.Results.add(x.Spending, 1) // until it turns out that no result tells of it
	}
	row.Calls.add(x.Spending, 1)
	row.CallCount += x.Calls
	if x.Parent != "" {
		row.SubCalls += x.Calls
	}
}

// noteUnsettled takes calls that no result tells of any more.
func (r *Reconciliation) noteUnsettled(node string, calls []wire.Spending) {
	for _, s := range calls {
		row := r.rowOf(node, s.Model)
		row.unsettled = Add(row.unsettled, s)
		row.Results.add(s, -1)
	}
}

func (r *Reconciliation) rowOf(node, model string) *Row {
	key := account{node, model}
	if r.rows[key] == nil {
		r.rows[key] = &Row{Node: node, Model: model}
	}
	return r.rows[key]
}

// Rows are what there is to tell, by node and model. It ends the comparison.
func (r *Reconciliation) Rows() []Row {
	all := []Row{}
	for node, l := range r.nodes {
		r.noteUnsettled(node, l.Unsettled)
		l.Unsettled = nil
	}
	for _, row := range r.rows {
		row.CostUsd, row.CostBasis = row.cost.CostUsd, Basis(row.cost.CostUsd, row.cost.ComputedUsd, row.cost.Unpriced)
		row.Why = row.reasons()
		all = append(all, *row)
	}
	slices.SortFunc(all, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Model, b.Model)) })
	return all
}

// reasons explain in what the three differ.
func (row *Row) reasons() (why []string) {
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if s := row.recovered; s.Calls > 0 {
		say("%d calls (%s) were read in the session's file: no result tells of them, since the process that made them was gone", s.Calls, tokensOf(s))
	}
	if s := row.unsettled; s != (wire.Spending{Model: s.Model}) {
		say("%d calls (%s) have no result: the agent was ended before it, or is at work, or its file has none", s.Calls, tokensOf(s))
	}
	switch {
	case row.more == Tokens{}:
	case row.CallCount == 0:
		say("results tell of %s of this model, and the output of no call to it: a small model, a compaction or sub-agents whose calls it doesn't show", row.more)
	default:
		say("results tell of %s more than the output shows: calls of sub-agents, of a compaction, or tries that it doesn't tell of", row.more)
	}
	if row.less != (Tokens{}) {
		say("results tell of %s less than the output: a result doesn't count what its program gave up, or counts a call otherwise", row.less)
	}
	return why
}

func tokensOf(s wire.Spending) Tokens { return Tokens{TokensIn(s), s.OutputTokens} }
