package watcher_test

import (
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/watcher"
)

// Two watchers of one folder, as while one is exchanged for another, tell each line once.
func TestTwoWatchersTellOnce(t *testing.T) {
	s := newScene(t)
	second, err := watcher.New(watcher.Config{ID: "w2", Folders: []string{s.config}, Idle: time.Hour}, s.log, logtest.Logger(s))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(s, second.Run)
	content := line(1, "hello")
	s.write(id+".jsonl", content)
	s.await(id, session.MainNode, len(content))
	<-time.After(3 * time.Second) // both know the run
	for n := range 12 {
		node := "agent-a" + string(rune('a'+n))
		s.add(id+"/subagents/"+node+".jsonl", content)
		s.await(id, node, len(content))
		<-time.After(300 * time.Millisecond) // the other one may be at it
		starts, told := 0, map[string]int{}
		for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: id, Node: node}) {
			if err != nil {
				t.Fatal(err)
			}
			switch p := e.Event.Payload.(type) {
			case *wire.NodeStart:
				starts++
			case *wire.TranscriptRead:
				for _, key := range p.Lines {
					told[key]++
				}
			}
		}
		for key, times := range told {
			if times > 1 || starts > 1 {
				t.Fatalf("%s: line %s is told %d times, %d starts", node, key, times, starts)
			}
		}
	}
}
