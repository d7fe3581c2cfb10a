package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) statsCommand() *cobra.Command {
	var q wire.StatsRequest
	var since string
	var by []string
	var reconcile bool
	cmd := &cobra.Command{
		Use:   "stats [RUN]",
		Short: "Add up cost and tokens, and tell how runs and tools did",
		Long: `Add up cost and tokens by day, model, flow and node, and tell how often tools
failed and how long they and the runs took. The usage of a message counts once in
a run; a session of Claude Code that began as a copy of another one (claude
--fork-session) has what that one used in its sum, too.

With --reconcile it compares, of one run, what each model call has told with what
results have told of the same calls, and says why they differ.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if q.Since, err = parseAgo("since", since); err != nil {
				return err
			}
			for _, what := range by {
				if !slices.Contains(statsParts(), what) {
					return usageError(strings.Join(statsParts(), ", ")+" are known", "--by: %q is unknown", what)
				}
			}
			if len(args) > 0 {
				q.Run = args[0]
			}
			if reconcile {
				return a.reconcileRun(cmd.Context(), q.Run)
			}
			return showAnswer(cmd.Context(), a.app, wire.VerbStats, q, func(stats wire.StatsResponse) error {
				return printStats(a.out, stats, by)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&by, "by", nil, "only these `tables`: day, model, flow, node, tool")
	flags.BoolVar(&reconcile, "reconcile", false, "of one run: compare what calls and what results have told")
	flags.StringVar(&since, "since", "", "only of this last `time`, such as 5m or 30d; cost and tokens of whole days (UTC)")
	filterFlags(flags, &q.Label, &q.Flow, &q.Status)
	return cmd
}

// reconcileRun compares what the calls of a run have told with what results have.
func (a viewVerbs) reconcileRun(ctx context.Context, ref string) error {
	if ref == "" {
		return usageError("wake stats RUN --reconcile", "--reconcile: name a run")
	}
	log, run, err := a.openRecord(ctx, ref)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	src, err := fileVerbs(a).findSource(ctx, log, eventlog.Query{Run: run}, false)
	if err != nil {
		return err
	}
	var told ledger.Reconciliation
	fenced := claims{}
	for e, err := range src.readEvents(ctx) {
		if err != nil {
			return interruptError(ctx, err)
		}
		if e.Event != nil && !fenced.isVoid(e.Event) {
			told.Apply(e.Event)
		}
	}
	rows := told.Rows()
	if a.json {
		return a.printJSON(map[string]any{"runId": run, "rows": rows})
	}
	return printReconciliation(a.out, rows)
}

func printReconciliation(w io.Writer, rows []ledger.Row) error {
	t := newTable(w, "NODE", "MODEL", "CALLS", "CALLS TELL", "RESULTS TELL", "COUNTED", "COST")
	for _, r := range rows {
		t.addRow(r.Node, timeline.Line(r.Model, maxMessage), fmt.Sprint(r.CallCount), r.Calls.String(), r.Results.String(), r.Ledger.String(), costText(r.CostUsd, r.CostBasis))
	}
	p := printer{w: w}
	p.printTable(t)
	for _, r := range rows {
		for _, why := range r.Why {
			p.printLine("%s, %s: %s", timeline.Line(r.Node, maxMessage), cmp.Or(timeline.Line(r.Model, maxMessage), "no model"), why)
		}
	}
	return p.err
}

func statsParts() []string { return []string{"day", "model", "flow", "node", "tool"} }

func printStats(w io.Writer, s wire.StatsResponse, by []string) error {
	var outcomes []string
	for _, status := range []string{"running", "paused", "idle", "complete", "failed", "aborted"} {
		if n := s.Runs.ByStatus[status]; n > 0 {
			outcomes = append(outcomes, fmt.Sprintf("%d %s", n, status))
		}
	}
	p := printer{w: w}
	p.printFacts([][2]string{
		{"runs", joinTexts(fmt.Sprint(s.Runs.Runs), strings.Join(outcomes, ", "))},
		{"took", percentilesText(s.Runs.P50Ms, s.Runs.P95Ms)},
		{"cost", costText(s.Total.CostUsd, s.Total.CostBasis)},
		{"tokens", tokensText(s.Total.TokensIn, s.Total.TokensOut)},
		{"calls", fmt.Sprint(s.Total.Calls)},
	})
	parts := map[string][]wire.SpendStats{"day": s.Days, "model": s.Models, "flow": s.Flows, "node": s.Nodes}
	for _, part := range statsParts() {
		if len(by) > 0 && !slices.Contains(by, part) || part != "tool" && len(parts[part]) == 0 || part == "tool" && len(s.Tools) == 0 {
			continue
		}
		p.printLine("")
		if part == "tool" {
			p.printTools(s.Tools)
			continue
		}
		t := newTable(w, strings.ToUpper(part), "RUNS", "CALLS", "TOKENS", "COST")
		for _, x := range parts[part] {
			t.addRow(x.Name, fmt.Sprint(x.Runs), fmt.Sprint(x.Calls), tokensText(x.TokensIn, x.TokensOut), costText(x.CostUsd, x.CostBasis))
		}
		p.printTable(t)
	}
	return p.err
}

func (p *printer) printTools(tools []wire.ToolStats) {
	t := newTable(p.w, "TOOL", "CALLS", "FAILED", "RATE", "DENIED", "P50", "P95")
	for _, x := range tools {
		t.addRow(x.Tool, fmt.Sprint(x.Calls), fmt.Sprint(x.Failed), fmt.Sprintf("%.0f%%", 100*x.FailureRate), fmt.Sprint(x.Denied),
			millisText(x.P50Ms), millisText(x.P95Ms))
	}
	p.printTable(t)
}

// percentilesText are how long half of them, and all but a twentieth of them, took at most.
func percentilesText(p50, p95 int64) string {
	if p95 == 0 {
		return ""
	}
	return "p50 " + cmp.Or(millisText(p50), "0ms") + ", p95 " + millisText(p95)
}

func millisText(ms int64) string {
	switch {
	case ms == 0:
		return ""
	case ms < 1000:
		return fmt.Sprintf("%dms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.1fs", float64(ms)/1000)
	}
	return timeline.Span(ms)
}
