package recorder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/services/recorder/archive"
)

// alertBatch bounds the alerts of a transaction.
const alertBatch = 256

// followAlerts records the stream of alerts until ctx ends, each alert once, by its
// key. It fails only if the store does.
func (r *Recorder) followAlerts(ctx context.Context) error {
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, patience) {
		pull.AwaitConnection(ctx, r.log.Conn())
		stored, err := r.readAlerts(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that is how it ends
		case errors.Is(err, errAlertStore):
			return err
		case stored > 0:
			wait = 100 * time.Millisecond
		}
		level := slog.LevelInfo
		if errors.Is(err, seal.ErrNoKey) {
			level = slog.LevelError
		}
		r.logger.Log(ctx, level, "reader of alerts begins again", "error", err)
		pull.Sleep(ctx, wait)
	}
	return nil
}

// errAlertStore says that the store is what failed.
var errAlertStore = errors.New("recorder: alerts")

// readAlerts records what follows the stored position until something is wrong.
// It returns how many alerts it has recorded.
func (r *Recorder) readAlerts(ctx context.Context) (stored int, err error) {
	js, name := r.log.JetStream(), r.log.Names().AlertsStream()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	info := stream.CachedInfo()
	created := info.Created.UTC().Format(time.RFC3339Nano)
	var from uint64
	if err := r.retryStore(ctx, alerting, func() (err error) {
		from, err = r.store.Archive.AlertsRead(ctx, created, info.State.LastSeq)
		return err
	}); err != nil {
		return 0, fmt.Errorf("%w: %w", errAlertStore, err)
	}
	r.alerted.moveTo(from)
	reader, err := js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		Name: "recorder-" + rand.Text(), Description: "the recorder, as it reads",
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from + 1, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return 0, err
	}
	if reader.CachedInfo().NumPending == 0 {
		r.alerted.moveTo(info.State.LastSeq) // what is missing before that isn't kept any more
	}
	consumer := reader.CachedInfo().Name
	defer r.dropReader(ctx, name, consumer)
	in, err := pull.New(r.log.Conn(), name, consumer, alertBatch)
	if err != nil {
		return 0, err
	}
	defer in.Stop()
	connected, release := pull.Connected(ctx, r.log.Conn())
	defer release()
	for {
		list, pending, err := r.gatherAlerts(connected, in)
		if err != nil {
			return stored, err
		}
		if err := r.retryStore(ctx, alerting, func() error { return r.store.Archive.RecordAlerts(ctx, created, list) }); err != nil {
			return stored, fmt.Errorf("%w: %w", errAlertStore, err)
		}
		r.alerted.moveTo(list[len(list)-1].Pos)
		if pending == 0 {
			r.alerted.moveTo(info.State.LastSeq)
		}
		stored += len(list)
	}
}

// dropReader removes a consumer, which the server would do before long.
func (r *Recorder) dropReader(ctx context.Context, stream, consumer string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if r.log.Conn().IsConnected() {
		_ = r.log.JetStream().DeleteConsumer(ctx, stream, consumer)
	}
}

// gatherAlerts waits for an alert, and a little for more. It returns how many are behind them, too.
func (r *Recorder) gatherAlerts(ctx context.Context, in *pull.Puller) (list []archive.AlertMessage, pending uint64, err error) {
	m, err := r.nextAlert(ctx, in)
	if err != nil {
		return nil, 0, err
	}
	list, pending = append(list, archive.AlertMessage{Pos: m.Pos, Data: m.Data}), m.Pending
	ctx, cancel := context.WithTimeout(ctx, r.c.Wait)
	defer cancel()
	for len(list) < alertBatch {
		m, err := r.nextAlert(ctx, in)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		list, pending = append(list, archive.AlertMessage{Pos: m.Pos, Data: m.Data}), m.Pending
	}
	return list, pending, nil
}

// nextAlert waits for an alert. One that was forged is left as it is, which is none.
func (r *Recorder) nextAlert(ctx context.Context, in *pull.Puller) (pull.Message, error) {
	m, err := in.Next(ctx)
	if err != nil {
		return m, err
	}
	data, err := r.log.Unseal(m.Subject, m.Data)
	if errors.Is(err, seal.ErrNoKey) {
		return m, fmt.Errorf("alert %d: %w", m.Pos, err)
	}
	m.Data = data
	return m, nil
}
