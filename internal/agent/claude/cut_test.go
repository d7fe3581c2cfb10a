package claude_test

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// historyOf yields the events of a run up to a point, and then those of its fork.
func historyOf(parent []*wire.Event, fork ...*wire.Event) iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		for _, e := range slices.Concat(parent, fork) {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// sealedHere is the result of a call that the fork has sealed.
func sealedHere(call string) *wire.Event {
	return &wire.Event{RunID: "fork", CallID: call, Payload: &wire.AgentTool{
		ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.RawString("it was cut off"), Error: "it was cut off",
	}}
}

// A fork has the conversation up to its point and nothing else, where the program can't cut it: behind the prompt, where
// calls are open, and behind the last word.
func TestForkPrefix(t *testing.T) {
	lines := []string{
		`{"type":"user","uuid":"u1","sessionId":"s0","message":{"content":"Go."}}`,
		`{"type":"attachment","uuid":"u2","sessionId":"s0","attachment":{"type":"skills"}}`,
		`{"type":"assistant","uuid":"u3","sessionId":"s0","message":{"id":"m1","content":[{"type":"text","text":"One."}]}}`,
		`{"type":"assistant","uuid":"u4","sessionId":"s0","message":{"id":"m1","content":[{"type":"tool_use","id":"t1"}]}}`,
		`{"type":"assistant","uuid":"u5","sessionId":"s0","message":{"id":"m1","content":[{"type":"tool_use","id":"t2"}]}}`,
		`{"type":"user","uuid":"u6","sessionId":"s0","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}`,
		`{"type":"user","uuid":"u7","sessionId":"s0","message":{"content":[{"type":"tool_result","tool_use_id":"t2"}]}}`,
		`{"type":"assistant","uuid":"u8","sessionId":"s0","message":{"id":"m2","content":[{"type":"text","text":"Done."}]}}`,
		`{"type":"user","uuid":"u9","sessionId":"s0","message":{"content":"More."}}`,
	}
	in := func(call string, p wire.Payload) *wire.Event {
		return &wire.Event{RunID: "parent", CallID: call, Payload: p}
	}
	parent := []*wire.Event{
		in("", &wire.AgentStart{Prompt: wire.RawString("Go.")}),
		in("t1", &wire.ToolIntent{ToolName: "Bash"}), in("t2", &wire.ToolIntent{ToolName: "Bash"}),
		in("t1", &wire.AgentTool{ToolName: "Bash", Point: "u6"}), in("t2", &wire.AgentTool{ToolName: "Bash", Point: "u7"}),
		in("", &wire.AgentComplete{Result: "Done."}),
	}
	for name, c := range map[string]struct {
		history iter.Seq2[*wire.Event, error]
		at      string
		want    []string // the lines of the copy; nil: the program makes it
	}{
		"prompt":       {historyOf(parent[:1]), "", []string{"u1"}},
		"one result":   {historyOf(parent[:4], sealedHere("t2")), "u6", []string{"u1", "u2", "u3", "u4", "u5", "u6", "t2"}},
		"open calls":   {historyOf(parent[:3], sealedHere("t1"), sealedHere("t2")), "", []string{"u1", "u2", "u3", "u4", "u5", "t1", "t2"}},
		"both results": {historyOf(parent[:5]), "u7", nil},
		"last word":    {historyOf(parent), "u7", []string{"u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8"}},
		"rolled back":  {historyOf(parent[:5], &wire.Event{RunID: "fork", Payload: &wire.TurnStart{}}), "u7", nil},
	} {
		t.Run(name, func(t *testing.T) { checkCopy(t, lines, c.history, c.at, c.want) })
	}
}

// A message that the program had read as it was interrupted stands in its file by itself, and once more with the next one, as which the
// log has it. A fork behind that has both.
func TestForkPrefixInterrupted(t *testing.T) {
	lines := []string{
		`{"type":"user","uuid":"u1","sessionId":"s0","message":{"content":"Go."}}`,
		`{"type":"assistant","uuid":"u2","sessionId":"s0","message":{"id":"m1","content":[{"type":"text","text":"One."}]}}`,
		`{"type":"user","uuid":"u3","sessionId":"s0","message":{"content":"And another thing."}}`,
		`{"type":"assistant","uuid":"u4","sessionId":"s0","message":{"id":"m2","content":[{"type":"text","text":"No response requested."}]}}`,
		`{"type":"user","uuid":"u5","sessionId":"s0","message":{"content":[{"type":"text","text":"Go on."},{"type":"text","text":"And another thing."}]}}`,
		`{"type":"assistant","uuid":"u6","sessionId":"s0","message":{"id":"m3","content":[{"type":"text","text":"Done."}]}}`,
		`{"type":"user","uuid":"u7","sessionId":"s0","message":{"content":"Later."}}`,
	}
	in := func(p wire.Payload) *wire.Event { return &wire.Event{RunID: "parent", Payload: p} }
	parent := []*wire.Event{
		in(&wire.AgentStart{Prompt: wire.RawString("Go.")}), in(&wire.AgentStart{Prompt: wire.RawString("Go on."), Resumed: true}),
		in(&wire.UserMessage{Content: "Go on.\n\nAnd another thing.", Point: "u5"}), in(&wire.AgentComplete{Result: "Done."}),
	}
	checkCopy(t, lines, historyOf(parent[:3], sealedHere("t0")), "", []string{"u1", "u2", "u3", "u4", "u5"})
	checkCopy(t, lines, historyOf(parent), "", []string{"u1", "u2", "u3", "u4", "u5", "u6"})
	checkCopy(t, lines, historyOf(parent[:1]), "", []string{"u1"})
}

// checkCopy forks a session that has lines, at a point of its history, and compares the ids of the lines of the copy; nil: the
// program makes it.
func checkCopy(t *testing.T, lines []string, history iter.Seq2[*wire.Event, error], at string, want []string) {
	t.Helper()
	p := newPlace(t)
	p.put(t, "s0", strings.Join(lines, "\n")+"\n")
	var argv string
	note := `> {"type":"note","argv":"${argv}"}` + "\n"
	drain(t, session(t, start+note+ending, func(r *agent.Request) {
		p.request(r)
		r.RunID, r.ForkOf, r.ForkAt, r.History = "fork", "s0", at, history
	}), func(e *wire.Event) {
		if p, ok := e.Payload.(*wire.RawMessage); ok {
			if text := p.Data.TextAt("argv"); text != "" {
				argv = text
			}
		}
	})
	if own := strings.Contains(argv, "--resume=s1") && !strings.Contains(argv, "--fork-session"); own != (want != nil) {
		t.Errorf("the program was started with %s", argv)
	}
	if want == nil {
		return
	}
	var got []string
	for line := range strings.Lines(p.has(t, "s1")) {
		var l struct {
			UUID, SessionID string
			Message         struct{ Content json.RawMessage }
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.SessionID != "s1" {
			t.Errorf("line %s: %v", line, err)
		}
		if len(l.UUID) > 2 { // wake's own
			var blocks []struct {
				ID string `json:"tool_use_id"`
			}
			if err := json.Unmarshal(l.Message.Content, &blocks); err != nil {
				t.Fatal(err)
			}
			l.UUID = blocks[0].ID
		}
		got = append(got, l.UUID)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the copy (-want +got):\n%s", d)
	}
	if original := p.has(t, "s0"); original != strings.Join(lines, "\n")+"\n" {
		t.Error("the parent's session was changed")
	}
}
