package queries

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// maxStats bounds the rows of a table of numbers.
const maxStats = 200

// Stats answers a [wire.StatsRequest] as of now.
func (a *Answers) Stats(ctx context.Context, q wire.StatsRequest, now time.Time) (wire.StatsResponse, error) {
	drops := a.calls.dropped() // before the view is taken
	filter := wire.RunsRequest{Status: q.Status, Label: q.Label, Flow: q.Flow}
	return askAll(ctx, a, "stats", filter, now, func(t *archive.Tx, runs []*rollRun) (wire.StatsResponse, error) {
		return a.readStats(ctx, t, runs, q, now, drops)
	})
}

func (a *Answers) readStats(ctx context.Context, t *archive.Tx, runs []*rollRun, q wire.StatsRequest, now time.Time, drops int) (r wire.StatsResponse, err error) {
	if q.Run != "" {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return r, err
		}
		runs = slices.DeleteFunc(runs, func(r *rollRun) bool { return r.ID != found.ID })
	}
	since := int64(0) // Unix ms; 0: ever
	if q.Since > 0 {
		since = now.UnixMilli() - int64(q.Since)
	}
	flows := countOutcomes(runs, since, &r.Runs)
	if err := sumSpend(ctx, t, runs, since, &r); err != nil {
		return r, err
	}
	r.Total.Name, r.Total.Runs = "total", r.Runs.Runs
	var all []heldCall
	var tools []string
	held := false
	if q.Run == "" {
		all, tools, held, err = a.calls.upTo(ctx, t, drops)
	}
	if err == nil && !held {
		all, tools, err = readCalls(ctx, t, runs, since)
	}
	r.Tools = toolStats(all, tools, since, flows)
	return r, err
}

// weakestBasis is what is known of a sum of costs.
func weakestBasis(parts []wire.SpendStats) (basis string) {
	for _, known := range []string{wire.CostReported, wire.CostComputed, wire.CostPartly} {
		if slices.ContainsFunc(parts, func(s wire.SpendStats) bool { return s.CostBasis == known }) {
			basis = known
		}
	}
	return basis
}

// countOutcomes counts runs by what became of them, and how long those took that have
// ended. It returns the flow of each run by its id, also of those before since.
func countOutcomes(runs []*rollRun, since int64, s *wire.RunStats) (flows map[int64]string) {
	s.ByStatus, flows = map[string]int64{}, make(map[int64]string, len(runs))
	var took []int64
	for _, r := range runs {
		flows[r.ID] = r.flow
		if r.activeAt < since {
			continue
		}
		status := r.status
		if r.result == string(wire.FlowStatusFailed) {
			status = r.result
		}
		s.Runs++
		s.ByStatus[status]++
		if r.endedAt >= r.startedAt && r.startedAt > 0 && r.endedAt > 0 {
			took = append(took, r.endedAt-r.startedAt)
		}
	}
	slices.Sort(took)
	s.P50Ms, s.P95Ms = percentileOf(took, 0.5), percentileOf(took, 0.95)
	return flows
}

// usageSums adds up what was used by a name, run by run.
type usageSums map[string]*sum

type sum struct {
	wire.SpendStats

	computed float64
	unpriced int64
	run      int64 // the last one
}

// maxSum is what a sum of tokens comes to at most: JSON's readers know no larger whole numbers.
const maxSum = 1 << 53

func addBounded(sum, n int64) int64 { return min(max(sum+n, -maxSum), maxSum) }

func (s usageSums) add(name string, u *spending) {
	of := s[name]
	if of == nil {
		of = &sum{SpendStats: wire.SpendStats{Name: name}}
		s[name] = of
	}
	of.Calls += u.Calls
	of.TokensIn = addBounded(of.TokensIn, u.TokensIn)
	of.TokensOut = addBounded(of.TokensOut, u.TokensOut)
	of.CostUsd += u.CostUsd
	of.computed += u.ComputedUsd
	of.unpriced += u.Unpriced
	if of.run != u.Run {
		of.run = u.Run
		of.Runs++
	}
}

