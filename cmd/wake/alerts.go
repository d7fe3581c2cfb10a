package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"wake/internal/eventlog"
	"wake/internal/seal"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

func (a *app) alertsCommand() *cobra.Command {
	var follow bool
	var parent string
	cmd := &cobra.Command{
		Use:   "alerts [RUN]",
		Short: "Print the alerts of a run, or of all runs",
		Long:  "Print the alerts of a run, or of all runs. With --json each is one line.\n\n" + runHelp,
		Args:  arguments, ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			log, err := a.openLog(ctx)
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			filter := a.names.AllAlerts()
			if len(args) > 0 {
				runID, err := a.runID(ctx, log, args[0])
				if err != nil {
					return err
				}
				filter = a.names.RunAlerts(runID)
			}
			if parent != "" {
				if parent, err = a.runID(ctx, log, parent); err != nil {
					return err
				}
			}
			return interrupted(ctx, a.eachAlert(ctx, log, filter, follow, func(alert wire.Alert) error {
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

// eachAlert shows the stored alerts, the oldest first, and with follow also
// those to come, until ctx ends.
func (a *app) eachAlert(ctx context.Context, log *eventlog.Log, filter string, follow bool, show func(wire.Alert) error) error {
	consumer, err := log.JetStream().OrderedConsumer(ctx, a.names.AlertsStream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return fmt.Errorf("alerts: %w", err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("alerts: %w", err)
	}
	if info.NumPending == 0 && !follow {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("alerts: %w", err)
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	defer messages.Stop()
	for {
		m, err := messages.Next()
		switch {
		case errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("alerts: %w", err)
		}
		alert, err := openAlert(log, m)
		if errors.Is(err, seal.ErrNoKey) {
			return fmt.Errorf("alerts: %w", err)
		}
		if err != nil {
			a.log.WarnContext(ctx, "alert can't be read", "subject", m.Subject(), "error", err)
		} else if err := show(alert); err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("alerts: %w", err)
		}
		if meta.NumPending == 0 && !follow {
			return nil
		}
	}
}

// openAlert reads an alert as it is stored.
func openAlert(log *eventlog.Log, m jetstream.Msg) (alert wire.Alert, err error) {
	data, err := log.Unseal(m.Subject(), m.Data())
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
		text = paint(severityColor(alert.Severity), text)
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
