package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

func (a alertVerbs) backtestCommand() *cobra.Command {
	var file, since string
	cmd := &cobra.Command{
		Use:   "backtest [RUN...]",
		Short: "Print what rules would have told of recorded runs, against what was told",
		Long: `Print what rules would have told of recorded runs, against what was told: before
they wake a person at night.

    =  an alert that was raised, and would be
    +  one that would be raised, but wasn't
    -  one that was raised, but wouldn't be

Behind each is when which sink would have got it. Alerts about wake itself, such as
its storage, aren't about runs: there is nothing to compare.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ago, err := parseAgo("since", since)
			if err != nil {
				return err
			}
			if (len(args) > 0) == (ago > 0) {
				return usageError("wake alerts backtest --rules FILE @last", "either runs or --since says what to look at")
			}
			rules, settings, err := openRules(file)
			if err != nil {
				return err
			}
			log, err := a.openReader(cmd.Context())
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			runs, err := a.backtestRuns(cmd.Context(), log, args, ago)
			if err != nil {
				return err
			}
			return a.runBacktest(cmd.Context(), log, runs, rules, settings)
		},
	}
	cmd.Flags().StringVar(&file, "rules", "", "`file` with the rules")
	cmd.Flags().StringVar(&since, "since", "", "all runs that were active within this `time`, such as 12h or 7d")
	return cmd
}

// backtestRuns returns the ids of the runs to look at.
func (a alertVerbs) backtestRuns(ctx context.Context, log *feed.Reader, args []string, since wire.Ago) ([]string, error) {
	var runs []string
	for _, arg := range args {
		run, err := a.runID(ctx, log, arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(runs, run) {
			runs = append(runs, run)
		}
	}
	for q := (wire.RunsRequest{Since: since, Limit: 1000}); since > 0; {
		page, err := api.Call[wire.RunsResponse](ctx, log.Conn(), a.names, wire.VerbRuns, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Runs {
			runs = append(runs, r.RunID)
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	return runs, nil
}

// backtestRow is an alert, and whether it was or would be raised.
type backtestRow struct {
	Mark  string     `json:"mark"`
	Alert wire.Alert `json:"alert"`
	Sent  []receipt  `json:"sent"` // that it would have been
}

type receipt struct {
	Sink   string `json:"sink"`
	At     int64  `json:"at"` // Unix ms
	Digest bool   `json:"digest,omitempty"`
}

func (a alertVerbs) runBacktest(ctx context.Context, log *feed.Reader, runs []string, rules *deliver.Rules, settings alerter.Settings) error {
	var entries []eventlog.Entry
	var was []wire.Alert
	for _, run := range runs {
		for e, err := range history.Read(ctx, log, eventlog.Query{Run: run}) {
			if err != nil {
				return err
			}
			e.Data = nil // it is decoded
			entries = append(entries, e)
		}
		err := a.eachAlert(ctx, log, run, false, func(alert wire.Alert) error {
			was = append(was, alert)
			return nil
		})
		if err != nil {
			return err
		}
	}
	slices.SortStableFunc(entries, func(x, y eventlog.Entry) int { return cmp.Compare(x.Pos, y.Pos) })
	would := alerter.Backtest(settings, entries)
	return a.printBacktest(markAlerts(was, would, deliver.Simulate(rules, would)))
}

func occurrenceKey(a wire.Alert) string {
	return strings.Join([]string{a.RunID, a.NodeID, a.Kind, a.Key}, "\x00")
}

func markAlerts(was, would []wire.Alert, deliveries []deliver.Delivery) []backtestRow {
	raised := map[string]bool{}
	for _, alert := range was {
		raised[occurrenceKey(alert)] = true
	}
	var all []backtestRow
	for i, alert := range would {
		v := backtestRow{Mark: "+", Alert: alert, Sent: []receipt{}}
		if raised[occurrenceKey(alert)] {
			v.Mark = "="
			delete(raised, occurrenceKey(alert))
		}
		for _, d := range deliveries {
			if d.Of(i) {
				v.Sent = append(v.Sent, receipt{d.Sink, d.At.UnixMilli(), d.Notification.Digest != nil})
			}
		}
		all = append(all, v)
	}
	for _, alert := range was {
		if raised[occurrenceKey(alert)] {
			all = append(all, backtestRow{Mark: "-", Alert: alert, Sent: []receipt{}})
		}
	}
	slices.SortStableFunc(all, func(x, y backtestRow) int { return cmp.Compare(x.Alert.Timestamp, y.Alert.Timestamp) })
	return all
}

func (a alertVerbs) printBacktest(all []backtestRow) error {
	count := map[string]int{}
	for _, v := range all {
		count[v.Mark]++
		if a.json {
			if err := a.printJSON(v); err != nil {
				return err
			}
			continue
		}
		to := "no receiver"
		if len(v.Sent) > 0 {
			to = receiptsText(v)
		}
		if v.Mark == "-" {
			to = ""
		}
		if _, err := fmt.Fprintf(a.out, "%s %s %-8s %s %s\n", v.Mark, dateTimeText(v.Alert.Timestamp), timeline.Line(string(v.Alert.Severity), maxCell),
			timeline.Line(v.Alert.RunID, runColumn), timeline.Line(v.Alert.Text, maxMessage)+arrowTo(to)); err != nil {
			return err
		}
	}
	if a.json {
		return nil
	}
	_, err := fmt.Fprintf(a.out, "%d as before, %d new, %d no more\n", count["="], count["+"], count["-"])
	return err
}

func arrowTo(to string) string {
	if to == "" {
		return ""
	}
	return "  → " + to
}

func receiptsText(v backtestRow) string {
	var all []string
	for _, r := range v.Sent {
		switch {
		case r.Digest:
			all = append(all, r.Sink+" in a digest at "+dateTimeText(r.At))
		default:
			all = append(all, r.Sink)
		}
	}
	return strings.Join(all, ", ")
}

func dateTimeText(ms int64) string { return time.UnixMilli(ms).Format(time.DateTime) }
