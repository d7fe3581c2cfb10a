package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/run"
	"wake/pkg/wire"
)

// kept is the value of a bookmark: the state at a labelled point, which outlives
// the events that made it. The label makes its bytes differ from those of a
// snapshot, whose object is dropped when the next one is saved.
type kept struct {
	Label string   `json:"label"`
	State wire.Raw `json:"state"`
}

// Keep stores the state at a labelled point in WAKE_BOOKMARKS. Keeping it again
// does no harm; the same label somewhere else replaces it.
func (s *Store) Keep(ctx context.Context, label string, state *wire.State) error {
	names := s.log.Names()
	fail := func(err error) error {
		return fmt.Errorf("snapshot: keep bookmark %s of run %s: %w", label, state.RunID, err)
	}
	kv, err := s.log.JetStream().KeyValue(ctx, names.BookmarksBucket())
	if err != nil {
		return fail(err)
	}
	encoded, err := wire.Marshal(state)
	if err != nil {
		return fail(err)
	}
	data, err := wire.Marshal(kept{Label: label, State: encoded})
	if err != nil {
		return fail(err)
	}
	if len(data) > s.limit {
		if data, _, err = s.refer(ctx, state, data); err != nil {
			return fail(err)
		}
	}
	if _, err := kv.Put(ctx, names.BookmarkKey(state.RunID, label), data); err != nil {
		return fail(err)
	}
	return nil
}

// Kept returns the state at a labelled point, or [ErrNotFound]. One that can't
// be read is [ErrUnusable].
func Kept(ctx context.Context, log *eventlog.Log, runID, label string) (*wire.State, error) {
	fail := func(err error) error {
		return fmt.Errorf("snapshot: bookmark %s of run %s: %w", label, runID, err)
	}
	kv, err := log.JetStream().KeyValue(ctx, log.Names().BookmarksBucket())
	if err != nil {
		return nil, fail(err)
	}
	e, err := kv.Get(ctx, log.Names().BookmarkKey(runID, label))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fail(err)
	}
	data := e.Value()
	if sum := reference(data); sum != "" {
		if data, err = log.Blob(ctx, sum); errors.Is(err, eventlog.ErrBlobMissing) {
			return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
		} else if err != nil {
			return nil, fail(err)
		}
	}
	var k kept
	if err := wire.Unmarshal(data, &k); err != nil {
		return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
	}
	state, err := run.Decode(k.State)
	if err != nil || state.RunID != runID {
		return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
	}
	return state, nil
}
