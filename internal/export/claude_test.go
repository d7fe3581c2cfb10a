package export_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/pkg/wire"
)

// said is a session file as "role: block, block".
func said(t testing.TB, h *history, node string) (lines []string) {
	t.Helper()
	all, err := export.Conversations(h.events())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Node != node {
			continue
		}
		var b bytes.Buffer
		if _, err := export.Claude(&b, h.run, h.events(), c); err != nil {
			t.Fatal(err)
		}
		return conversation(t, b.Bytes(), c.Session)
	}
	return nil
}

// conversation checks that each line follows the one before, and returns them in
// short.
func conversation(t testing.TB, file []byte, session string) (lines []string) {
	t.Helper()
	parent, seen := "", map[string]bool{}
	for line := range bytes.Lines(file) {
		var l struct {
			ParentUUID        string
			LogicalParentUUID string
			UUID              string
			SessionID         string
			Type              string
			IsMeta            bool
			Message           struct {
				ID      string
				Content any
			}
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		if l.Type == "system" {
			parent = ""
		}
		if l.ParentUUID != parent || seen[l.UUID] || l.SessionID != session {
			t.Errorf("%q follows %q, not %q; session %s", l.UUID, l.ParentUUID, parent, l.SessionID)
		}
		parent, seen[l.UUID] = l.UUID, true
		words := []string{l.Type + ":"}
		if l.IsMeta {
			words = append(words, "meta")
		}
		switch c := l.Message.Content.(type) {
		case string:
			words = append(words, c)
		case []any:
			for _, b := range c {
				f, _ := b.(map[string]any)
				for _, key := range []string{"text", "name", "tool_use_id", "thinking"} {
					if v, is := f[key].(string); is {
						words = append(words, v)
					}
				}
			}
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

type speaker struct {
	h       *history
	exec    string
	session string
}

func (s speaker) say(p wire.Payload, call string) {
	s.h.event("a", &wire.Event{ExecID: s.exec, SessionID: s.session, CallID: call, Payload: p})
}

func toolResult(out string) *wire.AgentTool {
	return &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString(""), ToolOutput: wire.RawString(out)}
}

func intent() *wire.ToolIntent {
	return &wire.ToolIntent{ToolName: "Bash", ToolInput: must(wire.Marshal(map[string]any{"command": "ls"}))}
}

// Codex tells of one turn for many messages of its model: the session file has each message behind the results of the calls before it.
func TestMessagesOfATurn(t *testing.T) {
	h := newHistory(t)
	h.start("")
	s := speaker{h, "a#1", "s1"}
	s.say(&wire.AgentStart{Prompt: wire.RawString("Go."), Provider: "codex"}, "")
	s.say(&wire.TurnStart{Model: "m"}, "")
	s.say(intent(), "c1")
	s.say(intent(), "c2")
	s.say(toolResult("1"), "c1")
	s.say(toolResult("2"), "c2")
	s.say(&wire.AgentText{Content: "Now the other one."}, "")
	s.say(intent(), "c3")
	s.say(toolResult("3"), "c3")
	s.say(&wire.AgentText{Content: "Done."}, "")
	s.say(&wire.AgentComplete{Result: "Done."}, "")
	want := []string{
		"user: Go.", "assistant: Bash", "assistant: Bash", "user: c1", "user: c2", "assistant: Now the other one.", "assistant: Bash", "user: c3", "assistant: Done.",
	}
	if diff := cmp.Diff(want, said(t, h, "a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A whole block takes the place of the streamed one that it names, of no other one.
func TestSupersededBlocks(t *testing.T) {
	h := newHistory(t)
	h.start("")
	s := speaker{h, "a#1", "s1"}
	s.say(&wire.AgentStart{Prompt: wire.RawString("Go."), Provider: "claude"}, "")
	s.say(&wire.TurnStart{Model: "m"}, "")
	s.say(&wire.AgentThinking{Content: "first", Signature: "s", Block: 1}, "")
	s.say(&wire.AgentThinkingDelta{Content: "sec", Block: 2}, "")
	s.say(&wire.AgentThinking{Content: "second", Signature: "s", Block: 3, Supersedes: 2}, "")
	s.say(&wire.AgentText{Content: "Whole.", Block: 4}, "")
	s.say(&wire.AgentTextDelta{Content: "  ", Block: 5}, "")
	s.say(&wire.AgentText{Content: "In the place of blanks.", Block: 6, Supersedes: 5}, "")
	s.say(&wire.AgentTextDelta{Content: "Given", Block: 7}, "")
	s.say(&wire.AgentText{Content: "Given up for it.", Block: 8, Supersedes: 7}, "")
	s.say(&wire.AgentComplete{Result: "Done."}, "")
	want := []string{
		"user: Go.", "assistant: first", "assistant: second", "assistant: Whole.", "assistant: In the place of blanks.", "assistant: Given up for it.",
	}
	if diff := cmp.Diff(want, said(t, h, "a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Calls of one message stand together with their results behind them, however they
// overlap; what the agent was told meanwhile comes after them.
func TestTurns(t *testing.T) {
	h := newHistory(t)
	h.start("")
	s := speaker{h, "a#1", "s1"}
	s.say(&wire.AgentStart{Prompt: wire.RawString("Go.")}, "")
	s.say(&wire.TurnStart{Model: "m"}, "")
	s.say(&wire.AgentThinkingDelta{Content: "hm", Block: 1}, "")
	s.say(&wire.AgentThinking{Content: "signed", Block: 2, Signature: "x"}, "")
	s.say(&wire.AgentTextDelta{Content: "One ", Block: 3}, "")
	s.say(&wire.AgentTextDelta{Content: "two.", Block: 3}, "")
	s.say(&wire.AgentTextDelta{Content: "  \n", Block: 4}, "")
	s.say(intent(), "c1")
	s.say(toolResult("1"), "c1")
	s.say(intent(), "c2")
	s.say(&wire.UserMessage{Content: "Faster!", Source: "command"}, "")
	s.say(toolResult("2"), "c2")
	s.say(toolResult("of nobody"), "c9")
	s.say(&wire.TurnStart{}, "")
	s.say(&wire.AgentText{Content: "Dropped.", Block: 5}, "")
	s.say(&wire.AgentText{Content: "Done.", Block: 6, Supersedes: 5}, "")
	s.h.event("a", &wire.Event{ExecID: "a#1", Parent: "c1", Payload: &wire.AgentText{Content: "sub-agent"}})
	s.say(&wire.AgentComplete{Result: "Done."}, "")
	want := []string{
		"user: Go.", "assistant: signed", "assistant: One two.", "assistant: Bash", "assistant: Bash",
		"user: c1", "user: c2", "user: Faster!", "assistant: Done.",
	}
	if diff := cmp.Diff(want, said(t, h, "a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A second try has a session of its own; a crash is gone on with in the first; a
// session may get another id.
func TestSessions(t *testing.T) {
	h := newHistory(t)
	h.start("")
	first := speaker{h, "a#1", "s1"}
	first.say(&wire.AgentStart{Prompt: wire.RawString("Go."), Cwd: "/w"}, "")
	first.say(&wire.AgentText{Content: "No."}, "")
	second := speaker{h, "a#2", "s2"}
	second.say(&wire.AgentStart{Prompt: must(wire.Marshal([]any{map[string]any{"role": "user", "content": "Go"}, "on."}))}, "")
	second.say(&wire.AgentText{Content: "Yes."}, "")
	second.say(&wire.AgentStart{Prompt: wire.RawString("continue"), Resumed: true}, "")
	second.say(&wire.SessionBound{OldSession: "s2", NewSession: "s3"}, "")
	second.say(&wire.AgentText{Content: "Still."}, "")
	if diff := cmp.Diff([]string{"user: Go", "user: on.", "assistant: Yes.", "user: continue", "assistant: Still."}, said(t, h, "a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	all, err := export.Conversations(h.events())
	if err != nil || len(all) != 1 || all[0].Session != "s3" || all[0].Cwd != "/w" {
		t.Errorf("%+v, %v", all, err)
	}
}

// What was rolled back was never said.
func TestRolledBack(t *testing.T) {
	h := newHistory(t)
	h.start("")
	s := speaker{h, "a#1", "s1"}
	s.say(&wire.AgentStart{Prompt: wire.RawString("Go.")}, "")
	s.say(&wire.AgentText{Content: "One."}, "")
	s.say(&wire.AgentText{Content: "Two."}, "")
	s.say(&wire.LogTruncated{AtSeq: 2, Reason: "rollback"}, "")
	s.say(&wire.AgentText{Content: "Three."}, "")
	if got := strings.Join(said(t, h, "a"), "|"); got != "user: Go.|assistant: One.|assistant: Three." {
		t.Error(got)
	}
}

// A compaction begins the conversation anew with its summary.
func TestCompaction(t *testing.T) {
	got := strings.Join(said(t, recorded(t, "transcript/compact-manual.jsonl"), "coder"), "\n")
	if !strings.Contains(got, "system:\nuser: This session is being continued") {
		t.Errorf("%s", got)
	}
}

// Results are what the API takes: text, or blocks of content.
func TestResults(t *testing.T) {
	for want, output := range map[string]any{
		`"x"`: "x", `""`: nil, `[{"text":"x","type":"text"}]`: []any{map[string]any{"type": "text", "text": "x"}},
		`"{\"a\":1}"`: map[string]any{"a": 1}, `"[1]"`: []any{1}, `"true"`: true,
	} {
		h := newHistory(t)
		s := speaker{h, "a#1", "s1"}
		s.say(&wire.AgentStart{Prompt: wire.RawString("Go.")}, "")
		s.say(intent(), "c1")
		r := toolResult("")
		r.ToolOutput = must(wire.Marshal(output))
		s.say(r, "c1")
		all := must(export.Conversations(h.events()))
		var b bytes.Buffer
		if _, err := export.Claude(&b, h.run, h.events(), all[0]); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), `{"content":`+want+`,"tool_use_id":"c1"`) {
			t.Errorf("%v isn't %s: %s", output, want, b.String())
		}
	}
}