// list returns the sums, in an order.
func (s usageSums) list(order func(a, b wire.SpendStats) int) []wire.SpendStats {
	all := make([]wire.SpendStats, 0, len(s))
	for _, of := range s {
		of.CostBasis = ledger.Basis(of.CostUsd, of.computed, of.unpriced)
		all = append(all, of.SpendStats)
	}
	slices.SortFunc(all, order)
	return all
}

// spending is what a node has used of a model in a day.
type spending struct {
	table.Spend

	node string // its name
}

// readSpendings reads what runs have spent of which it isn't known yet.
func readSpendings(ctx context.Context, t *archive.Tx, runs []*rollRun) error {
	unread, ids := map[int64]*rollRun{}, []any{}
	for _, r := range runs {
		if r.spent.Load() == nil {
			unread[r.ID], ids = r, append(ids, r.ID)
		}
	}
	read := map[int64][]spending{}
	for ids := range slices.Chunk(ids, rowsAtOnce) {
		var args database.Params
		text := `SELECT s.run, s.day, s.model, n.node, s.calls, s.tokens_in, s.tokens_out, s.cost_usd, s.computed_usd, s.unpriced
			FROM spend s JOIN nodes n ON n.id = s.node WHERE s.run IN (` + args.List(ids...) + `)`
		var u spending
		for err := range t.Each(ctx, text, args, &u.Run, &u.Day, &u.Model, &u.node, &u.Calls, &u.TokensIn, &u.TokensOut, &u.CostUsd, &u.ComputedUsd, &u.Unpriced) {
			if err != nil {
				return err
			}
			read[u.Run] = append(read[u.Run], u)
		}
	}
	for id, r := range unread {
		r.spent.Store(new(read[id]))
	}
	return nil
}

// sumSpend adds up what the runs have used, looking at each row once.
func sumSpend(ctx context.Context, t *archive.Tx, runs []*rollRun, since int64, r *wire.StatsResponse) error {
	if err := readSpendings(ctx, t, runs); err != nil {
		return err
	}
	days, models, byFlow, nodes := usageSums{}, usageSums{}, usageSums{}, usageSums{}
	dates := map[int64]string{}
	for _, run := range runs {
		spent := *run.spent.Load()
		for i := range spent {
			u := &spent[i]
			if u.Day < since/table.Day {
				continue
			}
			if dates[u.Day] == "" {
				dates[u.Day] = time.UnixMilli(u.Day * table.Day).UTC().Format(time.DateOnly)
			}
			days.add(dates[u.Day], u)
			models.add(strings.ReplaceAll(u.Model, "[1m]", ""), u) // results name it with the size of its window, calls without
			byFlow.add(run.flow, u)
			nodes.add(u.node, u)
		}
	}
	r.Days = days.list(func(a, b wire.SpendStats) int { return strings.Compare(b.Name, a.Name) })
	for _, d := range r.Days {
		r.Total.Calls += d.Calls
		r.Total.TokensIn = addBounded(r.Total.TokensIn, d.TokensIn)
		r.Total.TokensOut = addBounded(r.Total.TokensOut, d.TokensOut)
		r.Total.CostUsd += d.CostUsd
	}
	r.Total.CostBasis = weakestBasis(r.Days)
	byCost := func(a, b wire.SpendStats) int {
		return cmp.Or(cmp.Compare(b.CostUsd, a.CostUsd), cmp.Compare(b.TokensOut, a.TokensOut), strings.Compare(a.Name, b.Name))
	}
	r.Models, r.Flows, r.Nodes = models.list(byCost), byFlow.list(byCost), nodes.list(byCost)
	for _, part := range []*[]wire.SpendStats{&r.Days, &r.Models, &r.Flows, &r.Nodes} {
		*part = (*part)[:min(len(*part), maxStats)]
	}
	return nil
}

// readCalls reads the calls of runs, from a time on.
func readCalls(ctx context.Context, t *archive.Tx, runs []*rollRun, since int64) (all []heldCall, tools []string, err error) {
	if len(runs) == 0 {
		return nil, nil, nil
	}
	var args database.Params
	where := "ts >= " + args.Add(since)
	if len(runs) == 1 {
		where += " AND run = " + args.Add(runs[0].ID)
	}
	var names nameTable
	var h heldCall
	var tool, outcome sql.RawBytes
	for err := range t.Each(ctx, `SELECT ts, run, coalesce(duration_ms, -1), tool, outcome FROM tool_calls WHERE `+where, args, &h.ts, &h.run, &h.took, &tool, &outcome) {
		if err != nil {
			return nil, nil, err
		}
		h.tool, h.outcome = names.numberOf(tool), outcomeOf(outcome)
		all = append(all, h)
	}
	return all, names.all, nil
}

