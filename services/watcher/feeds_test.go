package watcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/watcher"
)

// feedLine is a line as a stream and the file of its session have it.
func feedLine(n int, kind, message string) string {
	return fmt.Sprintf(`{"type":%[2]q,"uuid":"00000000-0000-4000-8000-%012[1]d","session_id":%[3]q,"sessionId":%[3]q,"cwd":"/src","timestamp":"2026-11-21T01:00:00Z","message":%[4]s}`+"\n", n, kind, id, message)
}

// feedLines are a prompt, which a stream doesn't have, a call, its result and an answer.
func feedLines() []string {
	return []string{
		feedLine(1, "user", `{"role":"user","content":"look"}`),
		feedLine(2, "assistant", `{"role":"assistant","type":"message","id":"m1","model":"claude-x","content":[{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"ls"}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}}`),
		feedLine(3, "user", `{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"f"}]}`),
		feedLine(4, "assistant", `{"role":"assistant","type":"message","id":"m2","model":"claude-x","content":[{"type":"text","text":"There is f."}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}`),
	}
}

// joinStream ingests a stream of the session, in which its first prompt isn't.
func (s *scene) joinStream(lines []string) ingest.Result {
	s.Helper()
	stream := `{"type":"system","subtype":"init","session_id":"` + id + `","cwd":"/src","model":"claude-x"}` + "\n" + strings.Join(lines[1:], "") +
		`{"type":"result","subtype":"success","session_id":"` + id + `","result":"There is f.","total_cost_usd":1}` + "\n"
	r, err := ingest.Run(s.Context(), s.log, strings.NewReader(stream), ingest.Options{RunID: "other", Runner: "i", Join: true})
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// awaitOnce waits until the log has each line of a file once, and each event.
func (s *scene) awaitOnce(content string) {
	s.Helper()
	wantKeys, wantTypes := wanted(content)
	slices.Sort(wantKeys)
	var types []wire.Type
	s.until("each line is told once", func() bool {
		var events []*wire.Event
		for e, err := range s.log.Read(s.Context(), eventlog.Query{Run: id, Node: session.MainNode}) {
			if err != nil {
				s.Fatal(err)
			}
			events = append(events, e.Event)
		}
		told, removed := marks(events)
		if len(removed) > 0 {
			s.Fatalf("removed: %v", removed)
		}
		slices.Sort(told)
		types = typesOf(events)
		return slices.Equal(told, wantKeys) && len(types) == len(wantTypes)
	}, func() string { return fmt.Sprintf("%v, want %v", types, wantTypes) })
}

// A stream of a session that is watched is no run of its own: each line is there once, and the verdict is about both.
func TestStreamOfWatchedSession(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lines := feedLines()
	content := strings.Join(lines, "")
	s.write(id+".jsonl", content)
	s.await(id, session.MainNode, len(content))
	r := s.joinStream(lines)
	if r.RunID != id || r.Events != 0 || r.Verdict == nil || r.Verdict.Verdict != completeness.Complete || r.Verdict.Shared != 4 || r.Failed {
		t.Errorf("the stream: %+v, verdict %+v", r, r.Verdict)
	}
	s.awaitOnce(content)
	if _, there, err := s.log.Last(t.Context(), "other", wire.RunNode); there || err != nil {
		t.Errorf("it is a run of its own: %v", err)
	}
}

// What the file lacks is told from the stream, and once: it stays told while the file lacks it, and isn't told again when the file has it.
func TestStreamHasMore(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lines := feedLines()
	short := strings.Join(lines[:3], "")
	s.write(id+".jsonl", short)
	s.await(id, session.MainNode, len(short))
	r := s.joinStream(lines)
	if r.Verdict == nil || r.Verdict.Verdict != completeness.TranscriptShort || r.Verdict.TranscriptShort != 1 {
		t.Errorf("the verdict: %+v", r.Verdict)
	}
	more := feedLine(5, "user", `{"role":"user","content":"and now?"}`)
	s.add(id+".jsonl", more)
	s.until("the file is read on", func() bool { return slices.Contains(s.stands(id), "00000000-0000-4000-8000-000000000005") }, func() string { return strings.Join(s.stands(id), " ") })
	more += lines[3]
	s.add(id+".jsonl", lines[3])
	last := feedLine(6, "user", `{"role":"user","content":"well?"}`)
	s.stop()
	s.start()
	s.add(id+".jsonl", last)
	s.awaitOnce(short + more + last)
}

// A stream whose session isn't watched is a run as before.
func TestStreamAlone(t *testing.T) {
	t.Parallel()
	s := &scene{T: t, log: logtest.Start(t)}
	if r := s.joinStream(feedLines()); r.RunID != "other" || r.Events == 0 {
		t.Errorf("the stream: %+v", r)
	}
}

// Hooks are the third to tell: a result that they have told of and the files lack is named once the session rests.
func TestHooksTakePart(t *testing.T) {
	t.Parallel()
	for want, calls := range map[string][]string{completeness.Complete: {"toolu_1"}, completeness.TranscriptShort: {"toolu_1", "toolu_2"}} {
		s := &scene{T: t, log: logtest.Start(t), config: t.TempDir()}
		s.write(id+".jsonl", strings.Join(feedLines(), ""))
		hooks := logtest.Claim(t, s.log, id, wire.HooksNode)
		for _, call := range calls {
			logtest.Append(t, hooks, &wire.Event{CallID: call, Payload: &wire.HookFired{HookEvent: "PostToolUse", HookName: "Bash"}})
		}
		w, err := watcher.New(watcher.Config{ID: "w", Folders: []string{s.config}, Idle: time.Millisecond}, s.log, logtest.Logger(s))
		if err != nil {
			t.Fatal(err)
		}
		s.stop = logtest.Go(s, w.Run)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for e, err := range s.log.Follow(ctx, eventlog.Query{Run: id, Node: wire.RunNode}) {
			if err != nil {
				t.Fatal(err)
			}
			if v, is := e.Event.Payload.(*wire.SessionCompared); is {
				if v.Verdict != want || v.Shared != 1 || v.TranscriptShort != len(calls)-1 {
					t.Errorf("the verdict is %+v, want %s", v, want)
				}
				break
			}
		}
	}
}
