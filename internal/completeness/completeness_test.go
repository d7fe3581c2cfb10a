package completeness_test

import (
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/pkg/wire"
)

// A session in both feeds: a message with two calls, their results, and a last message.
const (
	streamed = `{"type":"system","session_id":"s"}
{"type":"assistant","session_id":"s","message":{"id":"m1","content":[{"type":"text","text":"I look."}]}}
{"type":"assistant","session_id":"s","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"Read"}]}}
{"type":"assistant","session_id":"s","message":{"id":"m1","content":[{"type":"tool_use","id":"t2","name":"Grep"}]}}
{"type":"user","session_id":"s","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}
{"type":"user","session_id":"s","message":{"content":[{"type":"tool_result","tool_use_id":"t2"}]}}
{"type":"assistant","session_id":"s","message":{"id":"m2","content":[{"type":"text","text":"Done."}]}}
{"type":"result","session_id":"s"}`
	subagent = `{"type":"assistant","session_id":"s","parent_tool_use_id":"t1","message":{"id":"m9","content":[]}}`
)

// kept is what the session file has of it.
func kept() string {
	s := strings.ReplaceAll(streamed, `"session_id"`, `"sessionId"`)
	return s[:strings.LastIndex(s, "\n")]
}

func feed(text string) completeness.Feed {
	return completeness.Read(func(yield func([]byte, error) bool) {
		for line := range strings.Lines(text) {
			if !yield([]byte(strings.TrimSuffix(line, "\n")), nil) {
				return
			}
		}
	})
}

// without is a text that lacks some lines, from 0 on.
func without(text string, numbers ...int) string {
	lines := strings.Split(text, "\n")
	for i, n := range numbers {
		lines = slices.Delete(lines, n-i, n-i+1)
	}
	return strings.Join(lines, "\n")
}

func TestCompare(t *testing.T) {
	earlier := strings.NewReplacer("m1", "m0", "m2", "m00", "t1", "t8", "t2", "t9").Replace(kept())
	for name, test := range map[string]struct{ stream, transcript, want string }{
		"the same":                    {streamed, kept(), "complete"},
		"another order":               {streamed, without(kept(), 4) + "\n" + strings.Split(kept(), "\n")[4], "complete"},
		"sub-agents are left out":     {streamed + "\n" + subagent, kept(), "complete"},
		"broken lines are left out":   {streamed + "\n{", "[]\n" + kept(), "complete"},
		"of an earlier process":       {streamed, earlier + "\n" + kept(), "complete"},
		"of a later process":          {streamed, kept() + "\n" + earlier, "complete"},
		"a stream that broke off":     {without(streamed, 5, 6, 7), kept(), "stream short by 2"},
		"a hole in the stream":        {without(streamed, 3), kept(), "stream short by 1"},
		"a hole in the transcript":    {streamed, without(kept(), 4), "transcript short by 1"},
		"a transcript that broke off": {streamed, without(kept(), 5, 6), "transcript short by 2"},
		"holes in both":               {without(streamed, 2), without(kept(), 5), "stream short by 1, transcript short by 1"},
		"nothing of a model":          {without(streamed, 1, 2, 3, 4, 5, 6), kept(), "can't tell: one of them has no message"},
		"nothing":                     {streamed, "", "can't tell: one of them has no message"},
		"another session":             {streamed, strings.ReplaceAll(kept(), `"s"`, `"other"`), "can't tell: they are of different sessions"},
		"another part of the session": {streamed, earlier, "can't tell: they have nothing in common"},
	} {
		t.Run(name, func(t *testing.T) {
			v := completeness.Compare(feed(test.stream), feed(test.transcript))
			if v.String() != test.want {
				t.Errorf("%s %+v, want %s", v, v, test.want)
			}
		})
	}
	v := completeness.Compare(feed(without(streamed, 3)), feed(kept()))
	if len(v.StreamLacks) != 1 || v.StreamLacks[0].String() != "call t2 (Grep), line 4" {
		t.Errorf("evidence %v", v.StreamLacks)
	}
}

// TestLogAgainstTranscript compares what the log tells of a session with its file.
func TestLogAgainstTranscript(t *testing.T) {
	told := func(session string, calls ...string) completeness.Feed {
		f := completeness.NewFeed(session)
		f.AddEvent(&wire.Event{SessionID: "other", CallID: "t8", Payload: &wire.ToolIntent{ToolName: "Bash"}}, 1)
		f.AddEvent(&wire.Event{SessionID: session, Parent: "t1", CallID: "t9", Payload: &wire.AgentTool{ToolName: "Read"}}, 2)
		for i, id := range calls {
			f.AddEvent(&wire.Event{SessionID: session, CallID: id, Payload: &wire.ToolIntent{ToolName: "Bash"}}, uint64(10+i))
			f.AddEvent(&wire.Event{SessionID: session, CallID: id, Payload: &wire.AgentTool{ToolName: "Bash"}}, uint64(20+i))
		}
		for i, id := range []string{"m1", "m2"} {
			f.AddEvent(&wire.Event{SessionID: session, Payload: &wire.Usage{MessageID: id}}, uint64(30+i))
		}
		f.AddEvent(&wire.Event{SessionID: session, Payload: &wire.AgentComplete{}}, 40)
		return *f
	}
	for name, test := range map[string]struct {
		log, transcript completeness.Feed
		want            string
	}{
		"the same":                     {told("s", "t1", "t2"), feed(kept()), "complete: "},
		"a call that the log lacks":    {told("s", "t1"), feed(kept()), "stream short: call t2 (Grep), line 4, result t2, line 6"},
		"a call that only the log has": {told("s", "t1", "t2", "t3"), feed(kept()), "transcript short: call t3 (Bash), position 12, result t3, position 22"},
	} {
		t.Run(name, func(t *testing.T) {
			p := completeness.Compare(test.log, test.transcript).Event()
			if got := p.Verdict + ": " + strings.Join(slices.Concat(p.StreamLacks, p.TranscriptLacks), ", "); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestWorse(t *testing.T) {
	verdict := ""
	for _, v := range []string{"complete", "can't tell", "complete", "stream short", "transcript short"} {
		verdict = completeness.Worse(verdict, v)
	}
	if verdict != completeness.StreamShort {
		t.Errorf("the worst is %q", verdict)
	}
}
