package console

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// entry is an event of the log with all that it carries.
type entry struct {
	Run     string
	Pos     uint64
	Event   *wire.Event
	Type    wire.Type
	Text    string // what it says
	Tool    string
	Input   wire.Raw
	Output  wire.Raw
	Error   string
	Denied  bool
	TookMs  *int64
	Diff    []diffLine // of an edit
	Command string     // of a shell
	Whole   string     // as JSON
}

// showEntry writes the details of what is at a position.
func (s *Console) showEntry(w http.ResponseWriter, r *http.Request) {
	l, run, err := s.findRun(r)
	var pos uint64
	if err == nil {
		pos, err = positionOf(r.FormValue("pos"))
	}
	var e entry
	if err == nil {
		e, err = readEntry(r.Context(), l, run, pos)
	}
	s.showPart(w, r, "entry", e, err)
}

func readEntry(ctx context.Context, l *link, run string, pos uint64) (entry, error) {
	for e, err := range history.Read(ctx, l.reader, eventlog.Query{Run: run, From: pos, To: pos}) {
		switch {
		case err != nil:
			return entry{}, err
		case e.Event == nil:
			return entry{}, &wire.APIError{Code: wire.CodeCorruptedData, Message: "what is there can't be read"}
		}
		whole, err := l.reader.Inline(ctx, e.Event)
		if err != nil {
			return entry{}, err
		}
		x := describe(run, pos, whole)
		if x.Text == "" || e.Event.Type() == wire.TypeAgentTextDelta || e.Event.Type() == wire.TypeAgentThinkingDelta {
			err = x.readPieces(ctx, l, e.Event)
		}
		return x, err
	}
	return entry{}, &wire.APIError{Code: wire.CodeNotFound, Message: "the run has nothing there"}
}

// describe is what an event tells.
func describe(run string, pos uint64, e *wire.Event) entry {
	x := entry{Run: run, Pos: pos, Event: e, Type: e.Type()}
	if b, err := wire.EncodeJSON(e); err == nil {
		if raw, err := wire.RawFromJSON(b); err == nil {
			x.Whole = prettyValue(raw)
		}
	}
	switch p := e.Payload.(type) {
	case *wire.AgentTool:
		x.Tool, x.Input, x.Output, x.Error, x.Denied, x.TookMs = p.ToolName, p.ToolInput, p.ToolOutput, p.Error, p.Denied, p.DurationMs
	case *wire.ToolIntent:
		x.Tool, x.Input = p.ToolName, p.ToolInput
	case *wire.PermissionRequired:
		x.Tool, x.Input, x.Text = p.ToolName, p.ToolInput, p.Description
	case *wire.AgentThinking:
		x.Text = p.Content
	case *wire.AgentText:
		x.Text = p.Content
	case *wire.NodeComplete:
		x.Output = p.Output
	default:
		_, x.Text, _ = timeline.Of(e)
	}
	x.Command, _ = x.Input.Get("command").Text()
	x.Diff = diffOfEdit(x.Input)
	return x
}

// maxPieces bounds the pieces of a text that are joined.
const maxPieces = 5000

// readPieces joins the pieces of a text; first is the first one.
func (x *entry) readPieces(ctx context.Context, l *link, first *wire.Event) error {
	var b strings.Builder
	kind, n := first.Type(), 0
	if kind != wire.TypeAgentTextDelta && kind != wire.TypeAgentThinkingDelta && kind != wire.TypeExecOutput {
		return nil
	}
	for e, err := range history.Read(ctx, l.reader, eventlog.Query{Run: x.Run, Node: first.NodeID, From: x.Pos, To: x.Pos + 4*maxPieces}) {
		if err != nil {
			return err
		}
		if n++; n > maxPieces {
			break
		}
		if e.Event == nil || e.Event.ExecID != first.ExecID || e.Event.Parent != first.Parent {
			continue
		}
		if e.Event.Type() != kind {
			if e.Event.Type() == wire.TypeUsage {
				continue
			}
			break
		}
		switch p := e.Event.Payload.(type) {
		case *wire.AgentTextDelta:
			b.WriteString(p.Content)
		case *wire.AgentThinkingDelta:
			b.WriteString(p.Content)
		case *wire.ExecOutput:
			b.WriteString(p.Content)
		}
	}
	x.Text = b.String()
	return nil
}

// diffLine is a line of what an edit has changed.
type diffLine struct {
	Op   string // add, del, same or at: where it is
	Text string
}

// maxDiff bounds the lines that are shown.
const maxDiff = 2000

// diffOfEdit is what the input of an edit changes, line by line.
func diffOfEdit(input wire.Raw) []diffLine {
	before, is := input.Get("old_string").Text()
	after, has := input.Get("new_string").Text()
	if !is || !has {
		return nil
	}
	return diffLines(before, after)
}

// diffLines is in what two texts differ, with the lines around; nil if they don't, or are too large.
func diffLines(before, after string) (all []diffLine) {
	if len(before) > maxShown || len(after) > maxShown {
		return nil
	}
	head := 3 // lines: what is compared, and both names
	for line := range strings.Lines(string(diff.Diff("a", []byte(before), "b", []byte(after)))) {
		if head--; head >= 0 {
			continue
		}
		if len(all) == maxDiff {
			return append(all, diffLine{"same", "…"})
		}
		op := map[byte]string{'+': "add", '-': "del", '@': "at"}[line[0]]
		text := strings.TrimSuffix(line, "\n")
		if op != "at" {
			text = text[1:]
		}
		all = append(all, diffLine{cmp.Or(op, "same"), text})
	}
	return all
}
