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
	return s.ingest(printed(lines), nil)
}

// printed is the stream of a session, in which its first prompt isn't.
func printed(lines []string) string {
	return `{"type":"system","subtype":"init","session_id":"` + id + `","cwd":"/src","model":"claude-x"}` + "\n" + strings.Join(lines[1:], "") +
		`{"type":"result","subtype":"success","session_id":"` + id + `","result":"There is f.","total_cost_usd":1}` + "\n"
}

func (s *scene) ingest(stream string, labels map[string]string) ingest.Result {
	s.Helper()
	r, err := ingest.Run(s.Context(), s.log, strings.NewReader(stream), ingest.Options{RunID: "other", Labels: labels, Runner: "i", Join: true})
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

// A stream of a session that isn't watched is a run as before.
func TestStreamAlone(t *testing.T) {
	t.Parallel()
	s := &scene{T: t, log: logtest.Start(t)}
	if r := s.joinStream(feedLines()); r.RunID != "other" || r.Events == 0 {
		t.Errorf("the stream: %+v", r)
	}
}

// ofSecond is what a second session has, or prints, instead of the first one.
func ofSecond(text string) string {
	return strings.NewReplacer(id, second, "00000000-0000-4000-8000-", "00000000-0000-4000-9000-", "toolu_", "toolu_2", `"m1"`, `"n1"`, `"m2"`, `"n2"`).Replace(text)
}

const second = "20bf7da2-0000-4000-8000-000000000002"

// A stream of two sessions joins the run of each, and what follows a session that is watched and isn't one is a run as before.
func TestStreamOfTwoSessions(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{true, false} {
		s := newScene(t)
		lines := feedLines()
		content := strings.Join(lines, "")
		s.write(id+".jsonl", content)
		s.await(id, session.MainNode, len(content))
		if watched {
			s.write(second+".jsonl", ofSecond(content))
			s.await(second, session.MainNode, len(ofSecond(content)))
		}
		r := s.ingest(printed(lines)+ofSecond(printed(lines)), nil)
		if r.RunID != id || r.Events != 0 || r.Lines != 5 || r.Failed || r.Verdict == nil || r.Verdict.Verdict != completeness.Complete {
			t.Errorf("the first: %+v, verdict %+v", r, r.Verdict)
		}
		switch next := r.Next; {
		case next == nil || next.Lines != 5 || next.Failed:
			t.Errorf("the second: %+v", next)
		case watched && (next.RunID != second || next.Events != 0 || next.Verdict == nil || next.Verdict.Shared != 4):
			t.Errorf("the second: %+v", next)
		case !watched && (next.RunID != "other" || next.Events == 0 || next.Verdict != nil):
			t.Errorf("the second: %+v", next)
		}
		s.awaitOnce(content)
	}
}

// What is labelled is a run of its own: the run of the session has its labels.
func TestStreamWithLabels(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	content := strings.Join(feedLines(), "")
	s.write(id+".jsonl", content)
	s.await(id, session.MainNode, len(content))
	if r := s.ingest(printed(feedLines()), map[string]string{"team": "core"}); r.RunID != "other" || r.Events == 0 {
		t.Errorf("the stream: %+v", r)
	}
}

// Of a stream that is longer than what is held of it, the end counts, and the verdict says that something may be missing.
func TestLongStream(t *testing.T) {
	t.Parallel()
	lines := feedLines()
	for _, held := range []bool{false, true} {
		s := newScene(t)
		content := strings.Join(lines[:3], "")
		s.write(id+".jsonl", content)
		s.await(id, session.MainNode, len(content))
		long := slices.Clone(lines[:3])
		for size := 1 << 20; size > 0; size /= 32 { // until not a line more is held
			fill := strings.Repeat("x", size)
			for n := range 33 {
				if held {
					long = append(long, feedLine(100*size+n, "user", `{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"`+fill+`"}]}`))
					continue
				}
				long = append(long, `{"type":"system","subtype":"status","session_id":"`+id+`","fill":"`+fill+`"}`+"\n")
			}
		}
		r := s.ingest(printed(append(long, lines[3])), nil)
		if r.RunID != id || r.Failed || r.Verdict == nil || r.Verdict.Verdict != completeness.TranscriptShort || held == (r.Verdict.Reason == "") {
			t.Errorf("held %v: %+v, verdict %+v", held, r, r.Verdict)
		}
	}
}

// usages counts what the log says of messages' usage on the session's node.
func (s *scene) usages() map[string]int {
	s.Helper()
	found := map[string]int{}
	for e, err := range s.log.Read(s.Context(), eventlog.Query{Run: id, Node: session.MainNode}) {
		if err != nil {
			s.Fatal(err)
		}
		if p, is := e.Event.Payload.(*wire.Usage); is {
			found[p.MessageID]++
		}
	}
	return found
}

// Older versions don't say that a message is over. Its usage is told with the stream, once, also if the file has it later; and what only a
// stream has told is lacking in the file, for the next stream and for hooks, too.
func TestStreamWithoutStops(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lines := feedLines()
	for n := range lines {
		lines[n] = strings.NewReplacer(`"stop_reason":"tool_use",`, "", `"stop_reason":"end_turn",`, "").Replace(lines[n])
	}
	short := strings.Join(lines[:2], "")
	s.write(id+".jsonl", short)
	s.await(id, session.MainNode, len(short))
	for range 2 {
		r := s.ingest(printed(lines), nil)
		if r.RunID != id || r.Verdict == nil || r.Verdict.Verdict != completeness.TranscriptShort || r.Verdict.TranscriptShort != 2 {
			t.Errorf("the verdict: %+v", r.Verdict)
		}
	}
	same(t, "usage that the stream tells", map[string]int{"m1": 1, "m2": 1}, s.usages())
	hooks := logtest.Claim(t, s.log, id, wire.HooksNode)
	logtest.Append(t, hooks, &wire.Event{CallID: "toolu_1", Payload: &wire.HookFired{HookEvent: "PostToolUse", HookName: "Bash"}})
	s.stop()
	s.idle = time.Millisecond
	s.start()
	s.add(id+".jsonl", feedLine(5, "user", `{"role":"user","content":"and now?"}`))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for e, err := range s.log.Follow(ctx, eventlog.Query{Run: id, Node: wire.RunNode}) {
		if err != nil {
			t.Fatal(err)
		}
		if v, is := e.Event.Payload.(*wire.SessionCompared); is {
			if v.Verdict != completeness.TranscriptShort || v.TranscriptShort != 1 {
				t.Errorf("the verdict of hooks: %+v", v)
			}
			break
		}
	}
	s.add(id+".jsonl", lines[2]+lines[3]+feedLine(6, "user", `{"role":"user","content":"well?"}`))
	s.until("the file is read on", func() bool { return slices.Contains(s.stands(id), "00000000-0000-4000-8000-000000000006") }, func() string { return strings.Join(s.stands(id), " ") })
	same(t, "usage when the file has it", map[string]int{"m1": 1, "m2": 1}, s.usages())
}

// The usage of a message that the stream tells may come with a later line, which the file has.
func TestUsageOfMissingLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lines := feedLines()
	for n := range lines {
		lines[n] = strings.NewReplacer(`"stop_reason":"tool_use",`, "", `"stop_reason":"end_turn",`, "").Replace(lines[n])
	}
	rest := lines[0] + lines[2] + lines[3]
	s.write(id+".jsonl", rest)
	s.await(id, session.MainNode, len(rest))
	if r := s.ingest(printed(lines), nil); r.Verdict == nil || r.Verdict.TranscriptShort == 0 {
		t.Errorf("the verdict: %+v", r.Verdict)
	}
	if got := s.usages(); got["m1"] != 1 {
		t.Errorf("the usage of m1 was told %d times", got["m1"])
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
