package conversation_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// agents is what a conversation says of its threads.
type agents struct {
	Begun   map[string]int    // how often, by parent
	Ended   map[string]string // cause, by parent
	Calls   int
	Blocked int64
}

func fold(c *conversation.Conversation, log []*wire.Event) agents {
	a := agents{Begun: map[string]int{}, Ended: map[string]string{}}
	for i, e := range log {
		s := c.Apply(uint64(i+1), e)
		if s.Opened {
			a.Begun[e.Parent]++
		}
		if s.Closed != nil {
			a.Ended[s.Closed.Parent] = s.Closed.Cause
		}
		if s.Result != nil {
			a.Calls++
		}
	}
	for _, th := range c.Threads {
		a.Blocked += th.BlockedMs
	}
	return a
}

// script makes events of lines: a second apart, a type, and what else is in them.
func script(t *testing.T, lines ...string) []*wire.Event {
	t.Helper()
	var log []*wire.Event
	for i, line := range lines {
		kind, fields, _ := strings.Cut(line, " ")
		head := `{"v":1,"type":"` + kind + `","runId":"r","nodeId":"a","execId":"a#1","seq":1,"epoch":1,"timestamp":0,`
		e, err := wire.DecodeJSON([]byte(head + strings.TrimPrefix(fields, "{")))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		e.Timestamp = int64(i+1) * 1000
		log = append(log, e)
	}
	return log
}

const (
	begin    = `agent:start {"sessionId":"s","prompt":"x"}`
	delegate = `tool:intent {"callId":"t","toolName":"Task","toolInput":{}}`
	told     = `user:message {"parent":"t","content":"survey","source":"subagent"}`
	usage    = `usage {"parent":"t","messageId":"m","inputTokens":1,"outputTokens":1}`
	done     = `agent:tool {"callId":"t","toolName":"Task","toolInput":{},"toolOutput":"x"}`
	launched = `agent:tool {"callId":"t","toolName":"Task","toolInput":{},"toolOutput":"x","structured":{"isAsync":true}}`
	works    = `tool:intent {"parent":"t","callId":"c","toolName":"Bash","toolInput":{}}`
	worked   = `agent:tool {"parent":"t","callId":"c","toolName":"Bash","toolInput":{},"toolOutput":"x"}`
	required = `permission:required {"callId":"t","toolName":"Task"}`
	decided  = `permission:decided {"callId":"t","decision":"allow","by":"operator"}`
	asks     = `cc_message {"text":"?","priority":"question"}`
	answer   = `user:message {"content":"!","source":"command"}`
	turn     = `turn:start {"turn":0}`
	rests    = `turn:end {"turn":0}`
)

func report(status string) string {
	return `raw {"source":"claude","name":"system/task_notification","data":{"tool_use_id":"t","status":"` + status + `"}}`
}

