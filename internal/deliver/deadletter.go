package deliver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// letterPrefix begins the service of a sink's dead letters.
const letterPrefix = "sink-"

// SinkOf returns the sink that the dead letters of a service belong to; false for a
// service that isn't a sink's.
func SinkOf(service string) (sink string, ok bool) { return strings.CutPrefix(service, letterPrefix) }

// Letter is a notification that was given up.
type Letter struct {
	ID           uint64       `json:"id"` // position in WAKE_DEADLETTER
	Time         int64        `json:"time"`
	Sink         string       `json:"sink"`
	Reason       string       `json:"reason"`
	Notification Notification `json:"notification"`
}

// storeLetter stores a notification with the reason in WAKE_DEADLETTER. Once it has, the
// target goes on with the next. If it is killed in between, the letter is there
// twice at worst.
func (t *target) storeLetter(ctx context.Context, n Notification, pos uint64, reason error) error {
	data, err := wire.Marshal(n)
	if err != nil {
		return err
	}
	p := wire.Poison{
		V: wire.Version, Service: letterPrefix + t.name, Reason: reason.Error(),
		Stream: t.d.log.Names().AlertsStream(), Position: pos, Data: data, Timestamp: time.Now().UnixMilli(),
	}
	if n.Alert != nil {
		p.Subject = t.d.log.Names().Alert(n.Alert.RunID, n.Alert.NodeID, n.Alert.Kind, n.Alert.Key)
	}
	if data, err = wire.Marshal(&p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opWait)
	defer cancel()
	_, err = t.d.log.Send(ctx, t.d.log.Names().DeadLetter(p.Service), data, jetstream.WithMsgID(t.name+" "+n.ID))
	if err != nil {
		return fmt.Errorf("store a dead letter: %w", err)
	}
	t.d.letters.WithLabelValues(t.name, t.cfg.Type).Inc()
	t.logger.ErrorContext(ctx, "notification given up", "id", n.ID, "attempts", t.tried.Count, "reason", reason)
	t.rec.Tried = attemptCount{}
	return nil
}

// StoredLetters yields the stored dead letters of a sink, the oldest first.
func StoredLetters(ctx context.Context, log *eventlog.Log, sink string) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		if err := readLetters(ctx, log, sink, 0, func(l Letter) bool { return yield(l, nil) }); err != nil {
			yield(Letter{}, fmt.Errorf("read dead letters: %w", err))
		}
	}
}

// readLetters yields the stored dead letters of a sink, or of all, from an id on.
func readLetters(ctx context.Context, log *eventlog.Log, sink string, from uint64, yield func(Letter) bool) error {
	stream, err := log.JetStream().Stream(ctx, log.Names().DeadLetterStream())
	if err != nil {
		return err
	}
	filter := log.Names().AllDeadLetters()
	if sink != "" {
		filter = log.Names().DeadLetter(letterPrefix + sink)
	}
	for next := max(from, 1); ; {
		m, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(filter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		next = m.Sequence + 1
		l, ok, err := parseLetter(log, m)
		if err != nil {
			return fmt.Errorf("dead letter %d: %w", m.Sequence, err)
		}
		if ok && !yield(l) {
			return nil
		}
	}
}

// parseLetter reads a dead letter. One of another service is none of ours. It fails if the
// key of one is missing.
func parseLetter(log *eventlog.Log, m *jetstream.RawStreamMsg) (Letter, bool, error) {
	if !strings.HasPrefix(m.Subject, log.Names().DeadLetter(letterPrefix)) {
		return Letter{}, false, nil
	}
	var p wire.Poison
	data, err := log.Unseal(m.Subject, m.Data)
	if errors.Is(err, seal.ErrNoKey) {
		return Letter{}, false, err
	}
	if err != nil || wire.Unmarshal(data, &p) != nil {
		return Letter{}, false, nil //nolint:nilerr // it isn't what a sink has written
	}
	sink, ok := SinkOf(p.Service)
	l := Letter{ID: m.Sequence, Time: p.Timestamp, Sink: sink, Reason: p.Reason}
	return l, ok && wire.Unmarshal(p.Data, &l.Notification) == nil, nil
}

// removeLetter removes a dead letter that was delivered after all.
func removeLetter(ctx context.Context, log *eventlog.Log, id uint64) error {
	stream, err := log.JetStream().Stream(ctx, log.Names().DeadLetterStream())
	if err == nil {
		err = stream.DeleteMsg(ctx, id)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("remove dead letter %d: %w", id, err)
	}
	return nil
}
