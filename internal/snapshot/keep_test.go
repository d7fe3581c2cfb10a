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

// A label that was moved has the state of its new place, of whatever size; an earlier place of it, which a reader that begins anew comes by, and
// that of another log don't take it back.
func TestKeepMovedLabel(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	w := begin(t, log, "r1")
	states := []*wire.State{fold(t, log, "r1")}
	for _, size := range []int{10, 700 << 10, 20} {
		logtest.Append(t, w, patch("k", noise(t, size)))
		states = append(states, fold(t, log, "r1"))
	}
	keep := func(s *wire.State, marked uint64) {
		t.Helper()
		if err := store.Keep(t.Context(), "here", marked, s); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() *wire.State {
		t.Helper()
		s, err := snapshot.Kept(t.Context(), log, "r1", "here")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for i, s := range states {
		keep(s, s.Position.Seq)
		same(t, kept(), s)
		for _, earlier := range states[:i] {
			keep(earlier, earlier.Position.Seq)
			same(t, kept(), s)
		}
	}
	// A label that is given later to what was earlier counts from when it was given.
	last := states[len(states)-1].Position.Seq
	for i, s := range []*wire.State{states[0], states[2]} { // a small state and a large one
		keep(s, last+1+uint64(i))
		same(t, kept(), s)
		keep(states[1], last)
		same(t, kept(), s)
	}
	other := run.Clone(states[0])
	other.Position.Incarnation = "another"
	keep(other, 1)
	same(t, kept(), other)
	keep(states[1], states[1].Position.Seq)
	same(t, kept(), states[1])
}

// What stands under a label and can't be read, or is of another run, is no state, and is replaced.
func TestKeptUnusable(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	begin(t, log, "r1")
	s := fold(t, log, "r1")
	foreign := run.Clone(s)
	foreign.RunID = "r2"
	bookmarks, err := log.JetStream().KeyValue(t.Context(), log.Names().BookmarksBucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Kept(t.Context(), log, "r1", "here"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("what was never kept: %v", err)
	}
	for name, value := range map[string][]byte{
		"no msgpack":     []byte("garbage"),
		"another run":    encode(t, map[string]any{"label": "here", "state": wire.RawOf(foreign)}),
		"no state":       encode(t, map[string]any{"label": "here", "state": 7}),
		"a missing blob": encode(t, map[string]any{"$blob": map[string]any{"sha256": strings.Repeat("0", 64), "size": 5}}),
	} {
		if _, err := bookmarks.Put(t.Context(), log.Names().BookmarkKey("r1", "here"), value); err != nil {
			t.Fatal(err)
		}
		if _, err := snapshot.Kept(t.Context(), log, "r1", "here"); !errors.Is(err, snapshot.ErrUnusable) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "another run" {
			continue // of the same position: its key says that it was kept
		}
		if err := store.Keep(t.Context(), "here", s.Position.Seq, s); err != nil {
			t.Fatal(err)
		}
		if got, err := snapshot.Kept(t.Context(), log, "r1", "here"); err != nil || got.Position != s.Position {
			t.Errorf("%s, kept again: %v", name, err)
		}
	}
}

// Of a run that was removed no state stays, nor an object of one, whatever stands there; other runs keep theirs.
func TestDropRun(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	own := stamped(t, log, seal.NewStamp())
	store := open(t, own)
	var patches []string
	for _, id := range []string{"r1", "r10"} {
		w := begin(t, log, id)
		before := objects(t, log)
		logtest.Append(t, w, patch("large", noise(t, 700<<10)))
		patches = append(patches, slices.DeleteFunc(objects(t, log), func(name string) bool { return slices.Contains(before, name) })...)
		s := fold(t, log, id)
		save(t, store, s, snapshot.Stored{})
		for _, label := range []string{"a", "b", "c"} {
			if err := store.Keep(t.Context(), label, s.Position.Seq, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	bookmarks, err := log.JetStream().KeyValue(t.Context(), log.Names().BookmarksBucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bookmarks.Put(t.Context(), log.Names().BookmarkKey("r1", "forged"), []byte("not by wake")); err != nil {
		t.Fatal(err)
	}
	if err := bookmarks.Delete(t.Context(), log.Names().BookmarkKey("r1", "never")); err != nil { // a marker
		t.Fatal(err)
	}
	for range 2 {
		if err := snapshot.Drop(t.Context(), own, "r1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Load(t.Context(), "r1"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("its snapshot: %v", err)
	}
	stream, err := log.JetStream().Stream(t.Context(), "KV_"+log.Names().BookmarksBucket())
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.>"))
	if err != nil || len(info.State.Subjects) != 3 {
		t.Errorf("bookmarks %v, %v", info.State.Subjects, err)
	}
	if got := slices.DeleteFunc(objects(t, log), func(name string) bool { return slices.Contains(patches, name) }); len(got) != 4 {
		t.Errorf("%d objects of states are left", len(got))
	}
	if _, err := store.Load(t.Context(), "r10"); err != nil {
		t.Errorf("the other run's snapshot: %v", err)
	}
	if _, err := snapshot.Kept(t.Context(), own, "r10", "c"); err != nil {
		t.Errorf("the other run's bookmark: %v", err)
	}
}

// A large state whose object is there already, such as that of a process that died before it could say so, is saved as any other.
func TestSaveObjectThatIsThere(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	w := begin(t, log, "r1")
	logtest.Append(t, w, patch("large", noise(t, 700<<10)))
	s := fold(t, log, "r1")
	stored := save(t, store, s, snapshot.Stored{})
	before := objects(t, log)
	stored = save(t, store, s, stored)
	if _, err := store.Save(t.Context(), s, snapshot.Stored{}); !errors.Is(err, snapshot.ErrConflict) {
		t.Errorf("Save of no revision: %v", err)
	}
	loaded, err := store.Load(t.Context(), "r1")
	if err != nil || loaded.Revision != stored.Revision {
		t.Fatalf("Load = %+v, %v", loaded, err)
	}
	same(t, loaded.State, s)
	if got := objects(t, log); !slices.Equal(got, before) {
		t.Errorf("objects %v, want %v", got, before)
	}
}

// blobless is a log whose object store doesn't answer.
type blobless struct{ eventlog.Reader }

var errAway = errors.New("the store is away")

func (blobless) Blob(context.Context, string) ([]byte, error) { return nil, errAway }

// A fold that can't have a field of an event ends there, and goes on from there: it doesn't leave the event out.
func TestFoldWithoutAnswer(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	w := begin(t, log, "r1")
	before := logtest.Append(t, w, patch("small", "x"))
	logtest.Append(t, w, patch("big", noise(t, 300<<10)))
	logtest.Append(t, w, patch("small", "y"))
	s := run.New("r1")
	if err := snapshot.Fold(t.Context(), blobless{log}, s, 0); !errors.Is(err, errAway) {
		t.Errorf("Fold = %v", err)
	}
	if s.Position.Seq != before {
		t.Errorf("it is at %d, want %d", s.Position.Seq, before)
	}
	if err := snapshot.Fold(t.Context(), log, s, 0); err != nil {
		t.Fatal(err)
	}
	same(t, s, fold(t, log, "r1"))
}

// A state whose object can't be had is no reason to build it again, and isn't one that can't be used.
func TestLoadWithoutAnswer(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	store := open(t, log)
	w := begin(t, log, "r1")
	logtest.Append(t, w, patch("large", noise(t, 700<<10)))
	s := fold(t, log, "r1")
	save(t, store, s, snapshot.Stored{})
	if err := store.Keep(t.Context(), "here", s.Position.Seq, s); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := snapshot.Load(t.Context(), blobless{log}, "r1"); got != nil || ok || !errors.Is(err, errAway) || errors.Is(err, snapshot.ErrUnusable) {
		t.Errorf("Load = %v, %t, %v", got, ok, err)
	}
	if _, err := snapshot.Kept(t.Context(), blobless{log}, "r1", "here"); !errors.Is(err, errAway) || errors.Is(err, snapshot.ErrUnusable) {
		t.Errorf("Kept: %v", err)
	}
}

// That a bookmark is of another run is told in words.
func TestKeptOfAnotherRun(t *testing.T) {
	log := logtest.Start(t)
	begin(t, log, "r1")
	foreign := run.Clone(fold(t, log, "r1"))
	foreign.RunID = "r2"
	bookmarks, err := log.JetStream().KeyValue(t.Context(), log.Names().BookmarksBucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bookmarks.Put(t.Context(), log.Names().BookmarkKey("r1", "here"), encode(t, map[string]any{"label": "here", "state": wire.RawOf(foreign)})); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Kept(t.Context(), log, "r1", "here"); err == nil || strings.Contains(err.Error(), "%!") {
		t.Errorf("it says %v", err)
	}
}
