package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
)

// checkOrigin fails with [eventlog.ErrIncarnation] if the stream has another event
// than the store at the last position that both have: it was restored from a backup
// that is older than the store, and has gone on since. Recording further would mix
// two histories, and what the stream has at the store's positions would be in
// neither. An event that has aged out tells nothing.
func (r *Recorder) checkOrigin(ctx context.Context) error {
	var last Event
	err := r.reach(ctx, func() (err error) {
		last, err = r.store.newest(ctx)
		return err
	})
	if err != nil || last.Pos == 0 {
		return err
	}
	var m *jetstream.RawStreamMsg
	err = r.patiently(ctx, func() error {
		stream, err := r.log.JetStream().Stream(ctx, r.log.Names().EventsStream())
		if err != nil {
			return err
		}
		if m, err = stream.GetMsg(ctx, last.Pos); errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		return err
	})
	if err != nil || m == nil {
		return err
	}
	if m.Time.UnixMilli() != last.Time || !bytes.Equal(m.Data, last.Data) {
		return fmt.Errorf("%w: at position %d the stream has another event than the one that is recorded", eventlog.ErrIncarnation, last.Pos)
	}
	return nil
}

// newest returns the last event that is kept as the stream had it; its position is 0
// if there is none.
func (s *Store) newest(ctx context.Context) (Event, error) {
	t, err := s.view(ctx)
	if err != nil {
		return Event{}, wrap("newest", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	var pos uint64
	const query = `SELECT coalesce(max(pos), 0) FROM (SELECT max(last_pos) AS pos FROM segments UNION ALL SELECT max(pos) FROM tail) AS kept`
	if err := t.row(ctx, query).Scan(&pos); err != nil {
		return Event{}, wrap("newest", err)
	}
	list, _, err := t.window(ctx, pos, pos)
	if err != nil {
		return Event{}, wrap("newest", err)
	}
	if len(list) == 0 || list[0].Mark == markRecorder {
		return Event{}, nil
	}
	return list[0], nil
}
