// Package journal keeps on disk what a program and its runner said to each other, until
// the log has it.
//
// A journal is a folder of one program. Its segments hold records in the order in
// which the bytes passed; a segment is named by the offset of its first record:
//
//	length  4 bytes, big endian, of what follows the checksum
//	crc     4 bytes, CRC-32C of the same
//	kind    1 byte: in, out, err, exit
//	time    8 bytes, Unix ms
//	offset  8 bytes: data bytes of all records before this one
//	data
//
// With a key, everything behind the checksum is sealed with AES-256-GCM; its nonce, a random
// number of the journal and a counter, stands before it. The file rest holds the last resting point in the same framing. Segments that lie before it are removed.
//
// Nothing is synced: the page cache outlives every death but that of the machine, and the
// agent dies with that too. A record that was cut off ends a segment for readers. A journal
// is written by the process that made it and no other.
package journal

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// Kind says what a record is.
type Kind uint8

// The kinds of records.
const (
	In   Kind = 1 + iota // bytes for the program's stdin
	Out                  // from its stdout
	Err                  // from its stderr
	Exit                 // the program has ended; data is opaque to the journal
	rest                 // of the file rest
)

// Record is one entry of a journal.
type Record struct {
	Kind   Kind
	At     int64  // Unix ms
	Offset uint64 // data bytes of in, out and err before this record
	Data   []byte
}

// endOffset returns the offset behind the record.
func (r Record) endOffset() uint64 {
	if r.Kind == Exit {
		return r.Offset
	}
	return r.Offset + uint64(len(r.Data))
}

const (
	prefix = 8           // length and checksum
	header = 1 + 8 + 8   // kind, time, offset
	nonce  = 12          // of a sealed record
	limit  = 1<<20 + 256 // of a record behind its prefix
)

// MaxData is how many bytes fit into a record.
const MaxData = 1 << 20

// segmentSize is when another segment begins, at the latest: what was given up goes by segments, which must leave room
// in a small journal, too.
const segmentSize = 1 << 20

// maxRest bounds the state of a resting point.
const maxRest = 64 << 20

// ErrFull says that the journal has reached its limit.
var ErrFull = errors.New("journal: full")

// errCut is a record that isn't whole, or isn't one.
var errCut = errors.New("journal: a record is cut off")

// Options are the settings of a journal.
type Options struct {
	Key   []byte // 32 bytes that seal it; nil: it isn't sealed
	Limit int64  // bytes on disk at which Append fails with [ErrFull]; 0: none
}

// Journal is a journal that is written. Its methods may be called by many goroutines.
type Journal struct {
	dir     string
	box     cipher.AEAD // nil: not sealed
	limit   int64
	segment int64 // size at which another segment begins

	mu       sync.Mutex
	segments []segment
	file     *os.File // the last segment
	offset   uint64   // behind the last record
	size     int64    // of all segments
	rest     uint64
	salt     [8]byte // of nonces
	count    uint32
	grown    chan struct{} // closed when the journal has grown
	closed   bool
}

// segment is a file of records.
type segment struct {
	base uint64 // offset of its first record
	size int64
}

// Create makes a journal in a folder, which is made and must hold none.
func Create(dir string, o Options) (*Journal, error) {
	j := &Journal{dir: dir, limit: o.Limit, segment: segmentSize, grown: make(chan struct{})}
	if o.Limit > 0 {
		j.segment = min(j.segment, o.Limit/4)
	}
	_, _ = rand.Read(j.salt[:])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var err error
	if j.box, err = newBox(o.Key); err != nil {
		return nil, err
	}
	if err := j.beginSegment(); err != nil {
		return nil, err
	}
	return j, nil
}

func newBox(key []byte) (cipher.AEAD, error) {
	if key == nil {
		return nil, nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("journal: key: %w", err)
	}
	return cipher.NewGCM(block)
}

// listSegments returns the segments of a folder, in order.
func listSegments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var segments []segment
	for _, e := range entries {
		base, err := strconv.ParseUint(e.Name(), 10, 64)
		if err != nil || len(e.Name()) != 20 {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // given up meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		segments = append(segments, segment{base: base, size: info.Size()})
	}
	slices.SortFunc(segments, func(a, b segment) int { return compareOffsets(a.base, b.base) })
	return segments, nil
}

func compareOffsets(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (j *Journal) segmentPath(base uint64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%020d", base))
}

// beginSegment begins a segment. It is called under mu, or before the journal is shared.
func (j *Journal) beginSegment() error {
	f, err := os.OpenFile(j.segmentPath(j.offset), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.file, j.segments = f, append(j.segments, segment{base: j.offset})
	return nil
}

// Append adds a record and returns the offset behind it. Data of more than [MaxData] bytes
// is refused. If the disk or the journal is full nothing is added.
func (j *Journal) Append(k Kind, at int64, data []byte) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return 0, fmt.Errorf("journal: %w", fs.ErrClosed)
	}
	if len(data) > MaxData {
		return 0, fmt.Errorf("journal: a record of %d bytes", len(data))
	}
	last := &j.segments[len(j.segments)-1]
	if j.limit > 0 && k != Exit && j.size+int64(len(data)) > j.limit {
		return 0, ErrFull
	}
	if last.size >= j.segment && last.base != j.offset {
		if err := j.beginSegment(); err != nil {
			return 0, err
		}
		last = &j.segments[len(j.segments)-1]
	}
	r := Record{Kind: k, At: at, Offset: j.offset, Data: data}
	b := j.encodeRecord(r)
	if _, err := j.file.WriteAt(b, last.size); err != nil {
		_ = j.file.Truncate(last.size)
		return 0, fmt.Errorf("journal: %w", err)
	}
	last.size += int64(len(b))
	j.size += int64(len(b))
	j.offset = r.endOffset()
	close(j.grown)
	j.grown = make(chan struct{})
	return j.offset, nil
}

