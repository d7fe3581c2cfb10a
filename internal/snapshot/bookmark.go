package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// keptState is the value of a bookmark: the state at a labelled point, which outlives
// the events that made it. The label makes its bytes differ from those of a
// snapshot: a snapshot's object is dropped when the next one is saved.
type keptState struct {
	Label  string   `json:"label"`
	Marked uint64   `json:"marked,omitempty"` // position of the event that gave the label, if that isn't the state's
	State  wire.Raw `json:"state"`
}

// Keep stores the state at a labelled point in WAKE_BOOKMARKS; marked is the position of the event that gave the label. It replaces
// that of the same label by an earlier event, and does nothing where it finds its own
// or a later one: a reader that reads the log again comes by points that were moved. If
// another writer keeps the label at the same time, it fails.
func (s *Store) Keep(ctx context.Context, label string, marked uint64, state *wire.State) error {
	names := s.log.Names()
	fail := func(err error) error {
		return fmt.Errorf("snapshot: keep bookmark %s of run %s: %w", label, state.RunID, err)
	}
	kv, err := s.log.Bucket(ctx, names.BookmarksBucket())
	if err != nil {
		return fail(err)
	}
	key := names.BookmarkKey(state.RunID, label)
	position, revision, err := keptAt(ctx, kv, key)
	if err != nil {
		return fail(err)
	}
	if position.Incarnation == state.Position.Incarnation && position.Seq >= marked {
		return nil
	}
	data, err := s.encodeKept(ctx, label, marked, state)
	if err != nil {
		return fail(err)
	}
	if _, err := kv.Save(ctx, key, data, revision); err != nil {
		return fail(err)
	}
	return nil
}

// keptAt returns at which position a key was labelled, and its revision. One that can't be
// read is of none.
func keptAt(ctx context.Context, kv *eventlog.Bucket, key string) (at wire.Position, revision uint64, err error) {
	stored, revision, err := kv.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, seal.ErrForged):
		return at, revision, nil
	case err != nil:
		return at, 0, err
	}
	var value struct {
		Position wire.Position `json:"position"` // beside a reference
		Marked   uint64        `json:"marked"`
		State    struct {
			Position wire.Position `json:"position"`
		} `json:"state"`
	}
	if wire.Unmarshal(stored, &value) != nil {
		return at, revision, nil //nolint:nilerr // what can't be read is of no position, and is replaced
	}
	if referredBlob(stored) != "" {
		return value.Position, revision, nil
	}
	at = value.State.Position
	at.Seq = cmp.Or(value.Marked, at.Seq)
	return at, revision, nil
}

// encodeKept returns the value of a bookmark, which refers to an object if the
// state is large.
func (s *Store) encodeKept(ctx context.Context, label string, marked uint64, state *wire.State) ([]byte, error) {
	encoded, err := wire.Marshal(state)
	if err != nil {
		return nil, err
	}
	kept := keptState{Label: label, State: encoded}
	if marked != state.Position.Seq {
		kept.Marked = marked
	}
	data, err := wire.Marshal(kept)
	if err != nil || len(data) <= s.limit {
		return data, err
	}
	value, _, err := s.storeAsBlob(ctx, state.RunID, wire.Position{Incarnation: state.Position.Incarnation, Seq: marked}, data)
	return value, err
}

// Kept returns the state at a labelled point, or [ErrNotFound]. One that can't
// be read is [ErrUnusable].
func Kept(ctx context.Context, log eventlog.Reader, runID, label string) (*wire.State, error) {
	fail := func(err error) error {
		return fmt.Errorf("snapshot: bookmark %s of run %s: %w", label, runID, err)
	}
	data, _, err := log.Bookmark(ctx, runID, label)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil, ErrNotFound
	case errors.Is(err, seal.ErrForged):
		return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
	case err != nil:
		return nil, fail(err)
	}
	if sum := referredBlob(data); sum != "" {
		if data, err = readBlob(ctx, log, sum); errors.Is(err, eventlog.ErrBlobMissing) || errors.Is(err, seal.ErrForged) {
			return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
		} else if err != nil {
			return nil, fail(err)
		}
	}
	var k keptState
	if err := wire.Unmarshal(data, &k); err != nil {
		return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
	}
	state, err := run.Decode(k.State)
	if err == nil && state.RunID != runID {
		err = errors.New("it is of another run: " + state.RunID)
	}
	if err != nil {
		return nil, fail(fmt.Errorf("%w: %w", ErrUnusable, err))
	}
	return state, nil
}
