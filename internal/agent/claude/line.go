package claude

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/pkg/wire"
)

// MaxLine bounds a line of input. A longer one is cut and reported by a
// [LineTooLongError].
const MaxLine = pipe.MaxLine

// LineTooLongError tells of a line that was longer than the bound.
type LineTooLongError struct {
	Line  int    // from 1
	Bytes int64  // its length, without the line end
	Limit int    // the bound
	Head  []byte // its beginning
}

// Error says which line it was and how long.
func (e *LineTooLongError) Error() string {
	return fmt.Sprintf("claude: line %d has %d bytes; at most %d are read", e.Line, e.Bytes, e.Limit)
}

// Lines yields the lines of r without their ends; a last line without an end
// too. A slice is valid until the next one is asked for. A line longer than
// limit is skipped and yielded as a [*LineTooLongError]; any other error is the last.
func Lines(r io.Reader, limit int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		in := NewLineReader(r, limit)
		for n := 1; ; n++ {
			line, size, err := in.Next()
			if errors.Is(err, io.EOF) && size > int64(limit) {
				err = newTooLong(line, size, limit)
			}
			line = bytes.TrimSuffix(line, []byte{'\n'})
			var long *LineTooLongError
			switch {
			case errors.As(err, &long):
				long.Line = n
				if !yield(nil, err) {
					return
				}
			case errors.Is(err, io.EOF) && len(line) == 0:
				return
			case errors.Is(err, io.EOF):
				yield(line, nil)
				return
			case err != nil:
				yield(nil, fmt.Errorf("claude: read line %d: %w", n, err))
				return
			case !yield(line, nil):
				return
			}
		}
	}
}

// LineReader reads the lines of a file, which may grow.
type LineReader struct {
	in    *bufio.Reader
	limit int
}

// NewLineReader returns a reader; lines longer than limit are passed over.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{in: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Next returns the next line with its end, which is valid until the next call, and its size. Its error is a [*LineTooLongError]
// for one that is passed over, or that of reading; with [io.EOF] it returns what stands behind the last line end, whose
// writer may not be done.
func (r *LineReader) Next() (line []byte, size int64, err error) {
	for {
		piece, err := r.in.ReadSlice('\n')
		size += int64(len(piece))
		if err == nil && line == nil && len(piece) <= r.limit {
			return piece, size, nil // which is nearly always so
		}
		if room := r.limit + 1 - len(line); room > 0 {
			line = append(line, piece[:min(len(piece), room)]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return line, size, err
		case size-1 > int64(r.limit):
			return nil, size, newTooLong(line, size-1, r.limit)
		default:
			return line, size, nil
		}
	}
}

// newTooLong is the error of a line of so many bytes, without its end; of which the beginning is known.
func newTooLong(line []byte, size int64, limit int) error {
	return &LineTooLongError{Bytes: size, Limit: limit, Head: bytes.Clone(line[:min(pipe.MaxHead, len(line))])}
}

// hasValue reports whether the value at a path is there and not null.
func hasValue(r wire.Raw, path ...string) bool {
	v := r.Get(path...)
	return len(v) > 0 && v.Any() != nil
}

func isTrue(r wire.Raw, path ...string) bool {
	v, _ := r.Get(path...).Any().(bool)
	return v
}

// numberAt returns the number at a path; ok is false if there is none.
func numberAt(r wire.Raw, path ...string) (x float64, ok bool) {
	switch v := r.Get(path...).Any().(type) {
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// integerAt returns the number at a path, rounded towards zero and held within
// 53 bits; 0 if there is none.
func integerAt(r wire.Raw, path ...string) int64 {
	x, _ := numberAt(r, path...)
	return int64(math.Max(-1<<53, math.Min(1<<53, x)))
}

// optInteger is nil if there is no number at the path.
func optInteger(r wire.Raw, path ...string) *int64 {
	if _, ok := numberAt(r, path...); !ok {
		return nil
	}
	return new(integerAt(r, path...))
}

// optNumber is nil if there is no number at the path.
func optNumber(r wire.Raw, path ...string) *float64 {
	x, ok := numberAt(r, path...)
	if !ok {
		return nil
	}
	return &x
}

// entriesOf returns the entries of a map; nil if the value is none.
func entriesOf(r wire.Raw) map[string]wire.Raw {
	var m map[string]wire.Raw
	if len(r) == 0 || wire.Unmarshal(r, &m) != nil {
		return nil
	}
	return m
}

// withoutKeys returns a map less some of its keys; nil if nothing is left or the
// value is no map.
func withoutKeys(r wire.Raw, keys ...string) wire.Raw {
	m := entriesOf(r)
	for _, key := range keys {
		delete(m, key)
	}
	if len(m) == 0 {
		return nil
	}
	out, err := wire.Marshal(m)
	if err != nil {
		return nil
	}
	return out
}

// stringsOf returns the strings of an array; others are left out.
func stringsOf(r wire.Raw) []string {
	var out []string
	for _, item := range r.Items() {
		if s, ok := item.Text(); ok {
			out = append(out, s)
		}
	}
	return out
}

// parseMillis returns a timestamp in RFC 3339 as Unix milliseconds, or 0.
func parseMillis(s string) int64 {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0
	}
	return t.UnixMilli()
}

// toValidUTF8 returns s in UTF-8.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// lineValue returns the value of a line: a string, or bytes if it isn't UTF-8.
func lineValue(line []byte) wire.Raw {
	if utf8.Valid(line) {
		return wire.RawString(string(line))
	}
	b, err := wire.Marshal(bytes.Clone(line))
	if err != nil {
		return wire.RawString(string(line))
	}
	return b
}

// contentText returns the text of a message's or a result's content: a string,
// or the text of its blocks, one per line.
func contentText(content wire.Raw) string {
	if s, ok := content.Text(); ok {
		return s
	}
	var parts []string
	for _, block := range content.Items() {
		if s, ok := block.Text(); ok {
			parts = append(parts, s)
		} else if block.TextAt("type") == "text" {
			parts = append(parts, block.TextAt("text"))
		}
	}
	return strings.Join(parts, "\n")
}

// blocksOf returns the blocks of a message's content; of a plain string the
// one block of text that it stands for. ok is false if it is neither.
func blocksOf(content wire.Raw) (blocks []wire.Raw, ok bool) {
	if s, is := content.Text(); is {
		return []wire.Raw{textBlock(s)}, true
	}
	if _, is := content.Any().([]any); !is {
		return nil, false
	}
	for _, block := range content.Items() {
		if s, is := block.Text(); is {
			block = textBlock(s)
		}
		blocks = append(blocks, block)
	}
	return blocks, true
}

func textBlock(s string) wire.Raw {
	return wire.RawOf(map[string]string{"type": "text", "text": s})
}
