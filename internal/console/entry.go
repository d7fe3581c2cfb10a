package console

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
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
	Input   any
	Output  any
	Shown   []template.URL // pictures of the output
	Error   string
	Denied  bool
	TookMs  *int64
	Diff    []diffLine // of an edit
	Command string     // of a shell
	Whole   string     // as JSON
}

// readEntry returns the details of what is at a position.
func readEntry(r *http.Request, l *link, run string) (any, error) {
	pos, e, err := eventAt(r.Context(), l, run, r.FormValue("pos"))
	if err != nil {
		return nil, err
	}
	x := describeEntry(run, pos, e)
	if x.Text == "" || e.Type() == wire.TypeAgentTextDelta || e.Type() == wire.TypeAgentThinkingDelta {
		err = x.readPieces(r.Context(), l, e)
	}
	return x, err
}

// eventAt returns the event of a run at a position, with its large fields.
func eventAt(ctx context.Context, l *link, run, at string) (pos uint64, found *wire.Event, err error) {
	if pos, err = positionOf(at); err != nil {
		return 0, nil, err
	}
	if pos == 0 {
		return 0, nil, &wire.APIError{Code: wire.CodeBadRequest, Message: "pos is required: a position of the log"}
	}
	for e, err := range history.Read(ctx, l.reader, eventlog.Query{Run: run, From: pos, To: pos}) {
		switch {
		case err != nil:
			return pos, nil, err
		case e.Event == nil:
			return pos, nil, &wire.APIError{Code: wire.CodeCorruptedData, Message: "what is there can't be read"}
		}
		found, err = l.reader.Inline(ctx, e.Event)
		return pos, found, err
	}
	return pos, nil, &wire.APIError{Code: wire.CodeNotFound, Message: "the run has nothing there"}
}

// readEvent returns the event at a position, with all that a call was given and has answered.
func readEvent(r *http.Request, l *link, run string) (any, error) {
	_, e, err := eventAt(r.Context(), l, run, r.FormValue("pos"))
	if err != nil {
		return nil, err
	}
	data, err := wire.Encode(e)
	return wire.Raw(data), err
}

func describeEntry(run string, pos uint64, e *wire.Event) entry {
	x := entry{Run: run, Pos: pos, Event: e, Type: e.Type()}
	var input, output wire.Raw
	if b, err := wire.EncodeJSON(e); err == nil {
		if raw, err := wire.RawFromJSON(b); err == nil {
			x.Whole = prettyValue(raw)
		}
	}
	switch p := e.Payload.(type) {
	case *wire.AgentTool:
		x.Tool, input, output, x.Error, x.Denied, x.TookMs = p.ToolName, p.ToolInput, p.ToolOutput, p.Error, p.Denied, p.DurationMs
	case *wire.ToolIntent:
		x.Tool, input = p.ToolName, p.ToolInput
	case *wire.PermissionRequired:
		x.Tool, input, x.Text = p.ToolName, p.ToolInput, p.Description
	case *wire.AgentThinking:
		x.Text = p.Content
	case *wire.AgentText:
		x.Text = p.Content
	case *wire.NodeComplete:
		output = p.Output
	default:
		_, x.Text, _ = timeline.Of(e)
	}
	x.Command = input.TextAt("command")
	x.Diff = diffOfEdit(input)
	x.Input = input
	x.Output, x.Shown = takePictures(output.Any(), x.Shown)
	return x
}

// maxPictures bounds the pictures of an event that are shown.
const maxPictures = 8

// takePictures returns a value with a note in place of each picture, and the pictures: texts in base64 that are pixels, whatever the fields around
// them say.
func takePictures(v any, found []template.URL) (any, []template.URL) {
	switch v := v.(type) {
	case string:
		content, err := base64.StdEncoding.DecodeString(v)
		if err != nil || len(v) < 64 || len(found) == maxPictures {
			return v, found
		}
		if picture := pictureOf(content); picture != "" {
			return fmt.Sprintf("picture %d, %d bytes", len(found)+1, len(content)), append(found, picture)
		}
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i], found = takePictures(v[i], found)
		}
		return all, found
	case map[string]any:
		all := make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all[name], found = takePictures(v[name], found)
		}
		return all, found
	}
	return v, found
}

// pictureOf returns the address of a picture that is in it; "" if the content is none that browsers draw without running anything.
func pictureOf(content []byte) template.URL {
	kind := http.DetectContentType(content)
	if len(content) > maxPicture || !slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, kind) {
		return ""
	}
	return template.URL("data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(content)) // pixels, of a kind that runs nothing
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
