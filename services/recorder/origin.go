package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
)

// originGrace is how long a server may be behind before it is believed that the
// stream ends before the store: a leader that was deposed answers for a while, and so
// does a replica.
const originGrace = 5 * time.Second

// checkOrigin fails with [eventlog.ErrIncarnation] if the last event that the store
// has isn't in the stream, or is another one there: the stream was restored from a
// backup that is older than the store, and may have gone on since. Recording further
// would mix two histories, and what the stream has at the store's positions would be
// in neither. An event that has aged out tells nothing. As long as the stream ends before the
// store, it waits, and says so: servers may be behind, or have lost what they had acknowledged.
func (r *Recorder) checkOrigin(ctx context.Context) error {
	var kept archive.Event
	var reached wire.Position
	err := r.retryStore(ctx, opening, func() (err error) {
		if reached, err = r.store.Archive.Position(ctx); err == nil {
			kept, err = r.store.Archive.Newest(ctx)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case reached.Seq > 0 && reached.Incarnation != r.log.Incarnation():
		return fmt.Errorf("%w: it is %q, the store is of %q", eventlog.ErrIncarnation, r.log.Incarnation(), reached.Incarnation)
	case kept.Pos == 0:
		return nil
	}
	for begun := time.Now(); ; {
		var found sighting
		err := r.retryServer(ctx, func() (err error) {
			found, err = r.sightingAt(ctx, kept.Pos)
			return err
		})
		patient := time.Since(begun) < originGrace
		switch {
		case err != nil:
			return err
		case found.message != nil:
			r.c.Health.Set(opening, nil)
			return r.checkSame(kept, found.message)
		case kept.Pos < found.first, kept.Pos <= found.last && !patient:
			r.c.Health.Set(opening, nil)
			return nil
		case !patient:
			r.c.Health.Set(opening, fmt.Errorf("%w: the store is at %d, the stream at %d", eventlog.ErrBeyond, kept.Pos, found.last))
		}
		if pull.Sleep(ctx, originGrace/10); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// sighting is what the stream has at a position.
type sighting struct {
	first, last uint64
	message     *jetstream.RawStreamMsg // nil: none
}

func (r *Recorder) sightingAt(ctx context.Context, pos uint64) (s sighting, err error) {
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

// checkSame fails with [eventlog.ErrIncarnation] unless a message of the stream is the
// event, which is kept as it was before it was sealed.
func (r *Recorder) checkSame(kept archive.Event, m *jetstream.RawStreamMsg) error {
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