func TestConversation(t *testing.T) {
	own := map[string]int{"": 1}
	both := map[string]int{"": 1, "t": 1}
	for name, test := range map[string]struct {
		lines []string
		want  agents
	}{
		"what follows a sub-agent's end begins none": {
			[]string{begin, delegate, told, works, worked, done, usage},
			agents{Begun: both, Ended: map[string]string{"t": ""}, Calls: 2},
		},
		"a sub-agent of which only the usage is told is none": {[]string{begin, delegate, usage, done, usage}, agents{Begun: own, Calls: 1}},
		"a call's end ends no sub-agent in the background": {
			[]string{begin, delegate, told, launched, works, rests, worked, report("completed"), usage},
			agents{Begun: both, Ended: map[string]string{"t": ""}, Calls: 2},
		},
		"one that is stopped": {
			[]string{begin, delegate, launched, works, report("stopped")},
			agents{Begun: both, Ended: map[string]string{"t": wire.CallInterrupted}, Calls: 1},
		},
		"a report before the result of a call ends nothing": {
			[]string{begin, delegate, works, worked, report("failed"), `agent:text {"parent":"t","content":"done"}`, done},
			agents{Begun: both, Ended: map[string]string{"t": ""}, Calls: 2},
		},
		"one that is told something goes on": {
			[]string{begin, delegate, told, done, told}, agents{Begun: map[string]int{"": 1, "t": 2}, Ended: map[string]string{"t": ""}, Calls: 1},
		},
		"a decision":                          {[]string{begin, delegate, required, turn, decided, done}, agents{Begun: own, Calls: 1, Blocked: 2000}},
		"a question":                          {[]string{begin, asks, rests, turn, answer}, agents{Begun: own, Blocked: 3000}},
		"a question beside a call":            {[]string{begin, delegate, asks, done, rests, answer}, agents{Begun: own, Calls: 1, Blocked: 2000}},
		"without an answer":                   {[]string{begin, asks, delegate, done, turn, rests, turn, answer}, agents{Begun: own, Calls: 1, Blocked: 1000 + 2000}},
		"an agent that goes on hasn't waited": {[]string{begin, asks, begin, turn, answer}, agents{Begun: own, Blocked: 1000}},
		"what the agent asks a person by a tool": {
			[]string{begin, `tool:intent {"callId":"q","toolName":"AskUserQuestion","toolInput":{}}`, turn, `agent:tool {"callId":"q","toolName":"AskUserQuestion","toolInput":{},"toolOutput":"x"}`},
			agents{Begun: own, Calls: 1, Blocked: 2000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c conversation.Conversation
			if test.want.Ended == nil {
				test.want.Ended = map[string]string{}
			}
			if diff := cmp.Diff(test.want, fold(&c, script(t, test.lines...))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Turns and messages are numbered whether or not the agent announces them.
func TestMessages(t *testing.T) {
	var c conversation.Conversation
	var got []string
	for i, e := range script(t,
		begin, `agent:text {"content":"a"}`, `agent:text {"content":"b"}`, delegate, done,
		turn, `agent:text {"content":"c"}`, answer, `agent:text {"content":"d"}`,
		`agent:message {"messageId":"m","content":[{"type":"text","text":"e"},{"type":"tool_use","id":"t","name":"Task","input":{}}]}`, delegate, done, done,
	) {
		s := c.Apply(uint64(i+1), e)
		line := string(e.Type())
		if s.Turns {
			line += " turn"
		}
		if s.Begins {
			line += " message"
		}
		if s.Named {
			line += " named"
		}
		got = append(got, line)
	}
	want := []string{
		"agent:start", "agent:text turn message", "agent:text", "tool:intent", "agent:tool named",
		"turn:start turn", "agent:text message", "user:message", "agent:text turn message",
		"agent:message", "tool:intent named", "agent:tool named", "agent:tool",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWants says what an agent waits for: a decision or an answer before what it has asked its parent.
func TestWants(t *testing.T) {
	const question = `tool:intent {"callId":"q","toolName":"AskUserQuestion","toolInput":{}}`
	for want, lines := range map[string][]string{
		"":              {begin, delegate},
		"approval:Task": {begin, asks, delegate, required},
		"question":      {begin, asks, question},
		"blocker":       {begin, `cc_message {"text":"?","priority":"blocker"}`, asks},
	} {
		var c conversation.Conversation
		fold(&c, script(t, lines...))
		if got := c.Threads[0].Wants(); got != want {
			t.Errorf("it waits for %q, want %q", got, want)
		}
	}
}

// A conversation that is stored between any two events goes on as it would have.
func TestStored(t *testing.T) {
	lines := []string{begin, delegate, told, usage, done, launched, works, worked, required, decided, asks, answer, turn, rests, report("completed")}
	rapid.Check(t, func(rt *rapid.T) {
		log := script(t, rapid.SliceOfN(rapid.SampledFrom(lines), 1, 60).Draw(rt, "log")...)
		cut := rapid.IntRange(0, len(log)).Draw(rt, "cut")
		var whole, stored, back conversation.Conversation
		fold(&whole, log)
		fold(&stored, log[:cut])
		data, err := wire.Marshal(stored)
		if err == nil {
			err = wire.Unmarshal(data, &back)
		}
		if err != nil {
			rt.Fatal(err)
		}
		for i, e := range log[cut:] {
			back.Apply(uint64(cut+i+1), e)
		}
		a, _ := wire.Marshal(whole)
		b, _ := wire.Marshal(back)
		if diff := cmp.Diff([]byte(a), []byte(b)); diff != "" {
			rt.Errorf("cut at %d (-whole +stored):\n%s", cut, diff)
		}
	})
}

// Whatever an agent does, its conversation stays small.
func TestBounded(t *testing.T) {
	var c conversation.Conversation
	for i := range uint64(20000) {
		id := strings.Repeat("x", 2000) + string(rune('a'+i%26)) + strings.Repeat("y", int(i%977))
		c.Apply(i+1, &wire.Event{NodeID: "a", CallID: id, Parent: id[:len(id)-int(i%3)], Payload: &wire.ToolIntent{ToolName: "Bash"}})
		c.Apply(i+1, &wire.Event{NodeID: "a", CallID: id, Payload: &wire.CCMessage{Priority: wire.PriorityQuestion}})
	}
	data, err := wire.Marshal(c)
	if err != nil || len(data) > 2<<20 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// recording is what an agent has done, and how long one event of it takes.
func recording(t testing.TB, file string) []*wire.Event {
	t.Helper()
	log := logtest.Start(t)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
	if _, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: name, Runner: "test"}); err != nil {
		t.Fatal(err)
	}
	var events []*wire.Event
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: name}) {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		if e.NodeID != wire.RunNode {
			events = append(events, e.Event)
		}
	}
	return events
}

func BenchmarkApply(b *testing.B) {
	events := recording(b, "../agent/claude/testdata/stream/v329-subagents.jsonl")
	b.ReportAllocs()
	for b.Loop() {
		var c conversation.Conversation
		for i, e := range events {
			c.Apply(uint64(i+1), e)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}
