package eventlog

import (
	"bytes"
	"cmp"
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
	"syscall"
)

// The spool keeps frames in segments: files of about segmentSize, numbered in
// the order of writing. A segment begins with segmentMagic and the incarnation
// of the stream that its positions are of; then come frames, each
//
//	magic uint32 | length uint32 | CRC-32C of the body uint32 | body
//
// in big-endian order. What doesn't check is skipped up to the next frame that
// does, and kept as a dead letter.
const (
	segmentSize  = 4 << 20
	segmentMagic = "WAKESPL1"
	frameMagic   = 0x574b4631 // "WKF1"
	frameHeader  = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// spoolSegment is a file of the spool.
type spoolSegment struct {
	path   string
	size   int64 // bytes written
	read   int64 // bytes of it that have been read or never need to be
	frames int   // in it and not yet resolved; of an unread leftover unknown
	unread bool  // a leftover of which nothing has been read

	// file is that of a segment of this process, which stays open: what is in it can be read, and put back, also after
	// its removal. Nil: a leftover.
	file *os.File
}

// spool is a queue of frames on disk. It is used by one goroutine at a time.
type spool struct {
	dir         string
	incarnation string
	limit       int64

	segments []*spoolSegment // oldest first
	writing  bool            // the last segment takes more
	size     int64           // of all segments
	next     int             // number of the next segment

	// What the disk refuses at present. Nothing of it ends the process: what can't be written waits in
	// memory, what can't be read for an operator to mend it, and what can't be removed is read, and found
	// to be stored, by the next process.
	unwritten, unread, unremoved error
	robbed                       error    // its files were removed while they were in use
	stale                        []string // files that are to be removed
}

// lastRefusal says what the disk refuses at present.
func (s *spool) lastRefusal() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.unwritten, s.unread, s.unremoved, s.robbed)
}

// retryRefused tries once more what was refused and no caller waits for.
func (s *spool) retryRefused() {
	if s != nil {
		s.remove()
		_ = s.putBack(s.segments) // it is told, and tried again
	}
}

// putBack makes removed files anew: the next process has to find what is in them.
func (s *spool) putBack(segments []*spoolSegment) error {
	for _, g := range segments {
		if g.file == nil || g.isThere() {
			continue
		}
		s.robbed = fmt.Errorf("%s was removed while it was in use: it was made again, nothing is lost", g.path)
		if err := g.putBack(); err != nil {
			s.robbed = fmt.Errorf("%s was removed while it was in use, and can't be made again: if the process ends, its events are lost: %w", g.path, err)
			return s.robbed
		}
	}
	return nil
}

// isThere reports whether the segment's file is where the next process looks for it.
func (g *spoolSegment) isThere() bool {
	_, err := os.Lstat(g.path)
	return !errors.Is(err, fs.ErrNotExist)
}

// putBack writes the segment into a new file.
func (g *spoolSegment) putBack() error {
	if err := os.MkdirAll(filepath.Dir(g.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(g.path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.NewSectionReader(g.file, 0, g.size))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(g.path+".new", g.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(g.path+".new"))
	}
	_ = g.file.Close() // of a file that isn't there
	g.file = f
	return nil
}

// appendUnit writes frames that belong together, all of them or none.
func (s *spool) appendUnit(unit []*frame) error {
	s.unwritten = s.write(unit)
	return s.unwritten
}

func (s *spool) write(unit []*frame) error {
	var b []byte
	for _, f := range unit {
		b = appendRecord(b, f)
	}
	if !s.writing || s.segments[len(s.segments)-1].size >= segmentSize {
		if err := s.rotateSegment(); err != nil {
			return err
		}
	}
	last := s.segments[len(s.segments)-1]
	if err := s.putBack(s.segments[len(s.segments)-1:]); err != nil {
		return err
	}
	if _, err := last.file.Write(b); err != nil {
		if undone := errors.Join(last.file.Truncate(last.size), seekTo(last.file, last.size)); undone != nil {
			return errors.Join(err, undone, s.closeSegment()) // what is behind last.size is never read
		}
		return err
	}
	last.size += int64(len(b))
	last.frames += len(unit)
	s.size += int64(len(b))
	return nil
}

func seekTo(f *os.File, offset int64) error {
	_, err := f.Seek(offset, io.SeekStart)
	return err
}

func appendRecord(b []byte, f *frame) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	b = appendFrame(b, f)
	body := b[start+frameHeader:]
	binary.BigEndian.PutUint32(b[start:], frameMagic)
	binary.BigEndian.PutUint32(b[start+4:], uint32(len(body)))
	binary.BigEndian.PutUint32(b[start+8:], crc32.Checksum(body, castagnoli))
	return b
}

