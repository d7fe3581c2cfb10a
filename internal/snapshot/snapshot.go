// Package snapshot keeps states of runs in WAKE_SNAPSHOTS.
//
// A snapshot is a cache. It says of which position of the log it is the state,
// so it is right however old it is: to get the present, a reader folds what follows in
// the log ([Fold]). One that can't be used, because it can't be read or is of
// another incarnation of the log, is an [ErrUnusable]; the log then tells the
// whole story.
//
// The value of a key is the state as [wire.Marshal] writes it. A state of more
// than [MaxValue] bytes is an object of WAKE_BLOBS instead, and the value refers
// to it:
//
//	{"$blob":{"sha256":…,"size":…},"runId":…,"position":{…}}
//
// Where the log has keys, both are sealed.
package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// MaxValue is the size in bytes up to which a state is kept in its key.
const MaxValue = 512 << 10

// headroom is what a message may need beyond its value.
const headroom = 4 << 10

var (
	// ErrNotFound is returned for a run without a snapshot.
	ErrNotFound = errors.New("snapshot: none stored")
	// ErrUnusable is returned for a snapshot that has to be built again.
	ErrUnusable = errors.New("snapshot: unusable")
	// ErrConflict is returned by [Store.Save] if another writer saved meanwhile.
	ErrConflict = errors.New("snapshot: saved by another process meanwhile")
)

// Stored is a snapshot as it is stored.
type Stored struct {
	State    *wire.State
	Revision uint64 // of its key; 0: there is none
	Size     int    // bytes of the state
	blob     string // object that holds it; "" if the value does
}

// Load returns the stored state of a run, and whether there is one. It fails
// with [ErrUnusable] if there is one that must not be used.
func Load(ctx context.Context, log eventlog.Reader, runID string) (*wire.State, bool, error) {
	stored, err := loadStored(ctx, log, runID, func() ([]byte, uint64, error) {
		return log.Snapshot(ctx, runID)
	})
	if errors.Is(err, ErrNotFound) {
		return nil, false, nil
	}
	return stored.State, err == nil, err
}

// Store saves and loads snapshots.
type Store struct {
	log   *eventlog.Log
	kv    *eventlog.Bucket
	blobs jetstream.ObjectStore
	limit int // bytes of a value
}

// Open returns the snapshots of the log's installation.
func Open(ctx context.Context, log *eventlog.Log) (*Store, error) {
	kv, err := log.Bucket(ctx, log.Names().SnapshotsBucket())
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	blobs, err := log.JetStream().ObjectStore(ctx, log.Names().BlobsBucket())
	if err != nil {
		return nil, fmt.Errorf("snapshot: open %s: %w", log.Names().BlobsBucket(), err)
	}
	limit := min(MaxValue, int(log.Conn().MaxPayload())-headroom)
	return &Store{log: log, kv: kv, blobs: blobs, limit: limit}, nil
}

// Load returns the snapshot of a run, or [ErrNotFound]. With an [ErrUnusable] it
// still returns the revision, so that the snapshot can be replaced.
func (s *Store) Load(ctx context.Context, runID string) (Stored, error) {
	return loadStored(ctx, s.log, runID, func() ([]byte, uint64, error) { return s.kv.Get(ctx, s.log.Names().SnapshotKey(runID)) })
}

func loadStored(ctx context.Context, log eventlog.Reader, runID string, get func() ([]byte, uint64, error)) (Stored, error) {
	stored, err := readStored(ctx, log, get)
	if err == nil {
		err = checkState(ctx, log, runID, stored.State)
	}
	if err != nil {
		return Stored{Revision: stored.Revision, blob: stored.blob}, fmt.Errorf("snapshot of run %s: %w", runID, err)
	}
	return stored, nil
}

// reads is how often a value is read while its object is replaced.
const reads = 3

// readStored reads what is stored of a run, which get returns.
func readStored(ctx context.Context, log eventlog.Reader, get func() ([]byte, uint64, error)) (stored Stored, err error) {
	for range reads {
		stored, err = readOnce(ctx, log, get)
		if !errors.Is(err, eventlog.ErrBlobMissing) {
			return stored, err
		}
	}
	return stored, fmt.Errorf("%w: %w", ErrUnusable, err)
}

func readOnce(ctx context.Context, log eventlog.Reader, get func() ([]byte, uint64, error)) (Stored, error) {
	data, revision, err := get()
	stored := Stored{Revision: revision}
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return stored, ErrNotFound
	case errors.Is(err, seal.ErrForged):
		return stored, fmt.Errorf("%w: %w", ErrUnusable, err)
	case err != nil:
		return stored, err
	}
	if sum := referredBlob(data); sum != "" {
		stored.blob = sum
		if data, err = readBlob(ctx, log, sum); errors.Is(err, seal.ErrForged) {
			return stored, fmt.Errorf("%w: %w", ErrUnusable, err)
		} else if err != nil {
			return stored, err
		}
	}
	stored.Size = len(data)
	if stored.State, err = run.Decode(data); err != nil {
		return stored, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return stored, nil
}

// checkState refuses a state that isn't one of this run in this log.
func checkState(ctx context.Context, log eventlog.Reader, runID string, state *wire.State) error {
	switch {
	case state.RunID != runID:
		return fmt.Errorf("%w: it is of run %q", ErrUnusable, state.RunID)
	case state.Position.Incarnation != log.Incarnation():
		return fmt.Errorf("%w: it is of incarnation %q of the log", ErrUnusable, state.Position.Incarnation)
	}
	_, last, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	if state.Position.Seq > last {
		return fmt.Errorf("%w: its position %d is beyond the end of the log, %d", ErrUnusable, state.Position.Seq, last)
	}
	return nil
}

// Save replaces the snapshot of revision, 0 for none, and returns the new one.
// It fails with [ErrConflict] if that isn't the current revision.
func (s *Store) Save(ctx context.Context, state *wire.State, old Stored) (Stored, error) {
	data, err := wire.Marshal(state)
	if err != nil {
		return old, fmt.Errorf("snapshot: encode run %s: %w", state.RunID, err)
	}
	saved := Stored{State: state, Size: len(data)}
	if len(data) > s.limit {
		if data, saved.blob, err = s.storeAsBlob(ctx, state.RunID, state.Position, data); err != nil {
			return old, fmt.Errorf("snapshot: save run %s: %w", state.RunID, err)
		}
	}
	saved.Revision, err = s.kv.Save(ctx, s.log.Names().SnapshotKey(state.RunID), data, old.Revision)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return old, fmt.Errorf("%w: run %s", ErrConflict, state.RunID)
	}
	if err != nil {
		return old, fmt.Errorf("snapshot: save run %s: %w", state.RunID, err)
	}
	if old.blob != "" && old.blob != saved.blob {
		s.dropBlob(ctx, old.blob)
	}
	return saved, nil
}
