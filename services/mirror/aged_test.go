package mirror_test

import (
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/snapshotter"
)

// A session that is kept, and goes on when the stream has dropped all that was told of it, goes on in the log behind that: by the same process
// or the next one each entry is told once.
func TestAgedSession(t *testing.T) {
	for name, restarted := range map[string]bool{"by the same mirror": false, "by the next one": true} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.stop()
			s.idle = time.Millisecond
			s.start()
			shots, err := snapshotter.New(snapshotter.Config{Delay: time.Millisecond}, s.log, logtest.Logger(t))
			if err != nil {
				t.Fatal(err)
			}
			logtest.Go(t, shots.Run)
			s.append(key("p", id), said(1, 0, "one"))
			s.until("the run rests", func() bool { return strings.HasSuffix(s.story(id), "paused\n") })
			logtest.DropEvents(t, s.log, id)
			if restarted {
				s.stop()
				s.start()
			}
			s.append(key("p", id), said(2, 1, "two"))
			s.until("it is told", func() bool { return strings.Contains(s.story(id), "says two") })
			var story []string
			state := run.New(id)
			for e, err := range history.Read(t.Context(), s.log, eventlog.Query{Run: id}) {
				if err == nil {
					err = run.Apply(state, wire.Position{Incarnation: s.log.Incarnation(), Seq: e.Pos}, e.Event)
				}
				if err != nil {
					t.Fatalf("%d: %v", e.Pos, err)
				}
				switch p := e.Event.Payload.(type) {
				case *wire.FlowStart, *wire.FlowPaused, *wire.FlowResumed:
					story = append(story, string(p.Type()))
				case *wire.AgentText:
					story = append(story, p.Content)
				}
			}
			if got := strings.Join(story[:min(len(story), 5)], " "); got != "flow:start one flow:paused flow:resumed two" {
				t.Errorf("the log tells %v", story)
			}
		})
	}
}
