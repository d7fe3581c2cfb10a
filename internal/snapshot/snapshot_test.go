package snapshot_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	w := begin(t, log, "r1")
	s := fold(t, log, "r1")
	if _, err := store.Load(t.Context(), "r1"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("Load before Save: %v", err)
	}
	if _, ok, err := snapshot.Load(t.Context(), log, "r1"); ok || err != nil {
		t.Errorf("Load before Save: %t, %v", ok, err)
	}
	first := save(t, store, s, snapshot.Stored{})
	logtest.Append(t, w, &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}})
	if err := snapshot.Fold(t.Context(), log, s, 0); err != nil {
		t.Fatal(err)
	}
	second := save(t, store, s, first)
	loaded, err := store.Load(t.Context(), "r1")
	if err != nil || loaded.Revision != second.Revision || loaded.Size != second.Size {
		t.Fatalf("Load = %+v, %v", loaded, err)
	}
	same(t, loaded.State, fold(t, log, "r1"))
	if _, err := store.Save(t.Context(), s, first); !errors.Is(err, snapshot.ErrConflict) {
		t.Errorf("Save of an old revision: %v", err)
	}
	if _, err := store.Save(t.Context(), s, snapshot.Stored{}); !errors.Is(err, snapshot.ErrConflict) {
		t.Errorf("Save of no revision: %v", err)
	}
}

// A large state is an object, and there is one of each run.
func TestLargeState(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	w := begin(t, log, "r1")
	stored := snapshot.Stored{}
	for i := range 4 {
		logtest.Append(t, w, patch(fmt.Sprint("k", i), noise(t, 400<<10)))
		s := fold(t, log, "r1")
		stored = save(t, store, s, stored)
		loaded, err := store.Load(t.Context(), "r1")
		if err != nil {
			t.Fatal(err)
		}
		same(t, loaded.State, s)
	}
	value := get(t, log, "r1")
	if len(value) > 1000 {
		t.Errorf("the value has %d bytes", len(value))
	}
	ref, ok := wire.Raw(value).Any().(map[string]any)
	if !ok || ref["runId"] != "r1" || ref["$blob"].(map[string]any)["size"] != int64(stored.Size) {
		t.Errorf("the value is %v", ref)
	}
	if names := objects(t, log); len(names) != 1+4 { // the state, and each patch
		t.Errorf("objects %v", names)
	}
}

// What can't be read, or isn't a state of this run in this log, is of no use and is
// replaced (RULES 15).
func TestUnusable(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	begin(t, log, "r1")
	s := fold(t, log, "r1")
	newer := run.Clone(s)
	newer.V = wire.Version + 1
	other := run.Clone(s)
	other.Position.Incarnation = "another"
	beyond := run.Clone(s)
	beyond.Position.Seq = 1000
	foreign := run.Clone(s)
	foreign.RunID = "r2"
	for name, value := range map[string][]byte{
		"no msgpack":      []byte("garbage"),
		"nothing":         {},
		"no map":          wire.RawString("state"),
		"half of it":      encode(t, s)[:40],
		"newer":           encode(t, newer),
		"another log":     encode(t, other),
		"beyond the end":  encode(t, beyond),
		"another run":     encode(t, foreign),
		"a missing blob":  encode(t, map[string]any{"$blob": map[string]any{"sha256": strings.Repeat("0", 64), "size": 5}}),
		"a hostile blob":  encode(t, map[string]any{"$blob": map[string]any{"sha256": "../../x>*", "size": 5}}),
		"a blob of a map": encode(t, map[string]any{"$blob": map[string]any{"sha256": 7}}),
	} {
		t.Run(name, func(t *testing.T) {
			rev, err := kv(t, log).Put(t.Context(), "r1", value)
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := store.Load(t.Context(), "r1")
			if !errors.Is(err, snapshot.ErrUnusable) || loaded.Revision != rev || loaded.State != nil {
				t.Errorf("Load = %+v, %v", loaded, err)
			}
			if got, ok, err := snapshot.Load(t.Context(), log, "r1"); got != nil || ok || !errors.Is(err, snapshot.ErrUnusable) {
				t.Errorf("Load = %v, %t, %v", got, ok, err)
			}
			save(t, store, s, loaded)
			if loaded, err := store.Load(t.Context(), "r1"); err != nil || loaded.State.Position != s.Position {
				t.Errorf("after Save: %v", err)
			}
		})
	}
}

