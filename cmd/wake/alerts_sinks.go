package main

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"wake/internal/deliver"
	"wake/internal/eventlog"
	"wake/internal/timeline"
)

// alertsSinksCommand shows what the sinks have got.
func (a *app) alertsSinksCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sinks",
		Short: "Print how far the sinks are that rules sent alerts to",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withLog(cmd.Context(), func(log *eventlog.Log) error {
				all, err := deliver.Statuses(cmd.Context(), log)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]any{"sinks": append([]deliver.Status{}, all...)})
				}
				table := newTable(a.out, "SINK", "BEHIND", "HELD", "FAILED ATTEMPTS")
				for _, s := range all {
					table.row(s.Sink, strconv.FormatUint(s.Behind, 10), strconv.Itoa(s.Held), strconv.Itoa(s.Attempts))
				}
				return table.flush()
			})
		},
	}
}

// alertsTestCommand sends a test.
func (a *app) alertsTestCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "test SINK",
		Short: "Send a test to a sink",
		Long: `Send a test to a sink, in one attempt: by the alerter that sends to it, or with
--rules from here, before any alerter has these rules.`,
		Args: arguments, ValidArgsFunction: a.completeSink,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if file != "" {
				return a.testFromHere(ctx, file, args[0])
			}
			return a.withLog(ctx, func(log *eventlog.Log) error {
				r, err := deliver.Try(ctx, log, args[0])
				if err != nil {
					return err
				}
				if r.Problem != "" {
					return untaken(args[0], r.Problem)
				}
				return a.said(map[string]any{"sink": args[0], "sent": r.Sent}, args[0]+" took the test")
			})
		},
	}
	cmd.Flags().StringVar(&file, "rules", "", "`file` with the sink")
	return cmd
}

func (a *app) testFromHere(ctx context.Context, file, sink string) error {
	rules, _, err := openRules(file)
	if err != nil {
		return err
	}
	if rules.Sinks[sink] == nil {
		return usage("the sinks of the file are under `sinks`", "%s has no sink %q", file, sink)
	}
	if err := deliver.Test(ctx, deliver.Config{Out: a.out}, rules, sink, a.names); err != nil {
		return untaken(sink, err.Error())
	}
	return a.said(map[string]any{"sink": sink, "sent": 1}, sink+" took the test")
}

// untaken is the error for what a sink doesn't take.
func untaken(sink, problem string) error {
	return failure(codeSinkFailed, "", "%s doesn't take it: %s", sink, problem)
}

// said prints what was done.
func (a *app) said(asJSON any, text string) error {
	if a.json {
		return a.printJSON(asJSON)
	}
	_, err := io.WriteString(a.out, text+"\n")
	return err
}

func (a *app) deadLetterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletter",
		Short: "Print, or send again, what sinks didn't take",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.deadLetterListCommand(), a.deadLetterRetryCommand())
	return cmd
}

func (a *app) deadLetterListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [SINK]",
		Short: "Print what sinks didn't take, with the reason",
		Args:  arguments, ValidArgsFunction: a.completeSink,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), func(log *eventlog.Log) error {
				return a.listLetters(cmd.Context(), log, strings.Join(args, ""))
			})
		},
	}
}

func (a *app) listLetters(ctx context.Context, log *eventlog.Log, sink string) error {
	table := newTable(a.out, "ID", "SINK", "WHEN", "REASON", "TEXT")
	for l, err := range deliver.Letters(ctx, log, sink) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.printJSON(l); err != nil {
				return err
			}
			continue
		}
		table.row(strconv.FormatUint(l.ID, 10), l.Sink, stamp(l.Time), timeline.Line(l.Reason, maxCell), timeline.Line(l.Notification.Text, maxMessage))
	}
	if a.json {
		return nil
	}
	return table.flush()
}

func (a *app) deadLetterRetryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retry SINK [ID...]",
		Short: "Send again what a sink didn't take",
		Long: `Send again what a sink didn't take, all or those of these ids, the oldest first,
each in one attempt. What it takes now is no dead letter any more; the first that it
doesn't take ends it. An alerter whose rules have the sink does this.`,
		Args: func(cmd *cobra.Command, args []string) error { return arguments(cmd, args[:min(len(args), 1)]) }, ValidArgsFunction: a.completeSink,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []uint64
			for _, arg := range args[1:] {
				id, err := strconv.ParseUint(arg, 10, 64)
				if err != nil {
					return usage("`wake alerts deadletter list` shows them", "%q is no id of a dead letter", arg)
				}
				if !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
			return a.withLog(cmd.Context(), func(log *eventlog.Log) error {
				return a.retryLetters(cmd.Context(), log, args[0], ids)
			})
		},
	}
}

func (a *app) retryLetters(ctx context.Context, log *eventlog.Log, sink string, ids []uint64) error {
	sent := 0
	for {
		r, err := deliver.Retry(ctx, log, sink, ids)
		sent += r.Sent
		if err != nil {
			return err
		}
		if r.Problem != "" {
			return failure(codeSinkFailed, "", "%s took %d, but not the next: %s", sink, sent, r.Problem)
		}
		if missing := len(ids) - sent; !r.More && missing > 0 {
			return failure(codeSinkFailed, "`wake alerts deadletter list "+sink+"` shows those that it has",
				"%s took %d, but has no dead letter of the other %d ids", sink, sent, missing)
		}
		if !r.More || r.Sent == 0 {
			return a.said(map[string]any{"sink": sink, "sent": sent}, sink+" took "+strconv.Itoa(sent))
		}
	}
}

// withLog gives the log to f.
func (a *app) withLog(ctx context.Context, f func(*eventlog.Log) error) error {
	log, err := a.openLog(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	return f(log)
}

// completeSink completes the names of sinks that were ever sent to.
func (a *app) completeSink(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		log, err := eventlog.Open(ctx, nc, eventlog.Options{Names: a.names, Logger: a.log})
		if err != nil {
			return nil, err
		}
		all, err := deliver.Statuses(ctx, log)
		var names []cobra.Completion
		for _, s := range all {
			names = append(names, s.Sink)
		}
		return names, err
	})
}
