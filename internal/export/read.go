package export

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// FileError says where a JSONL file isn't what was exported.
type FileError struct {
	Line    int // from 1
	Problem string
}

// Error returns the place and the problem.
func (e *FileError) Error() string { return fmt.Sprintf("line %d %s", e.Line, e.Problem) }

// MaxLine bounds a line of a file that is read, in bytes.
const MaxLine = 256 << 20

// maxFields bounds the large fields of one event, in bytes.
const maxFields = 512 << 20

// Item is an event of a file.
type Item struct {
	Line  int
	Pos   uint64 // where it was exported
	Time  int64  // Unix ms, when it was stored there
	Data  []byte // as it was stored
	Event *wire.Event
	Blobs map[string][]byte // its large fields, by SHA-256, as far as the file has them
}

// File is a JSONL file that is being read.
type File struct {
	Run    Run
	Events int    // so far
	Hash   string // of the last event so far

	lines lines
	chain chain.Linker
	last  chain.Link
	pos   uint64
	ended bool
}

// Open reads the beginning of a file.
func Open(r io.Reader) (*File, error) {
	f := &File{lines: lines{in: bufio.NewReaderSize(r, 64<<10)}}
	line, err := f.lines.nextLine()
	if errors.Is(err, io.EOF) {
		return nil, &FileError{1, "is missing: the file is empty"}
	}
	if err != nil {
		return nil, err
	}
	var h head
	switch err := json.Unmarshal(line, &h); {
	case err != nil || h.Wake == 0:
		return nil, f.lineError("isn't the beginning of an exported run (wake export --format jsonl)")
	case h.Wake > fileVersion:
		return nil, f.lineError("says that a newer version of wake wrote the file: %d", h.Wake)
	}
	if err := subjects.CheckID(h.Run); err != nil {
		return nil, f.lineError("names no run: %v", err)
	}
	f.Run = Run{ID: h.Run, Incarnation: h.Incarnation, From: h.From, To: h.To}
	f.last = chain.FirstLink(h.Incarnation, h.Run)
	f.Hash = f.last.String()
	return f, nil
}

func (f *File) lineError(format string, args ...any) error {
	return &FileError{f.lines.n, fmt.Sprintf(format, args...)}
}

// All yields the events to the end of the file. What was changed, lost, added or
// put in another order ends it with a [*FileError]; so does a file that was cut
// off.
func (f *File) All() iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for {
			item, err := f.nextItem()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// exportRecord is any line but the first.
type exportRecord struct {
	Pos   uint64          `json:"pos"`
	Time  int64           `json:"time"`
	Hash  string          `json:"hash"`
	Event json.RawMessage `json:"event"`
	Data  []byte          `json:"data"`

	Blob    string `json:"blob"`
	Missing bool   `json:"missing"` // where it was exported

	End    bool `json:"end"`
	Events int  `json:"events"`
}

// nextItem returns the next event; io.EOF at the proper end.
func (f *File) nextItem() (Item, error) {
	fields := map[string][]byte{}
	size := 0
	for {
		line, err := f.lines.nextLine()
		switch {
		case errors.Is(err, io.EOF) && f.ended:
			return Item{}, io.EOF
		case errors.Is(err, io.EOF):
			f.lines.n++
			return Item{}, f.lineError("is missing: the file was cut off")
		case err != nil:
			return Item{}, err
		case f.ended:
			return Item{}, f.lineError("is behind the end")
		}
		var r exportRecord
		if err := json.Unmarshal(line, &r); err != nil {
			return Item{}, f.lineError("isn't a JSON object of an export: %v", err)
		}
		switch {
		case r.Blob != "":
			if r.Missing {
				fields[r.Blob] = nil
				continue
			}
			if size += len(r.Data); size > maxFields {
				return Item{}, f.lineError("is a field too large: the event's have more than %d bytes", maxFields)
			}
			if sum := sha256.Sum256(r.Data); hex.EncodeToString(sum[:]) != r.Blob {
				return Item{}, f.lineError("has another content than its hash %s says", r.Blob)
			}
			fields[r.Blob] = r.Data
		case r.End:
			if err := f.checkEnd(r, len(fields)); err != nil {
				return Item{}, err
			}
		default:
			return f.makeItem(r, fields)
		}
	}
}

func (f *File) checkEnd(r exportRecord, fields int) error {
	switch {
	case fields > 0:
		return f.lineError("is the end, where an event with large fields should be")
	case r.Events != f.Events:
		return f.lineError("says that there are %d events; the file has %d", r.Events, f.Events)
	case r.Hash != f.Hash:
		return f.lineError("breaks the chain: the last hash is %s, not %s", f.Hash, r.Hash)
	}
	f.ended = true
	return nil
}

func (f *File) makeItem(r exportRecord, fields map[string][]byte) (Item, error) {
	item := Item{Line: f.lines.n, Pos: r.Pos, Time: r.Time, Data: r.Data}
	var err error
	if item.Data == nil {
		if item.Data, err = encodeFromJSON(r.Event); err != nil {
			return Item{}, f.lineError("isn't an event: %v", err)
		}
	}
	next := f.chain.Next(f.last, r.Pos, r.Time, "", "", item.Data)
	switch {
	case r.Pos <= f.pos:
		return Item{}, f.lineError("has position %d after %d: the order isn't that of the log", r.Pos, f.pos)
	case next.String() != r.Hash:
		return Item{}, f.lineError("breaks the chain: it or a line before was changed, lost, added or moved")
	}
	if item.Event, err = wire.Decode(item.Data); err != nil {
		return Item{}, f.lineError("isn't an event: %v", err)
	}
	if item.Event.RunID != f.Run.ID {
		return Item{}, f.lineError("is of run %q, not of %s", item.Event.RunID, f.Run.ID)
	}
	if err := f.checkBlobs(item.Event, fields); err != nil {
		return Item{}, err
	}
	item.Blobs = fields
	f.pos, f.last, f.Hash = r.Pos, next, r.Hash
	f.Events++
	return item, nil
}

// checkBlobs checks that the file has each large field that the event refers to, or says that it was missing, and no
// other. Of the fields it leaves those that the file has.
func (f *File) checkBlobs(e *wire.Event, fields map[string][]byte) error {
	known := make(map[string]bool, len(e.Blobs))
	for _, b := range e.Blobs {
		known[b.SHA256] = true
		if _, told := fields[b.SHA256]; !told {
			return f.lineError("refers to the field %s, whose line is missing before it", b.SHA256)
		}
	}
	for sum := range fields {
		if !known[sum] {
			return f.lineError("doesn't refer to the field %s before it", sum)
		}
	}
	maps.DeleteFunc(fields, func(_ string, data []byte) bool { return data == nil })
	return nil
}

// lines reads lines and counts them.
type lines struct {
	in  *bufio.Reader
	n   int
	buf []byte
}

// nextLine returns the next line that isn't blank, valid until the next call.
func (l *lines) nextLine() ([]byte, error) {
	for {
		l.buf = l.buf[:0]
		l.n++
		for {
			part, err := l.in.ReadSlice('\n')
			if len(l.buf)+len(part) > MaxLine {
				return nil, &FileError{l.n, fmt.Sprintf("is longer than %d bytes", MaxLine)}
			}
			l.buf = append(l.buf, part...)
			if err == nil {
				break
			}
			if errors.Is(err, io.EOF) && len(l.buf) > 0 {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				l.n--
				return nil, err
			}
		}
		if line := bytes.TrimSpace(l.buf); len(line) > 0 {
			return line, nil
		}
	}
}
