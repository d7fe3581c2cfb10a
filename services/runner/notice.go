package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/flow"
	"wake/internal/run"
	"wake/internal/seal"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

// A run is told what its children's alerts say: each is a command of type notice
// to it, which waits in its inbox for an agent. What an agent has taken is on
// record, so that no other one is told again.

// noticesConsumer is the durable consumer of alerts that runners share.
const noticesConsumer = "notices"

// maxNotice is the length in runes of an alert's line as an agent is told it.
const maxNotice = 2000

// passAlerts passes the alerts of child runs on to their parents until ctx ends,
// one after the other.
func (r *Runner) passAlerts(ctx context.Context) error {
	consumer, err := r.log.JetStream().CreateOrUpdateConsumer(ctx, r.names.AlertsStream(), jetstream.ConsumerConfig{
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
		m, err := r.next(ctx, consumer)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if err := r.passAlert(ctx, m.Subject(), m.Data()); err != nil {
			if ctx.Err() == nil {
				r.logger.Warn("alert not passed on yet", "subject", m.Subject(), "error", err)
			}
			r.again(ctx, m, time.Second)
			continue
		}
		r.ack(ctx, m)
	}
	return nil
}

// passAlert tells the parent of an alert's run, if it goes on. An alert that comes
// again, after a crash, is a command that the parent's owner has on record.
func (r *Runner) passAlert(ctx context.Context, subject string, stored []byte) error {
	var alert wire.Alert
	data, err := r.log.Unseal(subject, stored)
	if errors.Is(err, seal.ErrNoKey) {
		return err
	}
	if err != nil || wire.Unmarshal(data, &alert) != nil || alert.ParentRun == "" || alert.ParentRun == alert.RunID {
		return nil //nolint:nilerr // whoever delivers alerts says what can't be read
	}
	if isResult(alert) {
		return nil
	}
	parent, _, err := r.active.load(ctx, alert.ParentRun)
	if err != nil || parent.Run == "" || parent.Incarnation != r.log.Incarnation() {
		return err
	}
	id := "alert-" + alert.Key
	if len(id) > maxCommandID {
		id = id[:maxCommandID]
	}
	cmd, err := wire.Marshal(wire.Command{
		Type: run.CommandNotice, ID: id, RunID: alert.ParentRun, By: "run " + alert.RunID,
		Message: timeline.Line(alert.Text, maxNotice),
	})
	if err != nil {
		return err
	}
	if _, err := r.log.Send(ctx, r.names.Command(alert.ParentRun), cmd); err != nil {
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

// The first lines of what an agent is told: at first what has queued up since an
// agent of the run was last told, then what comes.
const (
	noticesSince = "[Worker events since last session]"
	noticesNow   = "[Worker events]"
)

// notices returns the notices that haven't been passed on as one message, whose id
// is that of the last one; nil if there are none or they are another agent's.
func (w *worker) notices(passed map[string]bool) *wire.InboxEntry {
	if w.noticed() != w.offer.NodeID {
		return nil
	}
	lines, last := []string{noticesSince}, ""
	for _, m := range w.view.state.Inbox {
		if kind, _ := m.Command.Get("type").Text(); kind != run.CommandNotice {
			continue
		}
		if passed[m.ID] {
			lines, last = []string{noticesNow}, ""
			continue
		}
		text, _ := m.Command.Get("message").Text()
		lines, last = append(lines, text), m.ID
	}
	if last == "" {
		return nil
	}
	if w.told {
		lines[0] = noticesNow
	}
	if n := w.view.state.NoticesLost; n > 0 {
		lines[0] += fmt.Sprintf(" (%d older ones were dropped)", n)
	}
	cmd, err := wire.Marshal(wire.Command{Type: run.CommandNotice, Message: strings.Join(lines, "\n")})
	if err != nil {
		return nil
	}
	return &wire.InboxEntry{ID: last, Node: w.offer.NodeID, Command: cmd}
}

// noticed returns the node whose agent is told notices: of those at work the one
// that began first. All workers come to the same one, and whoever is next sees in
// the log what the one before was told.
func (w *worker) noticed() (node string) {
	var first uint64
	for id, n := range w.view.state.Nodes {
		atWork := n.Open() && n.Started >= n.Scheduled && n.Type == string(flow.TypeAgent)
		if atWork && (node == "" || n.Started < first) {
			node, first = id, n.Started
		}
	}
	return node
}
