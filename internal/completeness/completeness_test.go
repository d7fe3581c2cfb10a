package completeness_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

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
	asked := `{"type":"user","sessionId":"s","message":{"content":"Look."}}` + "\n"
	for name, test := range map[string]struct{ stream, transcript, want string }{
		"the first call is lost":      {without(streamed, 1, 2), asked + kept(), "stream short by 1"},
		"the last word is lost":       {without(streamed, 6), asked + kept(), "stream short by 1"},
		"others were asked for":       {streamed, asked + earlier + "\n" + asked + kept() + "\n" + asked + strings.NewReplacer("m", "n", "t1", "t4", "t2", "t5").Replace(earlier), "complete"},
		"the same":                    {streamed, kept(), "complete"},
		"another order":               {streamed, without(kept(), 4) + "\n" + strings.Split(kept(), "\n")[4], "complete"},
		"a sub-agent without a file":  {streamed + "\n" + subagent, kept(), "complete, but of a sub-agent there is no session file"},
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

// A sub-agent that call t1 has begun, in both feeds: a call, its result, and an answer.
const (
	helped = `{"type":"assistant","session_id":"s","parent_tool_use_id":"t1","message":{"id":"m5","content":[{"type":"tool_use","id":"t5","name":"Bash"}]}}
{"type":"user","session_id":"s","parent_tool_use_id":"t1","message":{"content":[{"type":"tool_result","tool_use_id":"t5"}]}}
{"type":"assistant","session_id":"s","parent_tool_use_id":"t1","message":{"id":"m6","content":[{"type":"text","text":"It builds."}]}}`
	helper = `{"type":"user","isSidechain":true,"sessionId":"s","message":{"content":"Build it."}}
{"type":"assistant","isSidechain":true,"sessionId":"s","message":{"id":"m5","content":[{"type":"thinking"}]}}
{"type":"assistant","isSidechain":true,"sessionId":"s","message":{"id":"m5","content":[{"type":"tool_use","id":"t5","name":"Bash"}]}}
{"type":"user","isSidechain":true,"sessionId":"s","message":{"content":[{"type":"tool_result","tool_use_id":"t5"}]}}
{"type":"assistant","isSidechain":true,"sessionId":"s","message":{"id":"m6","content":[{"type":"text","text":"It builds."}]}}`
)

// with is the stream with what a sub-agent did, before the results.
func with(agent string) string {
	lines := strings.Split(streamed, "\n")
	return strings.Join(slices.Concat(lines[:4], strings.Split(agent, "\n"), lines[4:]), "\n")
}

func read(f *completeness.Feed, file, call, text string) {
	f.ReadAgent(file, call, func(yield func([]byte, error) bool) {
		for line := range strings.Lines(text) {
			if !yield([]byte(line), nil) {
				return
			}
		}
	})
}

// TestCompareHooks holds a session file against the results that hooks have told of.
func TestCompareHooks(t *testing.T) {
	told := func(calls ...string) completeness.Feed {
		f := completeness.NewFeed("s")
		for i, id := range calls {
			f.AddHook(&wire.Event{CallID: id, Payload: &wire.HookFired{HookName: "Read"}}, uint64(i+1))
			f.AddHook(&wire.Event{CallID: id, Payload: &wire.TurnStart{}}, uint64(i+1))
		}
		return *f
	}
	for name, test := range map[string]struct {
		hooks   completeness.Feed
		verdict string
		shared  int
		lacks   int
	}{
		"all of them":   {told("t1", "t2"), completeness.Complete, 2, 0},
		"some":          {told("t1"), completeness.Complete, 1, 0},
		"one is absent": {told("t1", "t7", ""), completeness.TranscriptShort, 1, 1},
	} {
		v, ok := completeness.CompareHooks(test.hooks, feed(kept()))
		if !ok || v.Verdict != test.verdict || v.Shared != test.shared || v.TranscriptShort != test.lacks || len(v.TranscriptLacks) != test.lacks {
			t.Errorf("%s: %+v, %t", name, v, ok)
		}
	}
	if v, ok := completeness.CompareHooks(told(), feed(kept())); ok {
		t.Errorf("hooks that told nothing say %+v", v)
	}
}

func TestSubAgents(t *testing.T) {
	other := strings.NewReplacer("m5", "m7", "m6", "m8", "t5", "t7").Replace(helper)
	before := strings.NewReplacer("m1", "m0", "m2", "m00", "t1", "t8", "t2", "t9").Replace(kept())
	for name, test := range map[string]struct {
		stream, transcript string
		files              map[string]string // by the calls that began them
		partial            bool
		want               string
	}{
		"the same":                              {with(helped), kept(), map[string]string{"t1": helper}, false, "complete"},
		"a version that prints no answers":      {with(without(helped, 2)), kept(), map[string]string{"t1": helper}, false, "complete"},
		"a version with all in one file":        {with(without(helped, 2)), kept() + "\n" + helper, nil, false, "complete"},
		"a stream that lacks a result":          {with(without(helped, 1)), kept(), map[string]string{"t1": helper}, false, "stream short by 1: result t5, line 4 of sub-agent agent-t1.jsonl"},
		"a stream that lacks a call":            {with(without(helped, 0)), kept(), map[string]string{"t1": helper}, false, "stream short by 2: message m5, line 2 of sub-agent agent-t1.jsonl, call t5 (Bash), line 3 of sub-agent agent-t1.jsonl"},
		"a file that lacks a result":            {with(helped), kept(), map[string]string{"t1": without(helper, 3)}, false, "transcript short by 1: result t5, line 6 of sub-agent t1"},
		"a file of what the stream didn't tell": {streamed, kept(), map[string]string{"t1": helper}, false, "stream short by 3: message m5, line 2 of sub-agent agent-t1.jsonl, call t5 (Bash), line 3 of sub-agent agent-t1.jsonl, result t5, line 4 of sub-agent agent-t1.jsonl"},
		"no file":                               {with(helped), kept(), nil, false, "complete, but of a sub-agent there is no session file"},
		"a file of another one only": {
			with(without(helped, 1, 2)), kept(),
			map[string]string{"t2": without(other, 1, 2, 3, 4)},
			false,
			"transcript short by 2: message m5, line 5 of sub-agent t1, call t5 (Bash), line 5 of sub-agent t1",
		},
		"that file may be elsewhere":    {with(helped), kept(), map[string]string{"t2": without(other, 1, 2, 3, 4)}, true, "complete, but of a sub-agent there is no session file"},
		"of an earlier process":         {streamed, before + "\n" + kept(), map[string]string{"t8": helper}, false, "complete"},
		"begun by an earlier process":   {with(without(helped, 0)), before + "\n" + kept(), map[string]string{"t8": helper}, false, "complete"},
		"begun by a sub-agent":          {with(helped), kept(), map[string]string{"t1": helper, "t5": without(other, 4)}, false, "stream short by 3: message m7, line 2 of sub-agent agent-t5.jsonl, call t7 (Bash), line 3 of sub-agent agent-t5.jsonl, result t7, line 4 of sub-agent agent-t5.jsonl"},
		"nobody knows which began it":   {with(helped), kept(), map[string]string{"": helper}, false, "complete"},
		"nobody knows what it is about": {streamed, kept(), map[string]string{"": helper}, false, "complete"},
	} {
		t.Run(name, func(t *testing.T) {
			transcript := feed(test.transcript)
			for _, call := range slices.Sorted(maps.Keys(test.files)) {
				read(&transcript, "agent-"+call+".jsonl", call, test.files[call])
			}
			if test.partial {
				transcript.MarkPartial()
			}
			v := completeness.Compare(feed(test.stream), transcript)
			got := v.String()
			if e := v.Event(); len(e.StreamLacks)+len(e.TranscriptLacks) > 0 {
				got += ": " + strings.Join(slices.Concat(e.StreamLacks, e.TranscriptLacks), ", ")
			}
			if got != test.want {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		})
	}
}

// TestLogAgainstTranscript compares what the log tells of a session with its file.
func TestLogAgainstTranscript(t *testing.T) {
	told := func(session string, calls ...string) completeness.Feed {
		f := completeness.NewFeed(session)
		f.AddEvent(&wire.Event{SessionID: "other", CallID: "t8", Payload: &wire.ToolIntent{ToolName: "Bash"}}, 1)
		f.AddEvent(&wire.Event{SessionID: session, Parent: "t1", CallID: "t5", Payload: &wire.AgentTool{ToolName: "Bash"}}, 2)
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
	helpedFeed := feed(kept())
	read(&helpedFeed, "agent-a.jsonl", "t1", without(helper, 4))
	for name, test := range map[string]struct {
		log, transcript completeness.Feed
		want            string
	}{
		"the same":                     {told("s", "t1", "t2"), feed(kept()), "complete: "},
		"usage of a sub-agent":         {told("s", "t1", "t2"), helpedFeed, "stream short: message m5, line 2 of sub-agent agent-a.jsonl"},
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

// What is hostile or endless is bounded: no verdict is given of what wasn't looked at.
func TestBounds(t *testing.T) {
	event := func(id, name string) *wire.Event {
		return &wire.Event{SessionID: "s", CallID: id, Payload: &wire.ToolIntent{ToolName: name}}
	}
	long, other := completeness.NewFeed("s"), completeness.NewFeed("s")
	for _, f := range []*completeness.Feed{long, other} {
		f.AddEvent(event("t", strings.Repeat("é", 1000)), 1)
	}
	long.AddEvent(event(strings.Repeat("x", 600), "Bash"), 2)
	if v := completeness.Compare(*long, *other); v.Verdict != completeness.Complete || v.Shared != 1 {
		t.Errorf("a long id: %+v", v)
	}
	if v := completeness.Compare(*long, *completeness.NewFeed("s")); v.Verdict != completeness.Unknown {
		t.Errorf("nothing: %+v", v)
	}
	other.AddEvent(event("u", strings.Repeat("é", 1000)), 3)
	if v := completeness.Compare(*long, *other); len(v.StreamLacks) != 1 || len(v.StreamLacks[0].Tool) > 200 || !utf8.ValidString(v.StreamLacks[0].Tool) {
		t.Errorf("a long name: %d", len(v.StreamLacks))
	}
	for n := range 200_000 {
		long.AddEvent(event(strconv.Itoa(n), ""), 4)
	}
	if v := completeness.Compare(*long, *other); v.Verdict != completeness.Unknown || v.Check() != nil {
		t.Errorf("without end: %s", v)
	}
	if v, ok := completeness.CompareHooks(*other, *long); !ok || v.Verdict != completeness.Unknown {
		t.Errorf("hooks, without end: %s", v)
	}
}
