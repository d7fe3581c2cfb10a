package session

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"code.wake.dev/wake/internal/agent/claude"
)

// Reader reads the whole lines of a file that grows. What stands behind the last line end is left for later: its writer
// isn't done.
type Reader struct {
	in    *bufio.Reader
	limit int
}

// NewReader returns a reader; lines longer than limit are passed over.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{in: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Next returns the next whole line with its end, which is valid until the next call, and its size. Its error is
// [io.EOF] if there is none, a [*claude.LineTooLongError] for one that is passed over, or that of reading.
func (r *Reader) Next() (line []byte, size int64, err error) {
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
			return nil, size, err
		case size > int64(r.limit):
			return nil, size, &claude.LineTooLongError{Bytes: size, Limit: r.limit, Head: bytes.Clone(line[:min(len(line), 4<<10)])}
		default:
			return line, size, nil
		}
	}
}
