package snapshot_test

import (
	"bytes"
	"errors"
	"testing"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzStored puts anything in the place of a snapshot and of a bookmark. It is a
// state of the run, or unusable; and what the service saves next replaces it.
func FuzzStored(f *testing.F) {
	log := logtest.Start(f)
	store, err := snapshot.Open(f.Context(), log)
	if err != nil {
		f.Fatal(err)
	}
	logtest.Append(f, logtest.Claim(f, log, "r1", wire.RunNode), &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.Null, DefinitionHash: "h"}})
	state := run.New("r1")
	if err := snapshot.Fold(f.Context(), log, state, 0); err != nil {
		f.Fatal(err)
	}
	whole, err := wire.Marshal(state)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		`{}`, `{"v":1,"runId":"r1"}`, `{"v":9,"runId":"r1"}`, `{"label":"here","state":{"v":1,"runId":"r1","position":{"seq":1}}}`,
		`{"label":"here","state":{"v":1,"runId":"r2","position":{"seq":1}}}`,
		`{"$blob":{"sha256":"0000","size":3},"runId":"r1","position":{"seq":1}}`, `{"$blob":{"sha256":"../x"}}`, `{"$blob":7}`, `"text"`,
	} {
		raw, err := wire.RawFromJSON([]byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(raw))
	}
	f.Add(bytes.Replace(whole, []byte("r1"), []byte("r2"), 1))
	f.Add([]byte(whole[:len(whole)/2]))
	f.Add([]byte("\xc1"))
	f.Add([]byte("{\"v\":1}"))
	names := log.Names()
	snapshots, err := log.JetStream().KeyValue(f.Context(), names.SnapshotsBucket())
	if err != nil {
		f.Fatal(err)
	}
	bookmarks, err := log.JetStream().KeyValue(f.Context(), names.BookmarksBucket())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if _, err := snapshots.Put(t.Context(), names.SnapshotKey("r1"), value); err != nil {
			t.Fatal(err)
		}
		stored, err := store.Load(t.Context(), "r1")
		if err != nil && !errors.Is(err, snapshot.ErrUnusable) {
			t.Fatalf("%q: %v", value, err)
		}
		if err == nil && (stored.State.RunID != "r1" || stored.State.Position.Incarnation != log.Incarnation()) {
			t.Fatalf("%q is a state of %s", value, stored.State.RunID)
		}
		if _, err := store.Save(t.Context(), state, stored); err != nil {
			t.Fatalf("%q can't be replaced: %v", value, err)
		}
		if stored, err = store.Load(t.Context(), "r1"); err != nil {
			t.Fatal(err)
		}
		same(t, stored.State, state)

		if _, err := bookmarks.Put(t.Context(), names.BookmarkKey("r1", "here"), value); err != nil {
			t.Fatal(err)
		}
		if s, err := snapshot.Kept(t.Context(), log, "r1", "here"); err == nil && s.RunID != "r1" || err != nil && !errors.Is(err, snapshot.ErrUnusable) {
			t.Fatalf("bookmark %q: %v", value, err)
		}
		if err := store.Keep(t.Context(), "here", state.Position.Seq, state); err != nil {
			t.Fatalf("bookmark %q can't be replaced: %v", value, err)
		}
		kept, err := snapshot.Kept(t.Context(), log, "r1", "here")
		if err != nil {
			t.Fatalf("behind %q: %v", value, err)
		}
		same(t, kept, state)
	})
}
