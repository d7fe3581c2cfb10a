package ingest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// detectBytes is how much of the input is looked at to tell its format.
const detectBytes = 1 << 20

// Detect tells the format of the input without consuming it; one that is asked for
// is believed. It waits for a line. Its error is [ErrEmpty], or that of reading.
// The reader that it returns is the input.
func Detect(r io.Reader, asked Format) (*bufio.Reader, Format, error) {
	in := bufio.NewReaderSize(r, detectBytes)
	format, err := detectFormat(in, asked)
	return in, format, err
}

// detectFormat tells the format of the input without consuming it. A session file
// names its session by another key than a stream, and its lines' parents; other agents begin with a line of their own
// (see [formatOf]); anything else is read as a stream, in which lines of unknown agents pass through as raw events.
func detectFormat(in *bufio.Reader, asked Format) (Format, error) {
	head, err := peekLine(in)
	if err != nil {
		return "", err
	}
	switch {
	case bytes.HasPrefix(head, []byte("SQLite format 3\x00")):
		return "", ErrDatabase
	case bytes.IndexByte(head, 0) >= 0: // which JSON has only in its escaped form
		return "", ErrBinary
	case asked != Auto && slices.Contains(Formats(), asked):
		return asked, nil
	case asked != Auto && asked != "":
		return "", fmt.Errorf("unknown format %q: it is %s", asked, Names())
	case isOpenCodeDocument(in):
		return OpenCodeSession, nil
	}
	for line := range bytes.Lines(head) {
		var fields map[string]json.RawMessage
		if json.Unmarshal(line, &fields) != nil {
			continue
		}
		if format := formatOf(fields); format != "" {
			return format, nil
		}
		if isKahn(slices.Collect(maps.Keys(fields))) {
			return Kahn, nil
		}
		if hasAny(fields, "session_id", "event", "request_id") {
			return StreamJSON, nil
		}
		if hasAny(fields, "sessionId", "parentUuid", "isSidechain", "leafUuid", "messageId", "snapshot") {
			return Transcript, nil
		}
	}
	return StreamJSON, nil
}

// ErrBinary is returned for what no agent prints.
var ErrBinary = errors.New("the input is no text: it begins with binary data")

// ErrDatabase is returned for a database, which no program writes to be read by others.
var ErrDatabase = errors.New("the input is a database of SQLite. If it is opencode's, let opencode write the session: opencode export SESSION | wake ingest")

// formatOf tells the formats of other agents by a line; "": it is of none.
func formatOf(fields map[string]json.RawMessage) Format {
	switch is := func(kind string) bool { return string(fields["type"]) == `"`+kind+`"` }; {
	case is("thread.started") && hasAny(fields, "thread_id"):
		return Codex
	case is("session_meta") && hasAny(fields, "payload"):
		return CodexSession
	case hasAny(fields, "projectHash") && hasAny(fields, "sessionId"):
		return GeminiSession
	case is("init") && hasAny(fields, "session_id") && hasAny(fields, "timestamp"):
		return Gemini
	case hasAny(fields, "sessionID") && (hasAny(fields, "part") || is("error")):
		return OpenCode
	}
	return ""
}

// isOpenCodeDocument reports whether the input is a session that opencode has exported: one document, whose first field is about the session.
// It waits for that field.
func isOpenCodeDocument(in *bufio.Reader) bool {
	for n := 1; ; {
		_, err := in.Peek(n)
		head, _ := in.Peek(in.Buffered())
		d := json.NewDecoder(bytes.NewReader(head))
		first, problem := d.Token()
		name, _ := d.Token()
		switch {
		case problem != nil && !errors.Is(problem, io.EOF), first != nil && first != json.Delim('{'), name != nil && name != "info":
			return false
		}
		var info openCodeInfo
		if name == "info" && d.Decode(&info) == nil {
			return strings.HasPrefix(info.ID, "ses_") && info.Directory != ""
		}
		if err != nil || len(head) >= detectBytes {
			return false
		}
		n = len(head) + 1
	}
}

// peekLine waits for at least a line of the input: more may never come, or come
// much later.
func peekLine(in *bufio.Reader) ([]byte, error) {
	for n := 1; ; {
		_, err := in.Peek(n) // waits
		head, _ := in.Peek(in.Buffered())
		ended, full := errors.Is(err, io.EOF), errors.Is(err, bufio.ErrBufferFull) || len(head) >= detectBytes
		switch {
		case err != nil && !ended && !full:
			return nil, fmt.Errorf("read the input: %w", err)
		case !ended && !full && bytes.IndexByte(bytes.TrimLeft(head, "\r\n\t "), '\n') < 0:
			n = len(head) + 1
		case len(bytes.TrimSpace(head)) == 0:
			return nil, ErrEmpty
		default:
			return head, nil
		}
	}
}

func hasAny(fields map[string]json.RawMessage, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return fields[name] != nil })
}

// firstTime returns the first time that an input tells in its beginning,
// in Unix ms, or 0.
func firstTime(in *bufio.Reader, format Format) int64 {
	head, _ := in.Peek(in.Buffered()) // what detect has looked at
	for line := range bytes.Lines(head) {
		if at := timeIn(line); at > 0 {
			return at
		}
	}
	if format != OpenCodeSession {
		return 0
	}
	var about openCodeInfo
	// The rest of the document may not have come yet, and doesn't matter.
	if _, info, found := bytes.Cut(head, []byte(`"info":`)); found && json.NewDecoder(bytes.NewReader(info)).Decode(&about) == nil {
		return validTime(about.Time.Created)
	}
	return 0
}

// timeIn returns the time that a line tells, in Unix ms, or 0.
func timeIn(line []byte) int64 {
	var l struct {
		Timestamp json.RawMessage `json:"timestamp"` // a text, or of opencode ms
		StartTime time.Time       `json:"startTime"` // of a session of Gemini's
	}
	if json.Unmarshal(line, &l) != nil {
		return 0
	}
	var at time.Time
	var ms int64
	switch {
	case !l.StartTime.IsZero():
		return l.StartTime.UnixMilli()
	case json.Unmarshal(l.Timestamp, &at) == nil && !at.IsZero():
		return at.UnixMilli()
	case json.Unmarshal(l.Timestamp, &ms) == nil:
		return validTime(ms)
	}
	return 0
}
