package recorder

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/pull"
	"wake/internal/seal"
	"wake/pkg/wire"
)

// alertBatch bounds the alerts of a transaction.
const alertBatch = 256

// alertMessage is an alert as its stream has it.
type alertMessage struct {
	pos  uint64
	data []byte
}

// followAlerts records the stream of alerts until ctx ends, each alert once: its
// key is what it is known by. It fails only if the store does.
func (r *Recorder) followAlerts(ctx context.Context) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, patience) {
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
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
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
	if err := r.reach(ctx, func() (err error) {
		from, err = r.store.alertsRead(ctx, created, info.State.LastSeq)
		return err
	}); err != nil {
		return 0, fmt.Errorf("%w: %w", errAlertStore, err)
	}
	reader, err := js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		Name: "recorder-" + rand.Text(), Description: "the recorder, as it reads",
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from + 1, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return 0, err
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
		list, err := r.gatherAlerts(connected, in)
		if err != nil {
			return stored, err
		}
		if err := r.reach(ctx, func() error { return r.store.recordAlerts(ctx, created, list) }); err != nil {
			return stored, fmt.Errorf("%w: %w", errAlertStore, err)
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

// gatherAlerts waits for an alert, and a little for more.
func (r *Recorder) gatherAlerts(ctx context.Context, in *pull.Puller) ([]alertMessage, error) {
	m, err := r.nextAlert(ctx, in)
	if err != nil {
		return nil, err
	}
	list := []alertMessage{m}
	ctx, cancel := context.WithTimeout(ctx, r.c.Wait)
	defer cancel()
	for len(list) < alertBatch {
		m, err := r.nextAlert(ctx, in)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// nextAlert waits for an alert. One that was forged is left as it is, which is none.
func (r *Recorder) nextAlert(ctx context.Context, in *pull.Puller) (alertMessage, error) {
	m, err := in.Next(ctx)
	if err != nil {
		return alertMessage{}, err
	}
	data, err := r.log.Unseal(m.Subject, m.Data)
	if errors.Is(err, seal.ErrNoKey) {
		return alertMessage{}, fmt.Errorf("alert %d: %w", m.Pos, err)
	}
	return alertMessage{m.Pos, data}, nil
}

// alertsRead returns the position up to which the alerts of a stream are
// recorded, which is told from another by when it was made and how far it goes.
func (s *Store) alertsRead(ctx context.Context, created string, last uint64) (uint64, error) {
	var known string
	var pos uint64
	err := s.read.QueryRowContext(ctx, `SELECT created, position FROM alerts_read`).Scan(&known, &pos)
	if errors.Is(err, sql.ErrNoRows) || err == nil && (known != created || pos > last) {
		return 0, nil
	}
	return pos, err
}

// recordAlerts stores alerts that aren't there, and how far the stream is read.
// What is no alert is passed over: its stream keeps it.
func (s *Store) recordAlerts(ctx context.Context, created string, list []alertMessage) error {
	return s.change(ctx, func(t *tx) error {
		for _, m := range list {
			var a wire.Alert
			if wire.Unmarshal(m.data, &a) != nil || a.Key == "" || len(a.Key) > maxKey {
				continue
			}
			var gone int
			if err := t.row(ctx, `SELECT count(*) FROM retired WHERE run = ?1`, a.RunID).Scan(&gone); err != nil {
				return err
			}
			if gone > 0 {
				continue
			}
			row, err := alertRow(m, &a)
			if err != nil {
				return err
			}
			if _, err := t.exec(ctx, `INSERT INTO alerts (key, pos, kind, severity, run, node, exec, label, parent, event, ts, text, data, raw, hash)
				VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT DO NOTHING`, row...); err != nil {
				return err
			}
		}
		_, err := t.exec(ctx, `INSERT INTO alerts_read (id, created, position) VALUES (1, ?1, ?2)
			ON CONFLICT (id) DO UPDATE SET created = excluded.created, position = excluded.position`, created, list[len(list)-1].pos)
		return err
	})
}

// alertRow is an alert as the table has it.
func alertRow(m alertMessage, a *wire.Alert) ([]any, error) {
	data := []byte("null")
	if !a.Data.IsZero() {
		var err error
		if data, err = wire.AppendJSON(nil, a.Data); err != nil {
			return nil, err
		}
	}
	hash := sha256.Sum256(m.data)
	return []any{
		a.Key, m.pos, a.Kind, string(a.Severity), a.RunID, a.NodeID, a.ExecID, a.Label, a.ParentRun,
		a.Position.Seq, a.Timestamp, a.Text, string(data), m.data, hash[:],
	}, nil
}

// alerts checks that each alert is what its stream had.
func (v *verifier) alerts(ctx context.Context) error {
	const query = `SELECT key, pos, kind, severity, run, node, exec, label, parent, event, ts, text, data, raw, hash FROM alerts ORDER BY pos, key`
	d := derivation{table: "alerts", keys: 1}
	for row, err := range v.t.rowsOf(ctx, query) {
		if err != nil {
			return v.failed(ctx, Damage{Table: "alerts"}, err)
		}
		pos, _ := row.values[1].(int64)
		raw, _ := row.values[len(row.values)-2].([]byte)
		var a wire.Alert
		if err := wire.Unmarshal(raw, &a); err != nil {
			v.damage(row.damage(d, "", "raw", err.Error()))
			continue
		}
		values, err := alertRow(alertMessage{uint64(pos), raw}, &a)
		if err != nil {
			v.damage(row.damage(d, "", "raw", err.Error()))
			continue
		}
		want := &tableRow{columns: row.columns, values: values}
		for i, value := range values {
			if n, ok := value.(uint64); ok {
				want.values[i] = int64(n)
			}
		}
		if v.t.d.storable != nil {
			want.store(v.t.d)
		}
		row.differences(want, "", func(column, problem string) { v.damage(row.damage(d, a.RunID, column, problem)) })
	}
	return nil
}
