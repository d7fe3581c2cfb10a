package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	fold "code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// attachedTo is a person attached to run r1, in a terminal of a size, and the orders given.
func attachedTo(t *testing.T, columns, rows int) (*attachment, *[]wire.Command) {
	t.Helper()
	state := fold.New("r1")
	state.Status = wire.RunRunning
	state.Nodes["coder"] = wire.NodeState{Type: "agent", Scheduled: 1}
	lines := (&app{out: &bytes.Buffer{}}).newScreen()
	lines.zone = time.UTC
	var orders []wire.Command
	m := newAttachment(state, "", lines, func(c wire.Command) { orders = append(orders, c) })
	m.Update(tea.WindowSizeMsg{Width: columns, Height: rows})
	return m, &orders
}

// hear has events come to m.
func hear(m *attachment, events ...*wire.Event) {
	for _, e := range events {
		e.RunID, e.Timestamp = "r1", time.Now().UnixMilli()
		m.Update(eventMsg{eventlog.Entry{Pos: uint64(len(m.blocks) + 100), RunID: "r1", Event: e}})
	}
}

// typed has keys pressed, see [keysOf].
func typed(t *testing.T, m tea.Model, keys ...string) {
	t.Helper()
	for _, key := range keys {
		for _, k := range keysOf(key) {
			m.Update(k)
		}
	}
}

// keysOf are the keys of a text, or the one that has a name in brackets.
func keysOf(text string) []tea.KeyPressMsg {
	named := map[string]tea.KeyPressMsg{
		"<enter>": {Code: tea.KeyEnter}, "<esc>": {Code: tea.KeyEscape}, "<tab>": {Code: tea.KeyTab}, "<pgup>": {Code: tea.KeyPgUp}, "<pgdown>": {Code: tea.KeyPgDown},
		"<backspace>": {Code: tea.KeyBackspace}, "<left>": {Code: tea.KeyLeft},
	}
	if k, ok := named[text]; ok {
		return []tea.KeyPressMsg{k}
	}
	if c, ok := strings.CutPrefix(text, "<ctrl-"); ok {
		return []tea.KeyPressMsg{{Code: rune(c[0]), Mod: tea.ModCtrl}}
	}
	var keys []tea.KeyPressMsg
	for _, r := range text {
		keys = append(keys, tea.KeyPressMsg{Code: r, Text: string(r)})
	}
	return keys
}

func shownBy(m tea.Model) string {
	var lines []string
	for line := range strings.SplitSeq(ansi.Strip(m.View().Content), "\n") {
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return strings.TrimLeft(strings.Join(lines, "\n"), "\n")
}

// Text comes as it is said, calls have their time, edits what they change, sub-agents stand below who has begun them, and
// nothing that an agent says moves the cursor.
func TestAttachmentView(t *testing.T) {
	call := func(id, parent string, p wire.Payload) *wire.Event {
		e := on("coder", p)
		e.CallID, e.Parent = id, parent
		return e
	}
	input := wire.RawOf(map[string]any{"file_path": "a.go", "old_string": "one\ntwo", "new_string": "one\n2"})
	task := wire.RawOf(map[string]any{"subagent_type": "reviewer", "description": "look at\x1b[2J it"})
	for _, tt := range []struct {
		columns int
		want    string
	}{
		{60, `
● coder 00:00:00
  I mend the parser now, which takes a line that is too long
  for sixty columns.
  ✅ Edit
  a.go
     one
    -two
    +2
  ● coder ▸ reviewer: look at it 00:00:00
    Fine.
  It is
  ⏳ Bash 5s  go test ./...
── r1 · running ───────────────────────────────────────────
coder> and▏
enter sends · esc stops it first
`},
		{200, `
● coder 00:00:00
  I mend the parser now, which takes a line that is too long for sixty columns.
  ✅ Edit
  a.go
     one
    -two
    +2
  ● coder ▸ reviewer: look at it 00:00:00
    Fine.
  It is
  ⏳ Bash 5s  go test ./...
── r1 · running ` + strings.Repeat("─", 183) + `
coder> and▏
enter sends · esc stops it first · ctrl-c twice leaves, the run goes on
`},
	} {
		t.Run(fmt.Sprint(tt.columns), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := attachedTo(t, tt.columns, 40)
				hear(m, on("coder", &wire.AgentText{Content: "I mend the parser now, which takes a line that is too long for sixty columns.", Block: 1}),
					call("e1", "", &wire.ToolIntent{ToolName: "Edit", ToolInput: input}), call("e1", "", &wire.AgentTool{ToolName: "Edit", ToolInput: input}),
					call("t1", "", &wire.ToolIntent{ToolName: "Task", ToolInput: task}), call("", "t1", &wire.AgentText{Content: "Fi\x1b[1Ane.", Block: 1}),
					on("coder", &wire.AgentTextDelta{Content: "It is", Block: 2}))
				m.state.Tools = map[string]wire.ToolCall{"coder#1/b1": {Node: "coder", CallID: "b1", Tool: "Bash", Input: wire.RawOf(map[string]any{"command": "go test ./..."}), State: wire.ToolExecuting, Since: time.Now().UnixMilli()}}
				<-time.After(5 * time.Second)
				m.Update(tickMsg(time.Now()))
				typed(t, m, "and")
				if diff := cmp.Diff(strings.Trim(tt.want, "\n"), shownBy(m)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				for _, rows := range []int{1, 2, 4, 8, 12} {
					m.Update(tea.WindowSizeMsg{Width: 20, Height: rows})
					lines := strings.Split(ansi.Strip(m.View().Content), "\n")
					if len(lines) != rows {
						t.Errorf("%d lines in %d rows", len(lines), rows)
					}
					for _, line := range lines {
						if ansi.StringWidth(line) > 20 {
							t.Errorf("%q is wider than 20 columns", line)
						}
					}
				}
			})
		})
	}
}