func (j *Journal) encodeRecord(r Record) []byte {
	b := make([]byte, prefix, prefix+nonce+header+len(r.Data)+16)
	if j.box == nil {
		b = appendRecord(b, r)
	} else {
		j.count++
		var n [nonce]byte
		copy(n[:], j.salt[:])
		binary.BigEndian.PutUint32(n[8:], j.count)
		b = append(b, n[:]...)
		b = j.box.Seal(b, n[:], appendRecord(nil, r), nil)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-prefix)) // bounded by MaxData
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[prefix:], castagnoli()))
	return b
}

func appendRecord(b []byte, r Record) []byte {
	b = append(b, byte(r.Kind))
	b = binary.BigEndian.AppendUint64(b, uint64(r.At)) // the same bits
	b = binary.BigEndian.AppendUint64(b, r.Offset)
	return append(b, r.Data...)
}

var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// Offset returns the offset behind the last record.
func (j *Journal) Offset() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.offset
}

// Size returns the bytes of the journal on disk.
func (j *Journal) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// Rest is a resting point.
type Rest struct {
	Offset uint64
	State  []byte
}

// GiveUp stores a resting point and removes the segments before it. A point before
// the last one, or behind the end, is ignored.
func (j *Journal) GiveUp(r Rest) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.Offset < j.rest || r.Offset > j.offset || len(r.State) > maxRest {
		return nil
	}
	temp := filepath.Join(j.dir, "rest.new")
	if err := os.WriteFile(temp, j.encodeRecord(Record{Kind: rest, Offset: r.Offset, Data: r.State}), 0o600); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(j.dir, "rest")); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.rest = r.Offset
	for len(j.segments) > 1 && j.segments[1].base <= r.Offset {
		if err := os.Remove(j.segmentPath(j.segments[0].base)); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		j.size -= j.segments[0].size
		j.segments = j.segments[1:]
	}
	return nil
}

// Close ends the journal: readers that have come to its end end too.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	close(j.grown)
	return j.file.Close()
}

// ReadRest returns the last resting point of the journal in a folder; the zero
// Rest if there is none.
func ReadRest(dir string, o Options) (Rest, error) {
	box, err := newBox(o.Key)
	if err != nil {
		return Rest{}, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "rest"))
	if errors.Is(err, fs.ErrNotExist) {
		return Rest{}, nil
	}
	if err != nil {
		return Rest{}, fmt.Errorf("journal: %w", err)
	}
	r := reader{box: box, file: bytes.NewReader(b), limit: maxRest + 256}
	record, err := r.nextRecord()
	if err != nil || record.Kind != rest {
		return Rest{}, fmt.Errorf("journal: resting point: %w", errCut)
	}
	return Rest{Offset: record.Offset, State: record.Data}, nil
}

// reader reads the records of a segment.
type reader struct {
	box   cipher.AEAD
	file  io.ReaderAt
	at    int64 // of the next record
	limit int   // of a record; 0: limit
}

// nextRecord returns the next record; errCut or io.EOF if there is no whole one.
func (r *reader) nextRecord() (Record, error) {
	var head [prefix]byte
	if n, err := r.file.ReadAt(head[:], r.at); n < prefix {
		if n == 0 && errors.Is(err, io.EOF) {
			return Record{}, io.EOF
		}
		return Record{}, errCut
	}
	most := r.limit
	most = cmp.Or(most, limit)
	length := binary.BigEndian.Uint32(head[:])
	if length < header || int64(length) > int64(most) {
		return Record{}, errCut
	}
	body := make([]byte, length)
	if n, _ := r.file.ReadAt(body, r.at+prefix); n < len(body) {
		return Record{}, errCut
	}
	if crc32.Checksum(body, castagnoli()) != binary.BigEndian.Uint32(head[4:]) {
		return Record{}, errCut
	}
	end := r.at + prefix + int64(length)
	if r.box != nil {
		if len(body) < nonce {
			return Record{}, errCut
		}
		var err error
		if body, err = r.box.Open(nil, body[:nonce], body[nonce:], nil); err != nil || len(body) < header {
			return Record{}, errCut
		}
	}
	record := Record{
		Kind: Kind(body[0]), At: int64(binary.BigEndian.Uint64(body[1:])), // the same bits
		Offset: binary.BigEndian.Uint64(body[9:]), Data: body[header:],
	}
	if record.Kind < In || record.Kind > rest {
		return Record{}, errCut
	}
	r.at = end
	return record, nil
}
