package bookmark_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/services/recorder"
)

// A point whose events the stream has dropped is found, with its state, as long as the recorder has them, and without it the others
// still are.
func TestDropped(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		logtest.Init(t, nc, topology.Config{MaxAge: 6 * time.Minute})
		log := logtest.Open(t, nc)
		r, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		stop := logtest.Go(t, r.Run)
		s := tell(t, log, "r1")
		s.begin(log, "r1")
		two := s.tool("c1")
		s.tool("c2")
		before, err := bookmark.List(t.Context(), log, "r1")
		if err != nil {
			t.Fatal(err)
		}
		_, want, err := bookmark.Find(t.Context(), log, "r1", "sfp-2")
		if err != nil || want.Position.Seq != two {
			t.Fatalf("%+v, %v", want, err)
		}
		for range 2 { // then the stream has nothing but these
			<-time.After(4 * time.Minute)
			for _, w := range []*eventlog.Writer{s.owner, s.own} {
				if _, err := w.Anchor(t.Context(), "test", ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-time.After(4 * time.Minute)
		if first, _, err := log.Bounds(t.Context()); err != nil || first <= two {
			t.Fatalf("the stream begins at %d, %v", first, err)
		}
		after, err := bookmark.List(t.Context(), log, "r1")
		if diff := cmp.Diff(before, after); diff != "" || err != nil {
			t.Errorf("points (-before +now), %v:\n%s", err, diff)
		}
		p, got, err := bookmark.Find(t.Context(), log, "r1", "sfp-2")
		if err != nil || p.Position != two {
			t.Fatalf("%+v, %v", p, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the state (-before +now):\n%s", diff)
		}
		stop()
		if _, _, err := bookmark.Find(t.Context(), log, "r1", "sfp-2"); code(err) == "" {
			t.Errorf("without a recorder: %v", err)
		}
	})
}
