package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/workdir"
)

// Dialog is a question that a terminal shows, whether a call may be made, as the files of its session tell of it.
type Dialog struct {
	Session string
	File    string // of the session
	Tool    string
	Input   json.RawMessage

	Call    string   // id of the call, once the file has it
	message string   // that made equal calls last
	open    []string // of these, those without a result
	offset  int64    // of what was read of the file
	read    bool     // what there was at first is
	shown   bool     // the session's process has said that it waits
	closed  time.Time
	result  *callResult
}

// Outcome is what has become of a dialog.
type Outcome string

// The outcomes.
const (
	Open    Outcome = "open"
	Allowed Outcome = "allow"
	Denied  Outcome = "deny"
	Gone    Outcome = "" // it is unknown
)

// closeTime is how long no dialog is to be seen before one counts as closed: behind one there may be the next, and what
// was decided is written a little later.
const closeTime = 600 * time.Millisecond

// Look tells what has become of the dialog. It is asked a few times a second.
func (d *Dialog) Look(now time.Time) Outcome {
	h, held := Holders(filepath.Dir(filepath.Dir(filepath.Dir(d.File))))[d.Session]
	d.readOn()
	switch {
	case d.result != nil && d.result.refused:
		return Denied
	case d.result != nil:
		return Allowed
	case held && h.Status == waiting:
		d.shown, d.closed = true, time.Time{}
		return Open
	case !d.shown:
		return Open // older versions don't say
	case d.closed.IsZero():
		d.closed = now
		return Open
	case now.Sub(d.closed) < closeTime:
		return Open
	case held && d.Call != "":
		return Allowed // and at work: a refusal is a result at once
	}
	return Gone
}

// maxTail bounds what is read of the file to find the call.
const maxTail = 4 << 20

// FindCall looks whether the file has the call by now.
func (d *Dialog) FindCall() bool {
	d.readOn()
	return d.Call != ""
}

// NextCall takes the dialog for that of the next call of the same message that is equal, since somebody else asks about the one before.
// It reports false if there is none.
func (d *Dialog) NextCall() bool {
	next := slices.Index(d.open, d.Call) + 1
	if next == 0 || next == len(d.open) {
		return false
	}
	d.Call = d.open[next]
	return true
}

// readOn reads what is new in the file. At first a call that has a result is an earlier one.
func (d *Dialog) readOn() {
	d.readLines()
	if d.Call == "" && len(d.open) > 0 {
		d.Call = d.open[0]
	}
	d.read = true
}

func (d *Dialog) readLines() {
	in, err := workdir.OpenFile(d.File)
	if err != nil {
		return
	}
	defer func() { _ = in.Close() }() // it was only read
	info, err := in.Stat()
	if err != nil || info.Size() == d.offset || info.IsDir() {
		return
	}
	if d.offset == 0 || d.offset > info.Size() {
		d.offset = max(0, info.Size()-maxTail)
	}
	if _, err := in.Seek(d.offset, io.SeekStart); err != nil {
		return
	}
	lines := claude.NewLineReader(in, claude.MaxLine)
	for {
		line, size, err := lines.Next()
		if err != nil && !errors.As(err, new(*claude.LineTooLongError)) {
			return
		}
		d.offset += size
		d.noteLine(line)
	}
}

// callResult is a line that says what came of a call.
type callResult struct{ refused bool }

// noteLine takes a line: calls that may be the dialog's, and their results.
func (d *Dialog) noteLine(line []byte) {
	if !bytes.Contains(line, []byte(`"tool_`)) {
		return
	}
	var l struct {
		Message struct {
			ID      string `json:"id"`
			Content []struct {
				Type   string          `json:"type"`
				ID     string          `json:"id"`
				Of     string          `json:"tool_use_id"`
				Name   string          `json:"name"`
				Input  json.RawMessage `json:"input"`
				Failed bool            `json:"is_error"`
			} `json:"content"`
		} `json:"message"`
		Result json.RawMessage `json:"toolUseResult"`
	}
	if json.Unmarshal(line, &l) != nil {
		return
	}
	for _, c := range l.Message.Content {
		switch {
		case c.Type == "tool_use" && c.Name == d.Tool && isSame(c.Input, d.Input):
			if l.Message.ID != d.message {
				d.message, d.open = l.Message.ID, nil
				if d.read && d.result == nil { // what it was taken for was never answered
					d.Call = ""
				}
			}
			d.open = append(d.open, c.ID)
			if d.Call == "" && d.read {
				d.Call = c.ID
			}
		case c.Type == "tool_result" && c.Of != d.Call:
			d.open = slices.DeleteFunc(d.open, func(id string) bool { return id == c.Of })
		case c.Type == "tool_result" && d.Call != "":
			d.result = &callResult{refused: c.Failed && bytes.HasPrefix(l.Result, []byte(`"User rejected`))}
		}
	}
}

// isSame reports whether two inputs are the same, however they are written.
func isSame(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
