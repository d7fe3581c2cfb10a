// Package timeline turns events into what people read: the lines of a log
// (seeds/004 §2), one-line summaries, and the name of an agent's activity. It is
// pure: no clock, no I/O.
//
// What agents write is hostile. Summaries are safe for a terminal; lines keep
// their text as it came, and the code that shows one passes it through [Sanitize].
package timeline

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/pkg/wire"
)

// Timeline turns the events of one node, in log order, into lines: streamed
// pieces become one line per block. The zero value is ready. Its encoded form
// is all there is to it: a timeline that is stored and read back goes on as if
// nothing had happened.
type Timeline struct {
	Blocks  []Block `json:"blocks,omitempty"` // that may still change, the latest last
	Exec    string  `json:"exec,omitempty"`   // execution with a known command
	Command string  `json:"command,omitempty"`
}

// Block is a line that may still change.
type Block struct {
	Pos    uint64        `json:"pos"` // the line: position of its first event
	Type   wire.LineType `json:"type"`
	Exec   string        `json:"exec,omitempty"`
	Epoch  uint64        `json:"epoch,omitempty"` // numbers may begin again after a takeover
	Parent string        `json:"parent,omitempty"`
	Number int           `json:"n,omitempty"`      // 0: not numbered, ended by whatever comes next
	Stream string        `json:"stream,omitempty"` // of a command's output
	Text   string        `json:"text,omitempty"`   // of a thinking line, which has to be cut
	Size   int           `json:"size,omitempty"`   // bytes so far
}

// Bounds of a timeline.
const (
	maxBlocks = 8        // lines that may change at the same time
	maxOutput = 16 << 10 // bytes of one line of a command's output
)

// Op is what a step does to the lines.
type Op uint8

// The operations.
const (
	None    Op = iota
	Add        // a new line
	Extend     // Text is appended to the line
	Replace    // Text takes the place of the line's text
)

// Step is what an event does to the lines of its node.
type Step struct {
	Op   Op
	Pos  uint64 // names the line; of a new line the position of the event
	Type wire.LineType
	Text string
}

// Step takes the node's next event, which is at pos.
func (t *Timeline) Step(pos uint64, e *wire.Event) Step {
	switch p := e.Payload.(type) {
	case *wire.AgentTextDelta:
		return t.addPiece(pos, e, Block{Type: wire.LineText, Number: p.Block}, p.Content)
	case *wire.AgentThinkingDelta:
		return t.addPiece(pos, e, Block{Type: wire.LineThinking, Number: p.Block}, p.Content)
	case *wire.ExecOutput:
		text := p.Content
		if p.Omitted > 0 {
			text = fmt.Sprintf("\n[%d bytes of output are left out here]\n%s", p.Omitted, text)
		}
		return t.addPiece(pos, e, Block{Type: wire.LineText, Stream: p.Stream}, text)
	case *wire.AgentText:
		return t.addWhole(pos, e, wire.LineText, p.Content, p.Block, p.Supersedes)
	case *wire.AgentThinking:
		return t.addWhole(pos, e, wire.LineThinking, cutText(p.Content, MaxThinking), p.Block, p.Supersedes)
	case *wire.ExecStart:
		t.Exec, t.Command = e.ExecID, cutText(p.Command, MaxSummary)
	case *wire.AgentStart, *wire.AgentResumed:
		t.endBlocks(e)
	case *wire.ExecExit:
		t.endLoose(e, Block{})
		return addLine(pos, wire.LineTool, exitLine(p, t.commandOf(e)))
	}
	if endsBlock(e.Type()) {
		t.endLoose(e, Block{})
	}
	kind, text, _ := Of(e)
	return addLine(pos, kind, text)
}

func addLine(pos uint64, kind wire.LineType, text string) Step {
	if text == "" {
		return Step{}
	}
	return Step{Op: Add, Pos: pos, Type: kind, Text: text}
}

func (t *Timeline) commandOf(e *wire.Event) string {
	if t.Exec != e.ExecID {
		return ""
	}
	return t.Command
}

// addPiece takes a streamed piece of the block that b names.
func (t *Timeline) addPiece(pos uint64, e *wire.Event, b Block, content string) Step {
	b.Exec, b.Epoch, b.Parent = e.ExecID, e.Epoch, e.Parent
	t.endLoose(e, b)
	if content == "" {
		return Step{}
	}
	i := t.findBlock(b)
	if i < 0 || b.Stream != "" && t.Blocks[i].Size+len(content) > maxOutput {
		b.Pos = pos
		return t.beginBlock(b, content)
	}
	open := t.touchBlock(i)
	open.Size += len(content)
	if open.Type != wire.LineThinking {
		return Step{Op: Extend, Pos: open.Pos, Type: open.Type, Text: content}
	}
	return open.extendThinking(content)
}

