package main

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/timeline"
)

// alertsSinksCommand shows what the sinks have got.
func (a alertVerbs) alertsSinksCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sinks",
		Short: "Print how far the sinks are that rules sent alerts to",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd.Context(), func(nc *nats.Conn) error {
				all, err := deliver.Statuses(cmd.Context(), nc, a.names)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]any{"sinks": all})
				}
				table := newTable(a.out, "SINK", "BEHIND", "HELD", "FAILED ATTEMPTS")
				for _, s := range all {
					table.addRow(s.Sink, strconv.FormatUint(s.Behind, 10), strconv.Itoa(s.Held), strconv.Itoa(s.Attempts))
				}
				return table.flush()
			})
		},
	}
}

func (a alertVerbs) alertsTestCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "test SINK",
		Short: "Send a test to a sink",
		Long: `Send a test to a sink, in one attempt: by the alerter that sends to it, or with
--rules from here, before any alerter has these rules.`,
		ValidArgsFunction: a.completeSink,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if file != "" {
				return a.testFromHere(ctx, file, args[0])
			}
			return a.withConnection(ctx, func(nc *nats.Conn) error {
				r, err := deliver.Try(ctx, nc, a.names, args[0])
				if err != nil {
					return err
				}
				if r.Problem != "" {
					return sinkError(args[0], r.Problem)
				}
				return a.printAnswer(map[string]any{"sink": args[0], "sent": r.Sent}, args[0]+" took the test")
			})
		},
	}
	cmd.Flags().StringVar(&file, "rules", "", "`file` with the sink")
	return cmd
}

func (a alertVerbs) testFromHere(ctx context.Context, file, sink string) error {
	rules, _, err := openRules(file)
	if err != nil {
		return err
	}
	if rules.Sinks[sink] == nil {
		return usageError("the sinks of the file are under `sinks`", "%s has no sink %q", file, sink)
	}
	if err := deliver.Test(ctx, deliver.Config{Out: a.out}, rules, sink, a.names); err != nil {
		return sinkError(sink, err.Error())
	}
	return a.printAnswer(map[string]any{"sink": sink, "sent": 1}, sink+" took the test")
}

// sinkError is the error for what a sink doesn't take.
func sinkError(sink, problem string) error {
	return serviceError(codeSinkFailed, "", "%s doesn't take it: %s", sink, problem)
}

func (a alertVerbs) deadLetterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletter",
		Short: "Print, or send again, what sinks didn't take",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.deadLetterListCommand(), a.deadLetterRetryCommand())
	return cmd
}

func (a alertVerbs) deadLetterListCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "list [SINK]",
		Short:             "Print what sinks didn't take, with the reason",
		ValidArgsFunction: a.completeSink,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConnection(cmd.Context(), func(nc *nats.Conn) error {
				return a.listLetters(cmd.Context(), nc, strings.Join(args, ""))
			})
		},
	}
}

func (a alertVerbs) listLetters(ctx context.Context, nc *nats.Conn, sink string) error {
	table := newTable(a.out, "ID", "SINK", "WHEN", "REASON", "TEXT")
	for l, err := range deliver.Letters(ctx, nc, a.names, sink) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.printJSON(l); err != nil {
				return err
			}
			continue
		}
		table.addRow(strconv.FormatUint(l.ID, 10), l.Sink, dateTimeText(l.Time), timeline.Line(l.Reason, maxCell), timeline.Line(l.Notification.Text, maxMessage))
	}
	if a.json {
		return nil
	}
	return table.flush()
}

func (a alertVerbs) deadLetterRetryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retry SINK [ID...]",
		Short: "Send again what a sink didn't take",
		Long: `Send again what a sink didn't take, all or those of these ids, the oldest first,
each in one attempt. What it takes now is no dead letter any more; the first that it
doesn't take ends it. An alerter whose rules have the sink does this.`,
		Args: func(cmd *cobra.Command, args []string) error { return checkArguments(cmd, args[:min(len(args), 1)]) }, ValidArgsFunction: a.completeSink,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []uint64
			for _, arg := range args[1:] {
				id, err := strconv.ParseUint(arg, 10, 64)
				if err != nil {
					return usageError("`wake alerts deadletter list` shows them", "%q is no id of a dead letter", arg)
				}
				if !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
			return a.withConnection(cmd.Context(), func(nc *nats.Conn) error {
				return a.retryLetters(cmd.Context(), nc, args[0], ids)
			})
		},
	}
}

func (a alertVerbs) retryLetters(ctx context.Context, nc *nats.Conn, sink string, ids []uint64) error {
	sent := 0
	for {
		r, err := deliver.Retry(ctx, nc, a.names, sink, ids)
		sent += r.Sent
		if err != nil {
			return err
		}
		if r.Problem != "" {
			return serviceError(codeSinkFailed, "", "%s took %d, but not the next: %s", sink, sent, r.Problem)
		}
		if missing := len(ids) - sent; !r.More && missing > 0 {
			return serviceError(codeSinkFailed, "`wake alerts deadletter list "+sink+"` shows those that it has",
				"%s took %d, but has no dead letter of the other %d ids", sink, sent, missing)
		}
		if !r.More || r.Sent == 0 {
			return a.printAnswer(map[string]any{"sink": sink, "sent": sent}, sink+" took "+strconv.Itoa(sent))
		}
	}
}

func (a alertVerbs) withConnection(ctx context.Context, f func(*nats.Conn) error) error {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	return f(nc)
}

// completeSink completes the names of sinks that were ever sent to.
func (a alertVerbs) completeSink(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.askCompletions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		all, err := deliver.Statuses(ctx, nc, a.names)
		var names []cobra.Completion
		for _, s := range all {
			names = append(names, s.Sink)
		}
		return names, err
	})
}
