package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) runsCommand() *cobra.Command {
	var q wire.RunsRequest
	var since, until string
	var also []string
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List runs, the newest first",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Since, err = parseAgo("since", since); err != nil {
				return err
			}
			if q.Until, err = parseAgo("until", until); err != nil {
				return err
			}
			if !(q.MinCostUsd >= 0 && q.MinCostUsd <= wire.MaxCostUsd) { // not a number, too
				return usageError("such as 0.5", "--min-cost: %v are no dollars", q.MinCostUsd)
			}
			if len(also) > 0 && q.Cursor != "" {
				return usageError("ask for more by --limit", "--cursor: a page is one of a single installation")
			}
			runs, err := a.listRuns(cmd.Context(), q, also)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(runs)
			}
			return printRuns(a.out, runs, time.Now(), len(also) > 0)
		},
	}
	flags := cmd.Flags()
	filterFlags(flags, &q.Label, &q.Flow, &q.Status)
	flags.StringVar(&since, "since", "", "only runs that were active within this `time`, such as 90s, 5m or 2d")
	flags.StringVar(&until, "until", "", "only runs that were started at least this `time` ago")
	flags.StringVar(&q.Tool, "tool", "", "only runs that used the tool of this `name`")
	flags.StringVar(&q.Error, "error", "", "only runs in whose errors this `text` occurs, ignoring case")
	flags.Float64Var(&q.MinCostUsd, "min-cost", 0, "only runs that cost at least this many `dollars`")
	flags.BoolVar(&q.Incomplete, "incomplete", false, "only runs with a session of which the stream or the session file lacks something")
	flags.BoolVar(&q.Deleted, "deleted", false, "only runs that were deleted and can still be restored")
	flags.IntVar(&q.Limit, "limit", 50, "at most this `many`, 1000 or fewer")
	flags.StringVar(&q.Cursor, "cursor", "", "go on where the page before ended")
	alsoFlag(flags, &also)
	return cmd
}

// filterFlags adds the flags that choose runs to a set of flags; status may be nil.
func filterFlags(flags *pflag.FlagSet, label, flow *string, status *[]string) {
	flags.StringVar(label, "label", "", "only runs with this label, `key=value` or value")
	flags.StringVar(flow, "flow", "", "only runs of the flow of this `name`")
	if status != nil {
		flags.StringSliceVar(status, "status", nil, "only runs with this `status` or outcome; active means not ended")
	}
}

// listRuns asks for runs, the newest first, of this installation and of further ones.
func (a viewVerbs) listRuns(ctx context.Context, q wire.RunsRequest, also []string) (all wire.RunsResponse, err error) {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return all, err
	}
	defer nc.Close()
	err = a.askEach(also, func(names subjects.Names, of string) error {
		runs, err := api.Call[wire.RunsResponse](ctx, nc, names, wire.VerbRuns, q)
		if err != nil {
			return err
		}
		a.noteLag(runs.EventsBehind())
		for i := range runs.Runs {
			runs.Runs[i].RunID = of + runs.Runs[i].RunID
		}
		if of == "" {
			all = runs
		} else {
			all.Runs = append(all.Runs, runs.Runs...)
		}
		return nil
	})
	if len(also) > 0 {
		slices.SortStableFunc(all.Runs, func(a, b wire.RunInfo) int { return cmp.Compare(b.StartedAt, a.StartedAt) })
		if q.Limit > 0 {
			all.Runs = all.Runs[:min(len(all.Runs), q.Limit)]
		}
	}
	return all, err
}

func parseAgo(flag, text string) (wire.Ago, error) {
	if text == "" {
		return 0, nil
	}
	ago, err := wire.ParseAgo(text)
	if err != nil {
		return 0, usageError("such as 90s, 5m, 1h30m or 2d", "--%s: %q is no span of time", flag, text)
	}
	return ago, nil
}

func printRuns(w io.Writer, runs wire.RunsResponse, now time.Time, several bool) error {
	if len(runs.Runs) == 0 {
		_, err := fmt.Fprintln(w, "no runs")
		return err
	}
	table := newTable(w, "RUN", "FLOW", "STATUS", "STARTED", "TOOK", "COST", "TOKENS", "TOOLS", "LABELS")
	for _, r := range runs.Runs {
		end := now
		switch {
		case r.EndedAt > 0:
			end = time.UnixMilli(r.EndedAt)
		case r.Imported == wire.ImportedCopy: // nothing more is told of it
			end = time.UnixMilli(r.LastActiveAt)
		}
		table.addRow(r.RunID, r.FlowName, statusText(r.Status, r.Result, r.Reason), agoText(now, r.StartedAt),
			spanText(r.StartedAt, end), costText(r.CostUsd, r.CostBasis), tokensText(r.TokensIn, r.TokensOut), fmt.Sprint(r.ToolsUsed), labelsText(r.Labels))
	}
	if err := table.flush(); err != nil {
		return err
	}
	for _, r := range runs.Runs {
		id := timeline.Line(r.RunID, maxCell)
		switch {
		case r.GoneAt > 0:
			_, _ = fmt.Fprintf(w, "%s was deleted %s, its events are removed in %s: %s restores it\n",
				id, agoText(now, r.DeletedAt), spanText(now.UnixMilli(), time.UnixMilli(r.GoneAt)), lineFor("undelete", id, several))
		case r.Status != wire.RunPaused, r.Imported == wire.ImportedCopy: // of a copy nothing goes on
		case r.Reason == wire.PauseSharedBudget:
			_, _ = fmt.Fprintf(w, "%s is paused until there is more of a budget that it shares: wake budget list\n", id)
		case r.Reason != wire.PauseIdle:
			_, _ = fmt.Fprintf(w, "%s is paused: %s says why, %s goes on\n", id, lineFor("status", id, several), lineFor("resume", id, several))
		}
	}
	if runs.Cursor != "" {
		_, err := fmt.Fprintf(w, "more with --cursor %s\n", runs.Cursor)
		return err
	}
	return nil
}

// statusText says how a run is doing in one or two words.
func statusText(status wire.RunStatus, result wire.FlowStatus, reason string) string {
	text := string(status)
	if result != "" {
		text = string(result)
	}
	text += timeline.InBrackets(reason)
	return text
}

func dollarsText(usd float64) string {
	switch {
	case usd == 0:
		return "-"
	case usd < 0.01:
		return fmt.Sprintf("$%.4f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}

// costText is a cost and what is known of it.
func costText(usd float64, basis string) string {
	if basis == wire.CostComputed || basis == wire.CostPartly {
		return timeline.Cost(usd, basis)
	}
	return dollarsText(usd)
}

func tokensText(in, out int64) string {
	if in == 0 && out == 0 {
		return "-"
	}
	return timeline.Count(in) + " in, " + timeline.Count(out) + " out"
}

func agoText(now time.Time, ms int64) string {
	if ms == 0 {
		return "-"
	}
	return timeline.Span(now.UnixMilli()-ms) + " ago"
}

func spanText(from int64, to time.Time) string {
	if from == 0 {
		return "-"
	}
	return timeline.Span(to.UnixMilli() - from)
}

func labelsText(all map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, key+"="+all[key])
	}
	return strings.Join(out, ",")
}
