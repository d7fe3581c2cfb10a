package listener_test

import (
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/snapshotter"
)

// What hooks tell when the stream has dropped all that they told before counts, by the listener that comes next, too, and the run isn't begun anew.
func TestAgedSession(t *testing.T) {
	s := newScene(t)
	r, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, s.log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, r.Run)
	shots, err := snapshotter.New(snapshotter.Config{Delay: time.Millisecond}, s.log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, shots.Run)
	s.ask()
	said := s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	s.decide("deny", "")
	said()
	s.awaitStory("start tidy up\nasked Bash toolu_1\ndeny by anna")
	s.stop()
	logtest.DropEvents(t, s.log, id)
	s.start()
	s.fire(t.Context(), report.Stop, "")()
	s.awaitStory(report.Stop)
	state := run.New(id)
	for e, err := range history.Read(t.Context(), s.log, eventlog.Query{Run: id}) {
		if err == nil {
			err = run.Apply(state, wire.Position{Incarnation: s.log.Incarnation(), Seq: e.Pos}, e.Event)
		}
		if err != nil {
			t.Errorf("%d: %v", e.Pos, err)
		}
	}
	if n := state.Nodes[wire.HooksNode]; n.Epoch != 2 {
		t.Errorf("the node of hooks was claimed %d times, want twice", n.Epoch)
	}
}
