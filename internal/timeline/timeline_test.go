package timeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// page is what a reader that follows the steps has: the lines, in order.
type page struct {
	order []uint64
	lines map[uint64]string
}

func (p *page) do(s timeline.Step) {
	switch s.Op {
	case timeline.None:
	case timeline.Add:
		p.order = append(p.order, s.Pos)
		p.lines[s.Pos] = string(s.Type) + ": " + s.Text
	case timeline.Extend:
		p.lines[s.Pos] += s.Text
	case timeline.Replace:
		p.lines[s.Pos] = string(s.Type) + ": " + s.Text
	}
}

func (p *page) text() []string {
	var lines []string
	for _, pos := range p.order {
		lines = append(lines, p.lines[pos])
	}
	return lines
}

// read takes events through one timeline, which is stored and read back before
// each of them.
func read(t interface{ Fatal(...any) }, events ...*wire.Event) []string {
	p := page{lines: map[uint64]string{}}
	var tl timeline.Timeline
	for i, e := range events {
		stored, err := wire.Marshal(tl)
		if err != nil {
			t.Fatal(err)
		}
		tl = timeline.Timeline{}
		if err := wire.Unmarshal(stored, &tl); err != nil {
			t.Fatal(err)
		}
		p.do(tl.Step(uint64(i+1), e))
	}
	return p.text()
}

func agentEvents(payloads ...wire.Payload) []*wire.Event {
	var list []*wire.Event
	for i, p := range payloads {
		e := event(p)
		e.Seq = uint64(i + 1)
		list = append(list, e)
	}
	return list
}

