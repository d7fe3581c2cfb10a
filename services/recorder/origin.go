package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/seal"
)

// originGrace is how long a server may be behind before it is believed that the
// stream ends before the store: a leader that was deposed answers for a while, and so
// does a replica.
const originGrace = 5 * time.Second

// checkOrigin fails with [eventlog.ErrIncarnation] if the last event that the store
// has isn't in the stream, or is another one there: the stream was restored from a
// backup that is older than the store, and may have gone on since. Recording further
// would mix two histories, and what the stream has at the store's positions would be
// in neither. An event that has aged out tells nothing.
func (r *Recorder) checkOrigin(ctx context.Context) error {
	var kept Event
	err := r.reach(ctx, func() (err error) {
		kept, err = r.store.newest(ctx)
		return err
	})
	if err != nil || kept.Pos == 0 {
		return err
	}
	for begun := time.Now(); ; {
		var found sighting
		err := r.patiently(ctx, func() (err error) {
			found, err = r.sight(ctx, kept.Pos)
			return err
		})
		patient := time.Since(begun) < originGrace
		switch {
		case err != nil:
			return err
		case found.message != nil:
			return r.same(kept, found.message)
		case kept.Pos < found.first, kept.Pos <= found.last && !patient:
			return nil
		case !patient:
			return fmt.Errorf("%w: position %d is beyond the last one, %d", eventlog.ErrIncarnation, kept.Pos, found.last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(originGrace / 10):
		}
	}
}

// sighting is what the stream has at a position.
type sighting struct {
	first, last uint64
	message     *jetstream.RawStreamMsg // nil: none
}

func (r *Recorder) sight(ctx context.Context, pos uint64) (s sighting, err error) {
	stream, err := r.log.JetStream().Stream(ctx, r.log.Names().EventsStream())
	if err != nil {
		return s, err
	}
	s.first, s.last = stream.CachedInfo().State.FirstSeq, stream.CachedInfo().State.LastSeq
	if s.message, err = stream.GetMsg(ctx, pos); errors.Is(err, jetstream.ErrMsgNotFound) {
		return sighting{first: s.first, last: s.last}, nil
	}
	return s, err
}

// same fails with [eventlog.ErrIncarnation] unless a message of the stream is the
// event, which is kept as it was before it was sealed.
func (r *Recorder) same(kept Event, m *jetstream.RawStreamMsg) error {
	if bytes.Equal(m.Data, kept.Data) && m.Time.UnixMilli() == kept.Time {
		return nil
	}
	data, err := r.log.Original(m.Data)
	if errors.Is(err, seal.ErrNoKey) {
		return err
	}
	if m.Time.UnixMilli() != kept.Time || !bytes.Equal(data, kept.Data) {
		return fmt.Errorf("%w: at position %d the stream has another event than the one that is recorded", eventlog.ErrIncarnation, kept.Pos)
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