// rotateSegment begins a new segment.
func (s *spool) rotateSegment() error {
	if err := s.closeSegment(); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.dir, fmt.Sprintf("%010d.seg", s.next))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	header := appendBytes([]byte(segmentMagic), []byte(s.incarnation))
	if _, err := f.Write(header); err != nil {
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	s.next++
	s.writing = true
	size := int64(len(header))
	s.segments = append(s.segments, &spoolSegment{path: path, size: size, read: size, file: f})
	s.size += size
	return nil
}

// closeSegment ends the segment that is being written.
func (s *spool) closeSegment() error {
	if !s.writing {
		return nil
	}
	s.writing = false
	return s.segments[len(s.segments)-1].file.Sync()
}

// leaveFiles leaves what is in the spool to the next process.
func (s *spool) leaveFiles() error {
	err := errors.Join(s.putBack(s.segments), s.closeSegment())
	for _, g := range s.segments {
		err = errors.Join(err, g.close())
	}
	return err
}

func (g *spoolSegment) close() error {
	if g.file == nil {
		return nil
	}
	err := g.file.Close()
	g.file = nil
	return err
}

// skipWritten makes the reader go on after what has been written so far. All before the
// last append has been read.
func (s *spool) skipWritten() {
	for _, g := range slices.Backward(s.segments) {
		if g.read == g.size {
			return
		}
		g.read = g.size
	}
}

// allRead reports whether there is nothing that load would return.
func (s *spool) allRead() bool {
	return !slices.ContainsFunc(s.segments, func(g *spoolSegment) bool { return g.unread || g.read < g.size })
}

// loadUnits returns the next frames that have not been read, in units; none if all
// have been. It fails as long as a file can't be read: what comes behind its frames may not
// overtake them. The frames of a file that is gone are gone: a broken one stands for them.
func (s *spool) loadUnits() ([][]*frame, error) {
	units, err := s.read()
	if s.unread = err; err != nil {
		s.unread = fmt.Errorf("%w: its events wait until it can be read, or are lost if it is removed", err)
	}
	return units, s.unread
}

func (s *spool) read() ([][]*frame, error) {
	for _, g := range s.segments {
		if !g.unread && g.read == g.size {
			continue
		}
		b, err := g.readFile()
		if errors.Is(err, fs.ErrNotExist) {
			g.read, g.unread, g.frames = g.size, false, 1
			return [][]*frame{{{broken: "the spool's file is gone: " + g.path}}}, nil
		}
		if err != nil {
			return nil, err
		}
		if !g.unread {
			b = b[:min(int64(len(b)), g.size)]
		}
		incarnation, start, ok := segmentHeader(b)
		if !ok {
			start = 0
		}
		units := parseUnits(b[max(start, g.read):])
		for _, unit := range units {
			if !ok || incarnation != s.incarnation {
				breakUnit(unit, ErrIncarnation.Error())
			}
			if g.unread {
				g.frames += len(unit)
			}
		}
		g.read, g.unread = g.size, false
		if len(units) > 0 {
			return units, nil
		}
	}
	return nil, nil
}

func (g *spoolSegment) readFile() ([]byte, error) {
	b, err := os.ReadFile(g.path)
	if g.file != nil && errors.Is(err, fs.ErrNotExist) {
		return io.ReadAll(io.NewSectionReader(g.file, 0, g.size))
	}
	return b, err
}

func segmentHeader(b []byte) (incarnation string, length int64, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(segmentMagic))
	if !ok {
		return "", 0, false
	}
	r := frameReader{b: rest}
	name := r.readBytes()
	return string(name), int64(len(b) - len(r.b)), r.err == nil
}

// parseUnits takes records apart. What isn't one becomes a broken frame with
// the bytes as they are; a unit that isn't whole is broken as well.
func parseUnits(b []byte) [][]*frame {
	var units [][]*frame
	var open []*frame
	for len(b) > 0 {
		f, rest := parseRecord(b)
		b = rest
		if f.broken == "" {
			open = append(open, f)
			if !f.more {
				units, open = append(units, open), nil
			}
			continue
		}
		units, open = append(closeBroken(units, open), []*frame{f}), nil
	}
	return closeBroken(units, open)
}

func closeBroken(units [][]*frame, open []*frame) [][]*frame {
	if len(open) == 0 {
		return units
	}
	breakUnit(open, "the spool lost events that were appended together with this one")
	return append(units, open)
}

func breakUnit(unit []*frame, why string) {
	for _, f := range unit {
		f.broken = cmp.Or(f.broken, why)
	}
}