// beginBlock adds the line of a block.
func (t *Timeline) beginBlock(b Block, content string) Step {
	if i := t.findBlock(b); i >= 0 {
		t.Blocks = slices.Delete(t.Blocks, i, i+1) // full
	}
	b.Size = len(content)
	text := content
	if b.Type == wire.LineThinking {
		text = cutText(content, MaxThinking)
		b.Text = thinkingHead(content)
	}
	if len(t.Blocks) == maxBlocks {
		t.Blocks = slices.Delete(t.Blocks, 0, 1)
	}
	t.Blocks = append(t.Blocks, b)
	return Step{Op: Add, Pos: b.Pos, Type: b.Type, Text: text}
}

// extendThinking lengthens a thinking line as far as it goes.
func (b *Block) extendThinking(content string) Step {
	if utf8.RuneCountInString(b.Text) > MaxThinking {
		return Step{}
	}
	b.Text = thinkingHead(b.Text + content)
	return Step{Op: Replace, Pos: b.Pos, Type: b.Type, Text: cutText(b.Text, MaxThinking)}
}

// thinkingHead returns one character more than a thinking line has: enough to know that
// it was cut.
func thinkingHead(s string) string {
	n := 0
	for i := range s {
		if n > MaxThinking {
			return s[:i]
		}
		n++
	}
	return s
}

// addWhole takes a whole block: a line of its own, or the final form of one that
// has been streamed in pieces.
func (t *Timeline) addWhole(pos uint64, e *wire.Event, kind wire.LineType, text string, number, supersedes int) Step {
	b := Block{Type: kind, Exec: e.ExecID, Epoch: e.Epoch, Parent: e.Parent, Number: number, Size: len(text)}
	i := t.findStreamed(b, supersedes)
	if i < 0 {
		t.endLoose(e, Block{})
		return addLine(pos, kind, text)
	}
	line := t.Blocks[i].Pos
	t.Blocks = slices.Delete(t.Blocks, i, i+1)
	t.endLoose(e, Block{})
	return Step{Op: Replace, Pos: line, Type: kind, Text: text}
}

// findStreamed returns the index of the open block that b completes or supersedes,
// or -1. Nothing but its size tells whether an unnumbered one is the same.
func (t *Timeline) findStreamed(b Block, supersedes int) int {
	if supersedes > 0 {
		given := b
		given.Number = supersedes
		if i := t.findBlock(given); i >= 0 {
			return i
		}
	}
	i := t.findBlock(b)
	if i >= 0 && b.Number == 0 && t.Blocks[i].Size != b.Size {
		return -1
	}
	return i
}

// findBlock returns the index of the open block that b names, or -1.
func (t *Timeline) findBlock(b Block) int {
	return slices.IndexFunc(t.Blocks, func(o Block) bool {
		return o.Type == b.Type && o.Exec == b.Exec && o.Epoch == b.Epoch && o.Parent == b.Parent &&
			o.Number == b.Number && o.Stream == b.Stream
	})
}

// touchBlock moves a block to the end: the least recently used one is given up first.
func (t *Timeline) touchBlock(i int) *Block {
	last := len(t.Blocks) - 1
	b := t.Blocks[i]
	copy(t.Blocks[i:], t.Blocks[i+1:])
	t.Blocks[last] = b
	return &t.Blocks[last]
}

// endBlocks ends the blocks of the event's agent, which begins: its blocks are numbered anew. Those of a node's own agent are all.
func (t *Timeline) endBlocks(e *wire.Event) {
	t.Blocks = slices.DeleteFunc(t.Blocks, func(b Block) bool {
		return b.Exec == e.ExecID && (e.Parent == "" || b.Parent == e.Parent)
	})
}

// endLoose ends the unnumbered blocks of the event's agent, except for the one
// that keep names.
func (t *Timeline) endLoose(e *wire.Event, keep Block) {
	t.Blocks = slices.DeleteFunc(t.Blocks, func(b Block) bool {
		same := b.Type == keep.Type && b.Number == keep.Number && b.Stream == keep.Stream
		return b.Number == 0 && b.Exec == e.ExecID && b.Parent == e.Parent && !same
	})
}

// endsBlock reports whether an event of type t ends an unnumbered block. Counts and
// notes in the middle of a text don't.
func endsBlock(t wire.Type) bool {
	switch t {
	case wire.TypeTurnStart, wire.TypeTurnEnd, wire.TypeUserMessage, wire.TypeAgentStart,
		wire.TypeAgentComplete, wire.TypeAgentAborted, wire.TypeAgentPaused, wire.TypeAgentResumed:
		return true
	default:
		return t.Kind() == wire.KindTool || strings.HasPrefix(string(t), "node:")
	}
}
