package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// shown returns what is on the screen after the events, which happen a second
// apart from 12:00:00 on.
func shown(t *testing.T, events ...*wire.Event) string {
	t.Helper()
	var out bytes.Buffer
	s := (&app{out: &out}).newScreen()
	s.zone = time.UTC
	for i, e := range events {
		e.RunID, e.Timestamp = "r1", time.Date(2026, 1, 2, 12, 0, i, 0, time.UTC).UnixMilli()
		if err := s.showEvent(uint64(i+1), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func on(node string, p wire.Payload) *wire.Event {
	return &wire.Event{NodeID: node, Epoch: 1, ExecID: node + "#1", Payload: p}
}

func TestScreen(t *testing.T) {
	text := func(s string) wire.Payload { return &wire.AgentTextDelta{Content: s, Block: 1} }
	think := func(s string) wire.Payload { return &wire.AgentThinkingDelta{Content: s, Block: 2} }
	tests := []struct {
		name   string
		events []*wire.Event
		want   string
	}{
		{"lines of a log", []*wire.Event{
			on(wire.RunNode, &wire.FlowStart{FlowName: "review"}),
			on("coder", &wire.NodeStart{NodeType: "agent"}),
			on("coder", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("ls")}),
		}, `
12:00:00 _run         Run started: review
12:00:01 coder        coder started (agent)
12:00:02 coder        ✅ Bash
                      ls
`},
		{"what streams is shown by the line", []*wire.Event{
			on("coder", text("One li")), on("coder", text("ne.\nAnd an")), on("coder", text("other.\n\nLast")),
			on("coder", &wire.NodeComplete{}),
		}, `
12:00:00 coder          One line.
                        And another.

                        Last
12:00:03 coder        coder done
`},
		{"nodes at the same time", []*wire.Event{
			on("coder", text("One ")), on("judge", text("Uno ")), on("coder", text("two\n")), on("judge", text("due\n")),
		}, `
12:00:00 coder          One two
12:00:01 judge          Uno due
`},
		{"thinking is shown when it is over", []*wire.Event{
			on("coder", think("let me\nsee")), on("coder", think(" it")), on("coder", text("Aha.")),
		}, `
12:00:00 coder        · let me
                      · see it
12:00:02 coder          Aha.
`},
		{"a block that was streamed is not shown again", []*wire.Event{
			on("coder", text("All ")), on("coder", text("good.\nFine.")),
			on("coder", &wire.AgentText{Content: "All good.\nFine.", Block: 1}),
		}, `
12:00:00 coder          All good.
                        Fine.
`},
		{"a fenced writer is not heard", []*wire.Event{
			{NodeID: "coder", Epoch: 1, Payload: &wire.AgentText{Content: "old"}},
			{NodeID: "coder", Epoch: 2, Payload: &wire.NodeClaimed{Runner: "b"}},
			{NodeID: "coder", Epoch: 1, Payload: &wire.AgentText{Content: "zombie"}},
			{NodeID: "coder", Epoch: 2, Payload: &wire.AgentText{Content: "new"}},
		}, `
12:00:00 coder          old
12:00:03 coder          new
`},
		{"escapes are removed, also those that come in pieces", []*wire.Event{
			on("co\x1b[2Jder", text("a\x1b[")), on("co\x1b[2Jder", text("31mb\x1b]0;title\x07c\n")),
			on("coder", &wire.AgentText{Content: "x\rWARNING\u202eabc"}),
		}, "\n12:00:00 coder          abc\n12:00:02 coder          x\n                        WARNING\ufffdabc\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), shown(t, tt.events...)); d != "" {
				t.Error(d)
			}
		})
	}
}

// What never comes to the end of a line is shown all the same, once.
// While no event comes, what is said is shown after a second, and a call that takes long with its time.
func TestScreenShowsWhatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := (&app{out: &out}).newScreen()
		s.zone = time.UTC
		stop := s.startClock()
		at := func(pos uint64, e *wire.Event, after time.Duration) {
			e.RunID, e.Timestamp = "r1", time.Now().UnixMilli()
			if err := s.showEvent(pos, e); err != nil {
				t.Fatal(err)
			}
			<-time.After(after)
		}
		call := on("coder", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": "make"})})
		result := on("coder", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": "make"})})
		call.CallID, result.CallID = "c1", "c1"
		at(1, on("coder", &wire.AgentTextDelta{Content: "I build", Block: 1}), 2500*time.Millisecond)
		at(2, on("coder", &wire.AgentTextDelta{Content: " it.", Block: 1}), 0)
		at(3, call, 21*time.Second)
		at(4, result, time.Minute)
		asking, asked, allowed := *call, on("coder", &wire.PermissionRequired{ToolName: "Bash"}), on("coder", &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "cli"})
		asking.CallID, asked.CallID, allowed.CallID = "c2", "c2", "c2"
		at(5, &asking, time.Second)
		at(6, asked, time.Hour) // it doesn't run
		at(7, allowed, 3*time.Second)
		stop()
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		want := strings.TrimPrefix(`
00:00:00 coder          I build
                         it.
00:00:05 coder        ⏳ Bash (2s so far)
                      make
00:00:13 coder        ⏳ Bash (10s so far)
00:00:23 coder        ✅ Bash
                      make
00:01:24 coder        Permission needed: Bash
01:01:24 coder        Permission given by cli
01:01:27 coder        ⏳ Bash (2s so far)
                      make
`, "\n")
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestScreenHoldsLittle(t *testing.T) {
	piece := strings.Repeat("é", 1000)
	var events []*wire.Event
	for range 50 {
		events = append(events, on("coder", &wire.AgentTextDelta{Content: piece, Block: 1}))
	}
	got := strings.Count(shown(t, events...), "é")
	if want := 50 * 1000; got != want {
		t.Errorf("%d characters are shown, want %d", got, want)
	}
}

type fullDisk struct{ writes int }

func (d *fullDisk) Write([]byte) (int, error) {
	d.writes++
	return 0, errFull
}

var errFull = errors.New("no space left")

func TestScreenTellsThatItCannotWrite(t *testing.T) {
	d := &fullDisk{}
	s := (&app{out: d}).newScreen()
	for i := range 3 {
		if err := s.showEvent(uint64(i+1), on("coder", &wire.AgentText{Content: "text"})); !errors.Is(err, errFull) {
			t.Errorf("show: %v, want %v", err, errFull)
		}
	}
	if d.writes != 1 {
		t.Errorf("%d writes, want 1", d.writes)
	}
}