// parseRecord returns the first record of b, or a broken frame of what precedes
// the next record that checks.
func parseRecord(b []byte) (f *frame, rest []byte) {
	if body, rest, ok := nextRecord(b); ok {
		f, err := parseFrame(body)
		if err != nil {
			return &frame{data: body, broken: "spool: " + err.Error()}, rest
		}
		return f, rest
	}
	magic := binary.BigEndian.AppendUint32(nil, frameMagic)
	for at := 1; ; at++ {
		i := bytes.Index(b[min(at, len(b)):], magic)
		if i < 0 {
			return &frame{data: b, broken: "the spool's checksum doesn't match: a torn or damaged write"}, nil
		}
		at += i
		if _, _, ok := nextRecord(b[at:]); ok {
			return &frame{data: b[:at], broken: "the spool's checksum doesn't match: a damaged write"}, b[at:]
		}
	}
}

func nextRecord(b []byte) (body, rest []byte, ok bool) {
	if len(b) < frameHeader || binary.BigEndian.Uint32(b) != frameMagic {
		return nil, nil, false
	}
	n := int64(binary.BigEndian.Uint32(b[4:]))
	if n > int64(len(b)-frameHeader) {
		return nil, nil, false
	}
	body = b[frameHeader : frameHeader+n]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[8:]) {
		return nil, nil, false
	}
	return body, b[frameHeader+n:], true
}

// resolveOldest forgets the n oldest frames. Segments that hold no others are removed.
func (s *spool) resolveOldest(n int) {
	for n > 0 && len(s.segments) > 0 {
		g := s.segments[0]
		k := min(n, g.frames)
		g.frames -= k
		n -= k
		if g.frames > 0 || s.writing && g == s.segments[len(s.segments)-1] {
			return
		}
		s.dropOldest()
	}
}

// dropOldest removes the oldest segment.
func (s *spool) dropOldest() {
	g := s.segments[0]
	s.size -= g.size
	_ = g.close() // nothing in it counts any more
	s.segments = s.segments[1:]
	s.stale = append(s.stale, g.path)
	s.remove()
}

// remove removes files that hold nothing any more, as far as that can be done.
func (s *spool) remove() {
	s.unremoved = nil
	s.stale = slices.DeleteFunc(s.stale, func(path string) bool {
		err := os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return true
		}
		s.unremoved = err
		return false
	})
}

// removeAll removes everything.
func (s *spool) removeAll() {
	_ = s.closeSegment() // nothing in it counts any more
	for len(s.segments) > 0 {
		s.dropOldest()
	}
	s.unwritten, s.robbed = nil, nil
	_ = os.Remove(s.dir) // fails if it isn't there, or something in it can't be removed
}

// spools is the folder of all spools of a process and of those it found there:
//
//	<dir>/lock
//	<dir>/<generation>/<lane>/<segment>.seg
//
// Each process that opens the folder writes to a generation of its own.
type spools struct {
	dir, incarnation string
	generation       int
	lock             *os.File
	found            []string // segments of earlier generations, in order
}

// openSpools takes the folder and lists what earlier processes left in it.
func openSpools(dir, incarnation string) (*spools, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("spool %s: %w", dir, err)
	}
	s := &spools{dir: dir, incarnation: incarnation, lock: lock, generation: 1}
	names, err := fs.Glob(os.DirFS(dir), "*/*/*.seg") // the folder's own name may have "[" or "*" in it
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(dir, name)
		s.found = append(s.found, path)
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err == nil {
			s.generation = max(s.generation, n+1)
		}
	}
	return s, nil
}

func (s *spools) laneSpool(i int, limit int64) *spool {
	if s == nil {
		return nil
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("%010d", s.generation), strconv.Itoa(i))
	return &spool{dir: dir, incarnation: s.incarnation, limit: limit}
}

// leftoverSpool returns what earlier processes left as one spool that is only read,
// or nil. Frames of one node are in their order: a generation has them all in
// one lane.
func (s *spools) leftoverSpool() *spool {
	if s == nil || len(s.found) == 0 {
		return nil
	}
	left := &spool{dir: filepath.Join(s.dir, "found"), incarnation: s.incarnation}
	for _, path := range s.found {
		g := &spoolSegment{path: path, unread: true}
		if info, err := os.Stat(path); err == nil {
			g.size = info.Size()
		}
		left.segments = append(left.segments, g)
		left.size += g.size
	}
	return left
}

// removeEmptyDirs removes the empty folders of earlier generations.
func (s *spools) removeEmptyDirs() {
	for _, path := range s.found {
		lane := filepath.Dir(path)
		_ = os.Remove(lane)               // fails if it isn't empty
		_ = os.Remove(filepath.Dir(lane)) // likewise
	}
}

// close gives the folder up.
func (s *spools) close() {
	if s == nil {
		return
	}
	_ = os.Remove(filepath.Join(s.dir, fmt.Sprintf("%010d", s.generation))) // fails if it isn't empty
	_ = s.lock.Close()
}

// lockFile opens a file that one process at a time can hold; closing it, or the
// end of the process, gives it up.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another process uses it")
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
