package snapshot_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// stamped is the log as a process has it that was given the key of the installation.
func stamped(t *testing.T, log *eventlog.Log, stamp *seal.Stamp) *eventlog.Log {
	t.Helper()
	own, err := eventlog.Open(t.Context(), log.Conn(), eventlog.Options{Logger: logtest.Logger(t), Stamp: stamp, Service: "snapshotter"})
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// A state that is well-formed, and that wake hasn't stored, isn't used, is told of once, and is replaced.
func TestForged(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	own := stamped(t, log, seal.NewStamp())
	store := open(t, own)
	begin(t, log, "r1")
	s := fold(t, log, "r1")
	stored := save(t, store, s, snapshot.Stored{})
	if loaded, err := store.Load(t.Context(), "r1"); err != nil || loaded.Revision != stored.Revision {
		t.Fatalf("its own: %v, %v", loaded, err)
	}
	forged := run.Clone(s)
	forged.Status, forged.Result = wire.RunComplete, wire.FlowStatusComplete
	rev, err := kv(t, log).Put(t.Context(), "r1", encode(t, forged))
	if err != nil {
		t.Fatal(err)
	}
	if _, found, err := snapshot.Load(t.Context(), log, "r1"); err != nil || !found {
		t.Errorf("who has no key sees nothing wrong: %t, %v", found, err)
	}
	for range 2 {
		if got, found, err := snapshot.Load(t.Context(), own, "r1"); got != nil || found || !errors.Is(err, snapshot.ErrUnusable) || !errors.Is(err, seal.ErrForged) {
			t.Errorf("Load = %v, %t, %v", got, found, err)
		}
	}
	if letters := lettersOf(t, log); len(letters) != 1 || !strings.Contains(letters[0], "$KV.WAKE_SNAPSHOTS.r1") || !strings.Contains(letters[0], "isn't stamped") {
		t.Errorf("told: %q", letters)
	}
	if _, err := store.Save(t.Context(), s, stored); !errors.Is(err, snapshot.ErrConflict) {
		t.Errorf("Save over it, unseen: %v", err)
	}
	loaded, err := store.Load(t.Context(), "r1")
	if !errors.Is(err, snapshot.ErrUnusable) || loaded.Revision != rev {
		t.Errorf("Load = %v, %v", loaded, err)
	}
	save(t, store, s, loaded)
	if loaded, err = store.Load(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	same(t, loaded.State, s)

	other := stamped(t, log, seal.NewStamp())
	if _, _, err := snapshot.Load(t.Context(), other, "r1"); !errors.Is(err, snapshot.ErrUnusable) {
		t.Errorf("by another key: %v", err)
	}
	if err := other.StampAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, found, err := snapshot.Load(t.Context(), other, "r1"); err != nil || !found {
		t.Errorf("once that vouches for it: %t, %v", found, err)
	}
}

// The stamp of a large state is that of the hash of its object.
func TestForgedObject(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	own := stamped(t, log, seal.NewStamp())
	store := open(t, own)
	w := begin(t, log, "r1")
	logtest.Append(t, w, patch("large", noise(t, 700<<10)))
	s := fold(t, log, "r1")
	save(t, store, s, snapshot.Stored{})
	if err := store.Keep(t.Context(), "here", s.Position.Seq, s); err != nil {
		t.Fatal(err)
	}
	forged := run.Clone(s)
	forged.Status = wire.RunComplete
	blobs, err := log.JetStream().ObjectStore(t.Context(), log.Names().BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range objects(t, log) {
		if _, err := blobs.PutBytes(t.Context(), name, encode(t, forged)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Load(t.Context(), "r1"); !errors.Is(err, snapshot.ErrUnusable) {
		t.Errorf("Load: %v", err)
	}
	if _, err := snapshot.Kept(t.Context(), own, "r1", "here"); !errors.Is(err, snapshot.ErrUnusable) {
		t.Errorf("Kept: %v", err)
	}
}

// The state at a labelled point has a stamp, too.
func TestForgedBookmark(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	own := stamped(t, log, seal.NewStamp())
	store := open(t, own)
	begin(t, log, "r1")
	s := fold(t, log, "r1")
	if err := store.Keep(t.Context(), "here", s.Position.Seq, s); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Kept(t.Context(), own, "r1", "here"); err != nil {
		t.Fatal(err)
	}
	bookmarks, err := log.JetStream().KeyValue(t.Context(), log.Names().BookmarksBucket())
	if err != nil {
		t.Fatal(err)
	}
	key := log.Names().BookmarkKey("r1", "here")
	e, err := bookmarks.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bookmarks.Put(t.Context(), key, slices.Clone(e.Value())); err != nil { // as it was, but not by wake
		t.Fatal(err)
	}
	if _, err := snapshot.Kept(t.Context(), own, "r1", "here"); !errors.Is(err, snapshot.ErrUnusable) {
		t.Errorf("Kept: %v", err)
	}
	if err := store.Keep(t.Context(), "here", s.Position.Seq, s); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Kept(t.Context(), own, "r1", "here"); err != nil {
		t.Errorf("kept again: %v", err)
	}
}

// lettersOf returns the dead letters there are.
func lettersOf(t *testing.T, log *eventlog.Log) (texts []string) {
	t.Helper()
	stream, err := log.JetStream().Stream(t.Context(), log.Names().DeadLetterStream())
	if err != nil {
		t.Fatal(err)
	}
	for pos := uint64(1); ; pos++ {
		m, err := stream.GetMsg(context.WithoutCancel(t.Context()), pos)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		var p wire.Poison
		if err := wire.Unmarshal(m.Data, &p); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, p.Subject+": "+p.Reason)
	}
}