func TestPiecesBecomeOneLine(t *testing.T) {
	long := strings.Repeat("x", 290)
	for name, tt := range map[string]struct {
		events []wire.Payload
		want   []string
	}{
		"of an agent that begins anew": {
			[]wire.Payload{
				&wire.AgentTextDelta{Content: "and go", Block: 1}, &wire.AgentResumed{Strategy: "crash"}, &wire.AgentStart{Resumed: true, Prompt: wire.RawString("go on")},
				&wire.AgentTextDelta{Content: "I look", Block: 1}, &wire.AgentText{Content: "I look at it", Block: 1},
			},
			[]string{"text: and go", "system: Agent resumed (crash)", "user: [prompt] go on", "text: I look at it"},
		},
		"numbered": {
			[]wire.Payload{
				&wire.AgentTextDelta{Content: "Hel", Block: 1}, &wire.Usage{MessageID: "m"},
				&wire.AgentTextDelta{Content: "lo", Block: 1}, &wire.AgentTextDelta{Content: "Bye", Block: 2},
			},
			[]string{"text: Hello", "text: Bye"},
		},
		"not numbered": {
			[]wire.Payload{
				&wire.AgentTextDelta{Content: "Hel"}, &wire.Usage{MessageID: "m"}, &wire.AgentTextDelta{Content: "lo"},
				&wire.ToolIntent{ToolName: "Bash"}, &wire.AgentTextDelta{Content: "Bye"},
			},
			[]string{"text: Hello", "text: Bye"},
		},
		"blocks as well, in full": {
			[]wire.Payload{
				&wire.AgentTextDelta{Content: "Hel", Block: 1}, &wire.AgentText{Content: "Hello", Block: 1},
				&wire.AgentTextDelta{Content: "Bye"}, &wire.AgentText{Content: "Bye"}, &wire.AgentText{Content: "Bye"},
			},
			[]string{"text: Hello", "text: Bye", "text: Bye"},
		},
		"given up and sent again": {
			[]wire.Payload{
				&wire.AgentTextDelta{Content: "Hel", Block: 1}, &wire.AgentText{Content: "Good day", Block: 2, Supersedes: 1},
				&wire.AgentText{Content: "x", Block: 9, Supersedes: 7},
			},
			[]string{"text: Good day", "text: x"},
		},
		"thinking is cut": {
			[]wire.Payload{
				&wire.AgentThinkingDelta{Content: long, Block: 1}, &wire.AgentThinkingDelta{Content: "äöüäöüäöü", Block: 1},
				&wire.AgentThinkingDelta{Content: "yz", Block: 1}, &wire.AgentThinkingDelta{Content: "never seen", Block: 1},
				&wire.AgentTextDelta{Content: "So", Block: 2},
			},
			[]string{"thinking: " + long + "äöüäöüäöü…", "text: So"},
		},
		"a command's output": {
			[]wire.Payload{
				&wire.ExecStart{Command: "make"}, &wire.ExecOutput{Stream: "stdout", Content: "a\n"},
				&wire.ExecOutput{Stream: "stdout", Content: "b\n"}, &wire.ExecOutput{Stream: "stderr", Content: "oops\n"},
				&wire.ExecOutput{Stream: "stdout", Content: strings.Repeat("c", 10_000)},
				&wire.ExecOutput{Stream: "stdout", Content: strings.Repeat("d", 10_000)},
				&wire.ExecExit{ExitCode: 2, DurationMs: 1500},
			},
			[]string{
				"system: $ make", "text: a\nb\n", "text: oops\n", "text: " + strings.Repeat("c", 10_000),
				"text: " + strings.Repeat("d", 10_000), "tool: ❌ exec (1.5s)\nmake\nexit code 2",
			},
		},
		"empty pieces": {
			[]wire.Payload{&wire.AgentTextDelta{Block: 1}, &wire.AgentTextDelta{Content: "a", Block: 1}, &wire.AgentThinking{}},
			[]string{"text: a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, read(t, agentEvents(tt.events...)...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSubagentsAndTakeoversKeepTheirOwnBlocks(t *testing.T) {
	main, sub, later := event(&wire.AgentTextDelta{Content: "main"}), event(&wire.AgentTextDelta{Content: "sub"}), event(&wire.AgentTextDelta{Content: "!", Block: 1})
	sub.Parent = "toolu_1"
	first := event(&wire.AgentTextDelta{Content: "?", Block: 1})
	later.Epoch = 2
	want := []string{"text: mainmain", "text: sub", "text: ?", "text: !"}
	if diff := cmp.Diff(want, read(t, main, sub, main, first, later)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAWholeBlockAndItsPiecesReadTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.SliceOfN(rapid.StringN(1, 400, -1), 1, 6).Draw(t, "blocks")
		thinking := rapid.SliceOfN(rapid.Bool(), len(blocks), len(blocks)).Draw(t, "thinking")
		var whole, pieces []wire.Payload
		for i, b := range blocks {
			b = strings.ToValidUTF8(b, "?")
			if thinking[i] {
				whole = append(whole, &wire.AgentThinking{Content: b, Block: i + 1})
			} else {
				whole = append(whole, &wire.AgentText{Content: b, Block: i + 1})
			}
			for _, piece := range split(t, b) {
				if thinking[i] {
					pieces = append(pieces, &wire.AgentThinkingDelta{Content: piece, Block: i + 1})
				} else {
					pieces = append(pieces, &wire.AgentTextDelta{Content: piece, Block: i + 1})
				}
			}
		}
		if diff := cmp.Diff(read(t, agentEvents(whole...)...), read(t, agentEvents(pieces...)...)); diff != "" {
			t.Fatalf("(-whole +pieces):\n%s", diff)
		}
	})
}

// split cuts s at character boundaries.
func split(t *rapid.T, s string) []string {
	var pieces []string
	for runes := []rune(s); len(runes) > 0; {
		n := rapid.IntRange(1, len(runes)).Draw(t, "piece")
		pieces = append(pieces, string(runes[:n]))
		runes = runes[n:]
	}
	return pieces
}

func TestATimelineStaysSmall(t *testing.T) {
	var tl timeline.Timeline
	for i := range 100 {
		tl.Step(uint64(i+1), event(&wire.AgentThinkingDelta{Content: strings.Repeat("x", 10_000), Block: i + 1}))
	}
	b, err := wire.Marshal(tl)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 8<<10 {
		t.Errorf("%d bytes", len(b))
	}
	var numbers []int
	for _, b := range tl.Blocks {
		numbers = append(numbers, b.Number)
	}
	if want := []int{93, 94, 95, 96, 97, 98, 99, 100}; !slices.Equal(numbers, want) {
		t.Error(fmt.Sprint("open blocks ", numbers, ", want ", want))
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{
		-1: "-1", 0: "0", 999: "999", 1000: "1.0k", 9_949: "9.9k", 9_950: "10k", 453_893: "454k", 999_499: "999k", 999_500: "1.0M", 12_453_443: "12.5M", 999_950_000: "1.0G",
	} {
		if got := timeline.Count(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
