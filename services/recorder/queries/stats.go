package queries

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

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
	t, err := a.View(ctx)
	if err != nil {
		return wire.StatsResponse{}, fmt.Errorf("recorder: stats: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	r, err := readStats(ctx, t, q, now)
	if err != nil {
		return r, request.Wrap("stats", err)
	}
	return r, nil
}

func readStats(ctx context.Context, t *archive.Tx, q wire.StatsRequest, now time.Time) (r wire.StatsResponse, err error) {
	c := statsQuery{t: t}
	where, args, err := runsFilter(wire.RunsRequest{Status: q.Status, Label: q.Label, Flow: q.Flow}, now)
	if err != nil {
		return r, err
	}
	if q.Run != "" {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return r, err
		}
		where += " AND id = " + args.Add(found.ID)
	}
	c.runs, c.args = where, args
	if q.Since > 0 {
		c.since = now.UnixMilli() - int64(q.Since)
	}
	if r.Runs, err = c.countOutcomes(ctx); err != nil {
		return r, err
	}
	for _, part := range []struct {
		into *[]wire.SpendStats
		by   string
	}{
		{&r.Days, "s.day"}, {&r.Models, byModel}, {&r.Flows, "r.flow"}, {&r.Nodes, "n.node"},
	} {
		if *part.into, err = c.sumSpend(ctx, part.by); err != nil {
			return r, err
		}
	}
	for _, d := range r.Days {
		r.Total.Calls += d.Calls
		r.Total.TokensIn += d.TokensIn
		r.Total.TokensOut += d.TokensOut
		r.Total.CostUsd += d.CostUsd
	}
	r.Total.Name, r.Total.Runs, r.Total.CostBasis = "total", r.Runs.Runs, weakestBasis(r.Days)
	r.Tools, err = c.toolStats(ctx)
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

// byModel is a model without the size of its window: results name it with that
// ("opus[1m]"), calls without.
const byModel = "replace(s.model, '[1m]', '')"

// statsQuery is a question for numbers.
type statsQuery struct {
	t     *archive.Tx
	runs  string          // which
	args  database.Params // of that
	since int64           // Unix ms; 0: ever
}

func (c statsQuery) filterText(column string, from int64) (string, database.Params) {
	args := slices.Clone(c.args)
	where := " WHERE r.id IN (SELECT id FROM runs WHERE " + c.runs + ")"
	if from > 0 {
		where += " AND " + column + " >= " + args.Add(from)
	}
	return where, args
}

// countOutcomes counts runs by what became of them, and how long those took that have
// ended.
func (c statsQuery) countOutcomes(ctx context.Context) (wire.RunStats, error) {
	s := wire.RunStats{ByStatus: map[string]int64{}}
	where, args := c.filterText("r.last_at", c.since)
	var took []int64
	for rows, err := range c.t.Rows(ctx, `SELECT r.status, r.result, r.started_at, r.ended_at FROM runs r`+where, args...) {
		if err != nil {
			return s, err
		}
		var status, result string
		var started, ended int64
		if err := rows.Scan(&status, &result, &started, &ended); err != nil {
			return s, err
		}
		if result == string(wire.FlowStatusFailed) {
			status = result
		}
		s.Runs++
		s.ByStatus[status]++
		if ended >= started && started > 0 && ended > 0 {
			took = append(took, ended-started)
		}
	}
	slices.Sort(took)
	s.P50Ms, s.P95Ms = percentile(took, 0.5), percentile(took, 0.95)
	return s, nil
}

// sumSpend adds up what was used, by a column. Days are in their order, the rest by
// cost.
func (c statsQuery) sumSpend(ctx context.Context, by string) ([]wire.SpendStats, error) {
	where, args := c.filterText("s.day", c.since/table.Day)
	order := "5 DESC, 4 DESC, 1"
	if by == "s.day" {
		order = "1 DESC"
	}
	all := []wire.SpendStats{}
	text := `SELECT ` + by + `, sum(s.calls), sum(s.tokens_in), sum(s.tokens_out), sum(s.cost_usd), count(DISTINCT s.run),
		sum(s.computed_usd), sum(s.unpriced)
		FROM spend s JOIN runs r ON r.id = s.run JOIN nodes n ON n.id = s.node` + where +
		` GROUP BY 1 ORDER BY ` + order + ` LIMIT ` + args.Add(maxStats)
	for rows, err := range c.t.Rows(ctx, text, args...) {
		if err != nil {
			return nil, err
		}
		var s wire.SpendStats
		var date, unpriced int64
		var computed float64
		name := any(&s.Name)
		if by == "s.day" {
			name = &date
		}
		if err := rows.Scan(name, &s.Calls, &s.TokensIn, &s.TokensOut, &s.CostUsd, &s.Runs, &computed, &unpriced); err != nil {
			return nil, err
		}
		s.CostBasis = ledger.Basis(s.CostUsd, computed, unpriced)
		if by == "s.day" {
			s.Name = time.UnixMilli(date * table.Day).UTC().Format(time.DateOnly)
		}
		all = append(all, s)
	}
	return all, nil
}

// toolStats tells how calls went, by tool, the most used first.
func (c statsQuery) toolStats(ctx context.Context) ([]wire.ToolStats, error) {
	where, args := c.filterText("c.ts", c.since)
	byTool := map[string]*wire.ToolStats{}
	took := map[string][]int64{}
	text := `SELECT c.tool, c.outcome, coalesce(c.duration_ms, -1) FROM tool_calls c JOIN runs r ON r.id = c.run` + where
	for rows, err := range c.t.Rows(ctx, text, args...) {
		if err != nil {
			return nil, err
		}
		var tool, outcome string
		var ms int64
		if err := rows.Scan(&tool, &outcome, &ms); err != nil {
			return nil, err
		}
		s := byTool[tool]
		if s == nil {
			s = &wire.ToolStats{Tool: tool}
			byTool[tool] = s
		}
		s.Calls++
		switch outcome {
		case "error":
			s.Failed++
		case "denied":
			s.Denied++
		}
		if ms >= 0 {
			took[tool] = append(took[tool], ms)
		}
	}
	all := []wire.ToolStats{}
	for tool, s := range byTool {
		slices.Sort(took[tool])
		s.P50Ms, s.P95Ms = percentile(took[tool], 0.5), percentile(took[tool], 0.95)
		if ran := s.Calls - s.Denied; ran > 0 {
			s.FailureRate = float64(s.Failed) / float64(ran)
		}
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b wire.ToolStats) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Tool, b.Tool))
	})
	return all[:min(len(all), maxStats)], nil
}

// percentile returns a percentile of sorted values, interpolated; 0 of none.
func percentile(sorted []int64, p float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	at := p * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return int64(math.Round(float64(sorted[low]) + (at-float64(low))*float64(sorted[high]-sorted[low])))
}