// Keys give orders, and none by accident.
func TestAttachmentKeys(t *testing.T) {
	const settled = 2 * minShown
	asks := map[string]wire.ToolCall{"coder#1/c1": {Node: "coder", CallID: "c1", Tool: "Bash", Input: wire.RawOf(map[string]any{"command": "make deploy"}), State: wire.ToolApprovalRequired, AskedAt: 1}}
	question := func(m *attachment) {
		n := m.state.Nodes["coder"]
		n.Asked = []wire.Question{{ID: "q1", Text: "Tabs?", Priority: wire.PriorityBlocker}}
		m.state.Nodes["coder"] = n
	}
	waits := func(m *attachment) { m.state.Tools = asks; m.noteWaiting() }
	for _, tt := range []struct {
		name  string
		given func(m *attachment)
		after time.Duration
		keys  []string
		want  []wire.Command
		shows string
	}{
		{"a message", nil, 0, []string{"helloo", "<backspace>", "<enter>"}, []wire.Command{{Type: "send", Message: "hello"}}, "…"},
		{"in several lines", nil, 0, []string{"b", "<left>", "a", "<ctrl-e>", "<ctrl-j>", "c", "<enter>"}, []wire.Command{{Type: "send", Message: "ab\nc"}}, ""},
		{"to a node", nil, 0, []string{"<tab>", "x", "<enter>"}, []wire.Command{{Type: "send", NodeID: "coder", Message: "x"}}, ""},
		{"nothing", nil, 0, []string{" ", "<enter>"}, nil, ""},
		{"it stops first", nil, 0, []string{"no!", "<esc>"}, []wire.Command{{Type: "send", Message: "no!", Interrupt: true}}, ""},
		{"esc once", nil, 0, []string{"<esc>"}, nil, "esc once more stops the agents of the run"},
		{"esc twice", nil, 0, []string{"<esc>", "<esc>"}, []wire.Command{{Type: "pause", Reason: "stopped in wake attach"}}, ""},
		{"it goes on", func(m *attachment) { m.state.Status, m.state.Reason = wire.RunPaused, "operator" }, 0, []string{"now", "<enter>"}, []wire.Command{{Type: "resume", Message: "now"}}, "paused (operator)"},
		{"a session that is watched", func(m *attachment) {
			m.state.Status, m.state.Reason, m.state.Imported = wire.RunPaused, wire.PauseIdle, "watch"
		}, 0, []string{"now", "<enter>"}, nil, "wake adopt r1 goes on with the session"},
		{"a call is allowed", waits, settled, []string{"<ctrl-y>"}, []wire.Command{{Type: "approve", NodeID: "coder", CallID: "c1"}}, "coder wants to use Bash"},
		{"or refused, with a reason", waits, settled, []string{"not today", "<ctrl-n>"}, []wire.Command{{Type: "deny", NodeID: "coder", CallID: "c1", Note: "not today"}}, "ctrl-n refuses"},
		{"not before it was seen", waits, 0, []string{"<ctrl-y>"}, nil, "this has just come"},
		{"a window that shows no call", func(m *attachment) { waits(m); m.columns, m.rows = 60, 5 }, settled, []string{"<ctrl-y>"}, nil, "the window is too small"},
		{"nothing waits", nil, settled, []string{"<ctrl-y>"}, nil, "nothing waits for a decision"},
		{"a message while a call waits", waits, settled, []string{"yes", "<enter>"}, []wire.Command{{Type: "send", Message: "yes"}}, ""},
		{"a question is answered", question, settled, []string{"tabs", "<enter>"}, []wire.Command{{Type: "reply", NodeID: "coder", PromptID: "q1", Content: wire.RawString("tabs")}}, "coder asks"},
		{"and can't be allowed", question, settled, []string{"<ctrl-y>"}, nil, "type the answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, orders := attachedTo(t, 100, 20)
				if tt.given != nil {
					tt.given(m)
				}
				<-time.After(tt.after)
				typed(t, m, tt.keys...)
				for i := range tt.want {
					tt.want[i].RunID = "r1"
				}
				if diff := cmp.Diff(tt.want, *orders); diff != "" {
					t.Errorf("orders (-want +got):\n%s", diff)
				}
				if got := shownBy(m); !strings.Contains(got, tt.shows) {
					t.Errorf("%q isn't on the screen:\n%s", tt.shows, got)
				}
			})
		})
	}
}