// Fields in the object store are put back where the fold needs them, and events
// that are refused are left out.
func TestFold(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	w := begin(t, log, "r1")
	big := noise(t, 300<<10)
	middle := logtest.Append(t, w, patch("big", big))
	logtest.Append(t, w, &wire.Event{ExecID: "n#7", Payload: &wire.NodeStart{Target: "n", NodeType: "set"}}) // never scheduled
	if _, err := log.JetStream().Publish(t.Context(), log.Names().Event("r1", "_run", "flow"), []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	s := run.New("r1")
	if err := snapshot.Fold(t.Context(), log, s, middle-1); err != nil {
		t.Fatal(err)
	}
	if got := s.State.Get("big"); got != nil {
		t.Error("Fold went beyond its end")
	}
	if err := snapshot.Fold(t.Context(), log, s, 0); err != nil {
		t.Fatal(err)
	}
	if got := s.State.TextAt("big"); got != big || s.Position.Seq != middle {
		t.Errorf("the patch is not there: %d bytes, position %d", len(got), s.Position.Seq)
	}
}

// A blob that is gone makes its event one that nobody can fold; a store that
// doesn't answer doesn't.
func TestApplyWithoutBlob(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	w := begin(t, log, "r1")
	pos := logtest.Append(t, w, patch("big", noise(t, 300<<10)))
	store, err := log.JetStream().ObjectStore(t.Context(), log.Names().BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	s := run.New("r1")
	if err := snapshot.Fold(t.Context(), log, s, pos-1); err != nil {
		t.Fatal(err)
	}
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: "r1", From: pos}) {
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := snapshot.Apply(ended, log, s, e); err == nil || snapshot.Refused(err) {
			t.Errorf("Apply without an answer = %v, want an error that is no refusal", err)
		}
		if err := store.Delete(t.Context(), objects(t, log)[0]); err != nil {
			t.Fatal(err)
		}
		if err := snapshot.Apply(t.Context(), log, s, e); !snapshot.Refused(err) || !errors.Is(err, eventlog.ErrBlobMissing) {
			t.Errorf("Apply = %v, want a refusal", err)
		}
	}
}

// begin starts a run that executes nothing.
func begin(t testing.TB, log *eventlog.Log, id string) *eventlog.Writer {
	t.Helper()
	w := logtest.Claim(t, log, id, wire.RunNode)
	logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: encode(t, map[string]any{"name": "f"}), DefinitionHash: strings.Repeat("0", 64)}})
	return w
}

func patch(path, value string) *wire.Event {
	return &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: path, Value: wire.RawString(value)}}}
}

// noise returns text that doesn't repeat, so that no two blobs are the same.
func noise(t testing.TB, size int) string {
	t.Helper()
	b := make([]byte, size/2)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b)
}

func open(t testing.TB, log *eventlog.Log) *snapshot.Store {
	t.Helper()
	s, err := snapshot.Open(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func save(t testing.TB, store *snapshot.Store, s *wire.State, old snapshot.Stored) snapshot.Stored {
	t.Helper()
	stored, err := store.Save(t.Context(), s, old)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func fold(t testing.TB, log *eventlog.Log, id string) *wire.State {
	t.Helper()
	s := run.New(id)
	if err := snapshot.Fold(t.Context(), log, s, 0); err != nil {
		t.Fatal(err)
	}
	return s
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func same(t testing.TB, got, want *wire.State) {
	t.Helper()
	if !bytes.Equal(encode(t, got), encode(t, want)) {
		t.Errorf("another state:\n%s", cmp.Diff(want, got))
	}
}

func kv(t testing.TB, log *eventlog.Log) jetstream.KeyValue {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().SnapshotsBucket())
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func get(t testing.TB, log *eventlog.Log, key string) []byte {
	t.Helper()
	e, err := kv(t, log).Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return e.Value()
}

// objects lists all that is stored in WAKE_BLOBS, deleted ones included.
func objects(t testing.TB, log *eventlog.Log) []string {
	t.Helper()
	store, err := log.JetStream().ObjectStore(t.Context(), log.Names().BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	list, err := store.List(t.Context(), jetstream.ListObjectsShowDeleted())
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range list {
		names = append(names, o.Name)
	}
	return names
}
