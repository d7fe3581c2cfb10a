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
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// noticesConsumer is the durable consumer of alerts that runners share.
const noticesConsumer = "notices"

// toldEvery is how often it is noted how far alerts are told.
const toldEvery = 5 * time.Second

// alertsAhead is how many alerts a runner asks for at once. They come one by one all the same.
const alertsAhead = 100

// maxNotice is the length in runes of an alert's line as an agent is told it.
const maxNotice = 2000

// passAlerts passes the alerts of child runs on to their parents until ctx ends,
// one after the other.
func (in *Intake) passAlerts(ctx context.Context) error {
	consumer, told, err := in.alertsConsumer(ctx)
	if err != nil {
		return err
	}
	source := in.cfg.Queue.Source(consumer, alertsAhead)
	defer source.Close(ctx)
	for ctx.Err() == nil {
		m, err := source.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil { // the last of a burst, too
			in.noteTold(ctx, told)
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
		if meta, err := m.Metadata(); err == nil {
			told.Position = meta.Sequence.Stream
			in.noteTold(ctx, told)
		}
	}
	rest, cancel := tenure.Rest(ctx)
	defer cancel()
	told.At = time.Time{}
	in.noteTold(rest, told)
	return nil
}

// alertsConsumer returns the consumer of alerts that runners share, and how far they are told. It begins where they were
// when it was lost; what is told twice is on record once.
func (in *Intake) alertsConsumer(ctx context.Context) (jetstream.Consumer, *registry.Told, error) {
	stream, err := in.cfg.Log.JetStream().Stream(ctx, in.subjectNames().AlertsStream())
	if err != nil {
		return nil, nil, fmt.Errorf("stream of alerts: %w", err)
	}
	info := stream.CachedInfo()
	told, err := in.cfg.Registry.Told(ctx, info.Created, info.State.LastSeq)
	if err != nil {
		return nil, nil, fmt.Errorf("alerts told: %w", err)
	}
	if c, err := stream.Consumer(ctx, noticesConsumer); err == nil { // that of an earlier version knows it better
		told.Position = max(told.Position, c.CachedInfo().AckFloor.Stream)
	}
	consumer, err := in.cfg.Queue.Share(ctx, in.subjectNames().AlertsStream(), jetstream.ConsumerConfig{
		Durable:       noticesConsumer,
		Description:   "wake: alerts that parent runs are told",
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   told.Position + 1,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       30 * time.Second,
		MaxDeliver:    -1,
		MaxAckPending: 1, // in order
	})
	return consumer, told, err
}

// noteTold notes how far alerts are told, if that was noted long enough ago.
func (in *Intake) noteTold(ctx context.Context, told *registry.Told) {
	if told.Position == told.Noted || time.Since(told.At) < toldEvery {
		return
	}
	told.At = time.Now()
	if err := in.cfg.Registry.KeepTold(ctx, told); err != nil && ctx.Err() == nil {
		in.cfg.Logger.Warn("how far alerts are told isn't noted: after a restart of the server they are told again", "error", err)
	}
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
	// A run that was only recorded is what its file says, the name of its parent included: its alerts must not reach that parent's agents.
	told, err := in.cfg.Runs.State(ctx, alert.RunID)
	if err != nil || told.Imported != "" || told.Position.Seq > 0 && told.ParentRun != alert.ParentRun {
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
