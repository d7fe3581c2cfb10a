package recorder_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/archive"
)

// What is derived is derived again, whatever somebody has made of it; events that
// aren't as they were recorded are derived from by nobody; an order counts once.
func TestRebuild(t *testing.T) {
	p := story(t)
	p.start("open", "coder", nil)
	p.add("open", "coder", "coder#1", &wire.AgentTextDelta{Content: "it grows "})
	path := newTarget(t)
	s := openAt(t, path)
	p.store(s, 7)
	if got := found(t, s, "piece"); len(got) == 0 {
		t.Fatal("nothing is found")
	}
	closed(t, s)
	want := dump(t, path)
	db := openDB(t, path)
	defer db.Close()
	mustExec(t, db, `UPDATE lines SET hidden = 1 WHERE run = (SELECT id FROM runs WHERE run = 'r1')`)
	mustExec(t, db, `UPDATE runs SET flow = 'other', cost_usd = 100 WHERE run = 'r1'`)
	mustExec(t, db, `DELETE FROM folds`)
	mustExec(t, db, `DELETE FROM labels`)
	s = openAt(t, path)
	defer closed(t, s)
	var done, of, told int64
	for range 2 {
		if err := s.Index.Rebuild(t.Context(), "order", func(d, o int64) { done, of, told = d, o, told+1 }); err != nil {
			t.Fatal(err)
		}
	}
	var all int64
	if err := db.QueryRow(`SELECT sum(events) FROM runs`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	if done != all || of != all || told != int64(len(want["runs"])) {
		t.Errorf("in %d steps %d of %d events were derived again, want each of %d once", told, done, of, all)
	}
	got := dump(t, path)
	for _, table := range []string{"events", "streams", "labels", "blobs"} {
		if diff := cmp.Diff(want[table], got[table]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", table, diff)
		}
	}
	sound(t, s, "derived again")
	if got := found(t, s, "piece"); len(got) == 0 {
		t.Error("nothing is found any more")
	}
	p.add("open", "coder", "coder#1", &wire.AgentTextDelta{Content: "and grows"})
	p.add("open", "coder", "coder#1", &wire.NodeComplete{Output: wire.Null})
	p.store(s, 100)
	sound(t, s, "recorded on")
	if diff := cmp.Diff([]string{"open"}, found(t, s, `"it grows and grows"`)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if onPostgres(path) {
		return
	}
	mustExec(t, db, `DROP TRIGGER tail_keep`)
	mustExec(t, db, `UPDATE tail SET data = (SELECT data FROM tail ORDER BY first_pos LIMIT 1) WHERE first_pos = (SELECT max(first_pos) FROM tail)`)
	if err := s.Index.Rebuild(t.Context(), "another", func(int64, int64) {}); err == nil {
		t.Error("what was changed was derived from")
	}
}

// A rebuild reads the events of a long line in several parts, and leaves the full text sound, which has the line already.
func TestRebuildOfLongLine(t *testing.T) {
	p := story(t)
	p.start("open", "coder", nil)
	for i := range 3 * archive.SegmentEvents {
		p.add("open", "coder", "coder#1", &wire.AgentTextDelta{Content: fmt.Sprintf("w%d ", i)})
	}
	p.add("open", "coder", "coder#1", &wire.AgentText{Content: "it grew"})
	s := openAt(t, newTarget(t))
	defer closed(t, s)
	p.store(s, 100)
	if diff := cmp.Diff([]string{"open"}, found(t, s, "grew")); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	for i := range 2 {
		if err := s.Index.Rebuild(t.Context(), fmt.Sprint(i), func(int64, int64) {}); err != nil {
			t.Fatal(err)
		}
		sound(t, s, "derived again")
	}
	if diff := cmp.Diff([]string{"open"}, found(t, s, "grew")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A store of long runs, made of real sessions, is sound whatever is done to it between two batches.
func TestSoundInAnyOrder(t *testing.T) {
	files := recordedSessions(t)
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 0))
		p := newTape(t)
		runs := 1 + random.IntN(3)
		for len(p.entries) < 1000*runs+random.IntN(2000) {
			p.playSession(fmt.Sprint("r", random.IntN(runs)), files[random.IntN(len(files))])
		}
		path := newTarget(t)
		s := openAt(t, path)
		for at := 0; at < len(p.entries); {
			b := recorder.Batch{Incarnation: incarnation, Entries: p.entries[at:min(len(p.entries), at+1+random.IntN(1200))], Later: random.IntN(2) == 0}
			at += len(b.Entries)
			if _, err := s.Index.Record(t.Context(), b); err != nil {
				t.Fatal(seed, err)
			}
			if _, err := s.Index.Derive(t.Context(), 1+random.IntN(2000)); err != nil {
				t.Fatal(seed, err)
			}
			if random.IntN(2) == 0 {
				indexed(t, s)
			}
			if random.IntN(3) == 0 {
				if err := s.Index.Rebuild(t.Context(), fmt.Sprint("order ", at), func(int64, int64) {}); err != nil {
					t.Fatal(seed, err)
				}
			}
			if random.IntN(3) == 0 {
				sound(t, s, fmt.Sprintf("seed %d, at %d", seed, at))
			}
			if random.IntN(3) == 0 {
				closed(t, s)
				s = openAt(t, path)
			}
		}
		derived(t, s)
		indexed(t, s)
		sound(t, s, fmt.Sprintf("seed %d", seed))
		closed(t, s)
	}
}
