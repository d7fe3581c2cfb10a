package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a alertVerbs) alertsCommand() *cobra.Command {
	var follow bool
	var parent string
	cmd := &cobra.Command{
		Use:   "alerts [RUN]",
		Short: "Print the alerts of a run, or of all runs",
		Long:  "Print the alerts of a run, or of all runs. With --json each is one line.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			log, err := a.openReader(ctx)
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			run := ""
			if len(args) > 0 {
				if run, err = a.runID(ctx, log, args[0]); err != nil {
					return err
				}
			}
			if parent != "" {
				if parent, err = a.runID(ctx, log, parent); err != nil {
					return err
				}
			}
			return interruptError(ctx, a.eachAlert(ctx, log, run, follow, func(alert wire.Alert) error {
				if parent != "" && alert.ParentRun != parent {
					return nil
				}
				return a.printAlert(alert)
			}))
		},
	}
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with those to come")
	cmd.Flags().StringVar(&parent, "parent", "", "only those of the children of this `run`")
	completeFlag(cmd, "parent", a.completeRun)
	cmd.AddCommand(a.alertsSinksCommand(), a.alertsTestCommand(), a.deadLetterCommand(), a.backtestCommand())
	return cmd
}

// eachAlert shows the stored alerts of a run, or of all for "", the oldest first, and
// with follow also those to come, until ctx ends.
func (a *app) eachAlert(ctx context.Context, log *feed.Reader, run string, follow bool, show func(wire.Alert) error) error {
	for m, err := range log.Alerts(ctx, run, 0, follow) {
		if err != nil {
			return fmt.Errorf("alerts: %w", err)
		}
		alert, err := openAlert(log, m)
		switch {
		case errors.Is(err, seal.ErrNoKey):
			return fmt.Errorf("alerts: %w", err)
		case err != nil:
			a.log.WarnContext(ctx, "alert can't be read", "subject", m.Subject, "error", err)
			continue
		}
		if err := show(alert); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// openAlert reads an alert as it is stored.
func openAlert(log *feed.Reader, m eventlog.Message) (alert wire.Alert, err error) {
	data, err := log.Unseal(m.Subject, m.Data)
	if err == nil {
		err = wire.Unmarshal(data, &alert)
	}
	return alert, err
}

func (a *app) printAlert(alert wire.Alert) error {
	if a.json {
		return a.printJSON(alert)
	}
	text := timeline.Line(alert.Text, maxMessage)
	if useColor(a.out) {
		text = sgrText(severityColor(alert.Severity), text)
	}
	_, err := fmt.Fprintf(a.out, "%s %-8s %s %s\n", time.UnixMilli(alert.Timestamp).Format(time.DateTime),
		timeline.Line(string(alert.Severity), maxCell), timeline.Line(alert.RunID, runColumn), text)
	return err
}

func severityColor(s wire.Severity) string {
	switch s {
	case wire.SeverityError, wire.SeverityCritical:
		return red
	case wire.SeverityWarning:
		return yellow
	case wire.SeverityInfo:
	}
	return ""
}
