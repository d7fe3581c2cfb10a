package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// noticesConsumer is the durable consumer of alerts that runners share.
const noticesConsumer = "notices"

// maxNotice is the length in runes of an alert's line as an agent is told it.
const maxNotice = 2000

// passAlerts passes the alerts of child runs on to their parents until ctx ends,
// one after the other.
func (in *Intake) passAlerts(ctx context.Context) error {
	consumer, err := in.cfg.Log.JetStream().CreateOrUpdateConsumer(ctx, in.subjectNames().AlertsStream(), jetstream.ConsumerConfig{
		Durable:       noticesConsumer,
		Description:   "wake: alerts that parent runs are told",
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       30 * time.Second,
		MaxDeliver:    -1,
		MaxAckPending: 1, // in order
	})
	if err != nil {
		return fmt.Errorf("consumer %s: %w", noticesConsumer, err)
	}
	for ctx.Err() == nil {
		m, err := in.cfg.Queue.Next(ctx, consumer)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if err := in.passAlert(ctx, m.Subject(), m.Data()); err != nil {
			if ctx.Err() == nil {
				in.cfg.Logger.Warn("alert not passed on yet", "subject", m.Subject(), "error", err)
			}
			in.cfg.Queue.Again(ctx, m, time.Second)
			continue
		}
		in.cfg.Queue.Ack(ctx, m)
	}
	return nil
}

// passAlert tells the parent of an alert's run, if it goes on. An alert that comes
// again, after a crash, is a command that the parent's owner has on record.
func (in *Intake) passAlert(ctx context.Context, subject string, stored []byte) error {
	var alert wire.Alert
	data, err := in.cfg.Log.Unseal(subject, stored)
	if errors.Is(err, seal.ErrNoKey) {
		return err
	}
	if err != nil || wire.Unmarshal(data, &alert) != nil || alert.ParentRun == "" || alert.ParentRun == alert.RunID {
		return nil //nolint:nilerr // the alerter says what can't be read
	}
	if isResult(alert) {
		return nil
	}
	parent, _, err := in.cfg.Registry.Load(ctx, alert.ParentRun)
	if err != nil || parent.Run == "" || parent.Incarnation != in.cfg.Log.Incarnation() {
		return err
	}
	id := "alert-" + alert.Key
	if len(id) > command.MaxID {
		id = id[:command.MaxID]
	}
	cmd, err := wire.Marshal(wire.Command{
		Type: run.CommandNotice, ID: id, RunID: alert.ParentRun, By: "run " + alert.RunID,
		Message: timeline.Line(alert.Text, maxNotice),
	})
	if err != nil {
		return err
	}
	if _, err := in.cfg.Log.Send(ctx, in.subjectNames().Command(alert.ParentRun), cmd); err != nil {
		return fmt.Errorf("tell run %s: %w", alert.ParentRun, err)
	}
	return nil
}

// isResult reports whether an alert says what has come of a run that a call of an agent
// waits for, or asks something: the agent is told by the call's result, and can't answer
// before.
func isResult(alert wire.Alert) bool {
	return alert.ParentCall != "" && slices.Contains([]string{"completion", "error", "cc_message", "waiting"}, alert.Kind)
}
