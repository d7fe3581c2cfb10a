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
// names its session by another key than a stream, and its lines' parents; Codex begins with its thread;
// anything else is read as a stream, in which lines of other agents pass through
// as raw events.
func detectFormat(in *bufio.Reader, asked Format) (Format, error) {
	head, err := peekLine(in)
	if err != nil {
		return "", err
	}
	switch asked {
	case StreamJSON, Transcript, Codex, Kahn:
		return asked, nil
	case Auto, "":
	default:
		return "", fmt.Errorf("unknown format %q: it is %s, %s, %s, %s or %s", asked, Auto, StreamJSON, Transcript, Codex, Kahn)
	}
	for line := range bytes.Lines(head) {
		var fields map[string]json.RawMessage
		if json.Unmarshal(line, &fields) != nil {
			continue
		}
		if string(fields["type"]) == `"thread.started"` && hasAny(fields, "thread_id") {
			return Codex, nil
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
	for _, name := range names {
		if _, ok := fields[name]; ok {
			return true
		}
	}
	return false
}

// firstTime returns the first time that an input tells in its beginning,
// in Unix ms, or 0.
func firstTime(in *bufio.Reader) int64 {
	head, _ := in.Peek(in.Buffered()) // what detect has looked at
	for line := range bytes.Lines(head) {
		if at := timeIn(line); at > 0 {
			return at
		}
	}
	return 0
}

// timeIn returns the time that a line tells, in Unix ms, or 0.
func timeIn(line []byte) int64 {
	var l struct {
		Timestamp time.Time `json:"timestamp"`
	}
	if json.Unmarshal(line, &l) != nil || l.Timestamp.IsZero() {
		return 0
	}
	return l.Timestamp.UnixMilli()
}
