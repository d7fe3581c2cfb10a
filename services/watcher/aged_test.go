package watcher_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/snapshotter"
)

// A session that goes on when the stream has dropped all that was told of it goes on in the log behind that: each line is told once, and
// counts, whether the watcher was there all the time or not.
func TestAgedSession(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"by the same watcher": false, "by the next one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scene{T: t, log: logtest.Start(t), config: t.TempDir(), idle: time.Millisecond}
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
			lines := feedLines()
			begun := strings.Join(lines[:2], "")
			s.write(id+".jsonl", begun)
			s.start()
			s.await(id, session.MainNode, len(begun))
			s.until("the run rests", func() bool {
				last, found, err := s.log.Last(t.Context(), id, wire.RunNode)
				return err == nil && found && last.Event.Type() == wire.TypeFlowPaused
			}, func() string { return "" })
			if restarted {
				s.stop()
			}
			logtest.DropEvents(t, s.log, id)
			s.add(id+".jsonl", strings.Join(lines[2:], ""))
			if restarted {
				s.start()
			}
			s.await(id, session.MainNode, len(strings.Join(lines, "")))
			var events []*wire.Event
			state := run.New(id)
			for e, err := range history.Read(t.Context(), s.log, eventlog.Query{Run: id}) {
				if err == nil {
					err = run.Apply(state, wire.Position{Incarnation: s.log.Incarnation(), Seq: e.Pos}, e.Event)
				}
				if err != nil {
					t.Fatalf("%d: %v", e.Pos, err)
				}
				if e.NodeID == session.MainNode {
					events = append(events, e.Event)
				}
			}
			keys, types := wanted(strings.Join(lines, ""))
			told, _ := marks(events)
			same(t, "lines", keys, told)
			same(t, "events", types, typesOf(events))
			if n := state.Nodes[session.MainNode]; n.Epoch != 2 {
				t.Errorf("claimed %d times, want twice", n.Epoch)
			}
		})
	}
}

// A file with nothing that the session's own one lacks, such as where a runner makes a fork of it begin, is no run; what goes on in it is.
func TestCopyOfSession(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lines := feedLines()
	content, part := strings.Join(lines, ""), strings.Join(lines[:3], "")
	s.write(id+".jsonl", content)
	s.await(id, session.MainNode, len(content))
	s.write("../-src-adopted/"+id+".jsonl", part)
	last := "20bf7da2-0000-4000-8000-000000000003"
	s.write(last+".jsonl", strings.ReplaceAll(content, id, last)) // read behind it
	s.await(last, session.MainNode, len(content))
	for e, err := range s.log.Read(t.Context(), eventlog.Query{Kinds: []wire.Kind{wire.KindFlow}}) {
		if err != nil || strings.HasPrefix(e.RunID, id+"-") {
			t.Fatalf("run %s, %v", e.RunID, err)
		}
	}
	s.add("../-src-adopted/"+id+".jsonl", feedLine(9, "user", `{"role":"user","content":"elsewhere"}`))
	if more := twinOf(t, s, id); more == "" {
		t.Error("what goes on elsewhere isn't told")
	}
}

// A watcher that comes back dates the pause of a session behind what was told last of it.
func TestPauseIsDatedLast(t *testing.T) {
	t.Parallel()
	s := &scene{T: t, log: logtest.Start(t), config: t.TempDir(), idle: time.Millisecond}
	lines := feedLines()
	last := func() *wire.Event {
		e, _, err := s.log.Last(t.Context(), id, wire.RunNode)
		if err != nil || e.Event == nil {
			return &wire.Event{Payload: &wire.Opaque{}}
		}
		return e.Event
	}
	paused := func() bool { return last().Type() == wire.TypeFlowPaused }
	s.write(id+".jsonl", strings.Join(lines[:2], ""))
	s.start()
	s.until("it rests", paused, func() string { return "" })
	s.stop()
	s.idle = time.Hour
	s.start()
	s.add(id+".jsonl", strings.Join(lines[2:], ""))
	s.await(id, session.MainNode, len(strings.Join(lines, "")))
	resumed := last()
	s.stop()
	s.idle = time.Millisecond
	s.start()
	s.until("it rests again", paused, func() string { return "" })
	if resumed.Type() != wire.TypeFlowResumed || last().Timestamp < resumed.Timestamp {
		t.Errorf("%s at %d, and paused at %d", resumed.Type(), resumed.Timestamp, last().Timestamp)
	}
}