// Leaving takes the same key twice, and no order is given by it.
func TestAttachmentIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, orders := attachedTo(t, 60, 20)
		typed(t, m, "<ctrl-c>")
		if got := shownBy(m); m.left || !strings.Contains(got, "ctrl-c once more leaves: the run goes on") {
			t.Errorf("left: %t, screen:\n%s", m.left, got)
		}
		<-time.After(2 * confirmWithin)
		typed(t, m, "<ctrl-c>")
		if m.left {
			t.Error("two keys far apart leave")
		}
		_, cmd := m.Update(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl})
		if cmd == nil || cmd() != tea.Quit() || len(*orders) > 0 {
			t.Errorf("left: %t, orders %v", m.left, *orders)
		}
		other, _ := attachedTo(t, 60, 20)
		typed(t, other, "x", "<ctrl-d>")
		if other.left {
			t.Error("ctrl-d leaves although something was typed")
		}
		other.Update(overMsg{last: on(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete})})
		if got := shownBy(other); other.left || !strings.Contains(got, "run r1 has ended") {
			t.Errorf("what it came to can't be read:\n%s", got)
		}
		typed(t, other, "q")
		if !other.left {
			t.Error("it stays")
		}
	})
}

// A reader that has scrolled back goes on seeing the same lines while others come.
func TestAttachmentScrolls(t *testing.T) {
	m, _ := attachedTo(t, 60, 10)
	for i := range 50 {
		hear(m, on("coder", &wire.AgentText{Content: fmt.Sprintf("line %d", i), Block: i + 1}))
	}
	typed(t, m, "<pgup>")
	before := shownBy(m)
	hear(m, on("coder", &wire.AgentText{Content: "the last line", Block: 99}))
	top := func(s string) string { first, _, _ := strings.Cut(s, "\n"); return first }
	if after := shownBy(m); top(before) != top(after) || !strings.Contains(after, "7 more lines below") || strings.Contains(after, "the last") {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	typed(t, m, "<pgdown>", "<pgdown>")
	if got := shownBy(m); !strings.Contains(got, "the last line") {
		t.Errorf("not at the end:\n%s", got)
	}
}

// A run that was aborted has nothing at work, and its time stands still. Long names of tools are shown where there is room.
func TestAttachmentOfEnded(t *testing.T) {
	m, _ := attachedTo(t, 60, 10)
	m.state.StartedAt = time.Now().UnixMilli() - 1000
	m.state.Tools = map[string]wire.ToolCall{"coder#1/c1": {CallID: "c1", Node: "coder", Tool: "command_execution", Input: wire.RawOf(map[string]any{"command": "make"}), State: wire.ToolExecuting, Since: m.now.UnixMilli()}}
	if text := shownBy(m); !strings.Contains(text, "⏳ command_execution 0s  make") {
		t.Errorf("at work:\n%s", text)
	}
	m.state.Status, m.state.EndedAt = wire.RunAborted, m.state.StartedAt+3000
	m.now = m.now.Add(time.Hour)
	if text := shownBy(m); strings.Contains(text, "⏳") || !strings.Contains(text, "aborted · 3s") {
		t.Errorf("after its end:\n%s", text)
	}
}

// Those who come back see what calls have changed before, too.
func TestAttachmentShowsEarlierDiffs(t *testing.T) {
	nc := natstest.Start(t)
	logtest.Init(t, nc, topology.Config{Names: subjects.Default})
	log := logtest.Open(t, nc)
	w := logtest.Claim(t, log, "r1", "coder")
	input := wire.RawOf(map[string]any{"file_path": "a.go", "old_string": "one\ntwo", "new_string": "one\n2"})
	edit := &wire.Event{ExecID: "coder#1", CallID: "e1", Payload: &wire.AgentTool{ToolName: "Edit", ToolInput: input, ToolOutput: wire.Null}}
	pos := logtest.Append(t, w, edit)
	logtest.Serve(t, log)
	reader, err := feed.Open(t.Context(), nc, feed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &attached{verbSession: &verbSession{app: &app{names: subjects.Default, log: slog.New(slog.DiscardHandler)}, conn: nc}}
	page := wire.LogResponse{Position: pos, Lines: []wire.LogLine{
		{Type: wire.LineText, Text: "I mend it.", Node: "coder", Pos: pos - 1}, {Type: wire.LineTool, Text: "✅ Edit", Node: "coder", Pos: pos},
	}}
	m, _ := attachedTo(t, 60, 40)
	m.Update(pageMsg(page))
	m.takeEvent(eventlog.Entry{Pos: pos + 1, Event: &wire.Event{RunID: "r1", NodeID: "coder", ExecID: "coder#1", Seq: 9, Payload: &wire.AgentText{Content: "Mended."}}})
	m.Update(diffsMsg(s.readDiffs(t.Context(), reader, "r1", page))) // which the page doesn't wait for
	const want = "● coder 00:00:00\n  I mend it.\n  ✅ Edit\n     one\n    -two\n    +2\n  Mended.\n"
	if got := shownBy(m); !strings.HasPrefix(got, want) {
		t.Errorf("it shows\n%s\nwant\n%s", got, want)
	}
}