// toolStats tells how the calls of some runs went, by tool, the most used first.
func toolStats(calls []heldCall, tools []string, since int64, flows map[int64]string) []wire.ToolStats {
	stats, took := make([]wire.ToolStats, len(tools)), make([][]int64, len(tools))
	run, wanted := int64(-1), false
	for i := range calls {
		h := &calls[i]
		if h.run != run { // many in a row are of one
			run = h.run
			_, wanted = flows[run]
		}
		if !wanted || h.ts < since {
			continue
		}
		s := &stats[h.tool]
		s.Calls++
		switch h.outcome {
		case callDone:
		case callFailed:
			s.Failed++
		case callDenied:
			s.Denied++
		}
		if h.took >= 0 {
			took[h.tool] = append(took[h.tool], h.took)
		}
	}
	all := []wire.ToolStats{}
	for tool, s := range stats {
		if s.Calls == 0 {
			continue
		}
		s.Tool = tools[tool]
		slices.Sort(took[tool])
		s.P50Ms, s.P95Ms = percentileOf(took[tool], 0.5), percentileOf(took[tool], 0.95)
		if ran := s.Calls - s.Denied; ran > 0 {
			s.FailureRate = float64(s.Failed) / float64(ran)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b wire.ToolStats) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Tool, b.Tool))
	})
	return all[:min(len(all), maxStats)]
}

// percentileOf returns a percentile of sorted values, interpolated; 0 of none.
func percentileOf(sorted []int64, p float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	at := p * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return int64(math.Round(float64(sorted[low]) + (at-float64(low))*float64(sorted[high]-sorted[low])))
}

// Budgets returns budgets that runs share with what is spent of them now: as `wake stats` has it, of runs that are going to be
// deleted, too. What was spent by runs that are gone isn't known any more.
func (a *Answers) Budgets(ctx context.Context, all []wire.SharedBudget, now time.Time) (wire.BudgetsResponse, error) {
	return askArchive(ctx, a, "budgets", func(t *archive.Tx) (wire.BudgetsResponse, error) {
		for i := range all {
			if err := sumBudget(ctx, t, &all[i], now); err != nil {
				return wire.BudgetsResponse{}, err
			}
		}
		return wire.BudgetsResponse{Budgets: all}, nil
	})
}

func sumBudget(ctx context.Context, t *archive.Tx, b *wire.SharedBudget, now time.Time) error {
	var args database.Params
	terms := []string{"day >= 0"}
	if b.Per == wire.BudgetPerDay {
		b.Day = budget.Today(now)
		terms = append(terms, "day = "+args.Add(now.UnixMilli()/table.Day))
	}
	if b.Label != "" {
		key, value, _ := strings.Cut(b.Label, "=")
		terms = append(terms, "run IN (SELECT run FROM labels WHERE key = "+args.Add(key)+" AND value = "+args.Add(value)+")")
	}
	// A result may take back what calls of the day before have told: of no run that is less than nothing, which would count for others.
	text := `SELECT coalesce(sum(CASE WHEN usd > 0 THEN usd ELSE 0 END), 0.0), coalesce(sum(CASE WHEN tokens > 0 THEN tokens ELSE 0 END), 0.0) FROM (
		SELECT sum(cost_usd) AS usd, sum(CAST(tokens_in AS DOUBLE PRECISION) + tokens_out) AS tokens FROM spend WHERE ` + strings.Join(terms, " AND ") + ` GROUP BY run) spent`
	var usd, tokens float64 // a sum of whole numbers may be more than a database has
	if err := t.Row(ctx, text, args...).Scan(&usd, &tokens); err != nil {
		return err
	}
	b.Spent = wire.Spent{Usd: min(max(0, usd), wire.MaxCostUsd), Tokens: int64(min(max(0, tokens), maxSum))}
	return nil
}
