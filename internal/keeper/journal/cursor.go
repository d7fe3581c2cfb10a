package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Cursor reads a journal from an offset on, record by record, while it is written or
// after. It belongs to one goroutine.
type Cursor struct {
	journal *Journal // nil: not being written
	dir     string
	options Options
	from    uint64

	file   *os.File
	reader reader
	base   uint64 // of the segment that is read
	end    uint64 // behind the last record that was returned
}

// Cursor returns a cursor on the journal from an offset on.
func (j *Journal) Cursor(from uint64) *Cursor {
	return &Cursor{journal: j, dir: j.dir, from: from, end: from}
}

// Open returns a cursor on the journal in a folder that no keeper writes now, from its last
// resting point on.
func Open(dir string, o Options) (*Cursor, Rest, error) {
	r, err := ReadRest(dir, o)
	if err != nil {
		return nil, Rest{}, err
	}
	if _, err := listSegments(dir); err != nil {
		return nil, Rest{}, err
	}
	return &Cursor{dir: dir, options: o, from: r.Offset, end: r.Offset}, r, nil
}

// Next returns the next record. At the end it returns io.EOF if the journal is closed or
// isn't being written, else a nil record and a channel that is closed when there may be
// more. The first record may be the rest of one that began before the offset. The end of the
// program may come more than once.
func (c *Cursor) Next() (*Record, <-chan struct{}, error) {
	for {
		more, closed := c.growth()
		if c.file == nil {
			if err := c.openFirst(); err != nil {
				return nil, nil, err
			}
		}
		r, err := c.reader.nextRecord()
		if err != nil { // the end of the segment, or of what is written of it
			next, e := c.nextSegment()
			switch {
			case e != nil:
				return nil, nil, e
			case next:
				continue
			case c.journal == nil || closed:
				return nil, nil, io.EOF
			}
			return nil, more, nil
		}
		if r.Kind == Exit {
			return &r, nil, nil
		}
		if r.endOffset() <= c.from {
			continue
		}
		if r.Offset < c.from {
			r.Data, r.Offset = r.Data[c.from-r.Offset:], c.from
		}
		c.end = r.endOffset()
		return &r, nil, nil
	}
}

// growth returns the channel that tells of growth after this moment.
func (c *Cursor) growth() (grown <-chan struct{}, closed bool) {
	if c.journal == nil {
		return nil, true
	}
	c.journal.mu.Lock()
	defer c.journal.mu.Unlock()
	return c.journal.grown, c.journal.closed
}

// openFirst opens the segment in which the cursor begins.
func (c *Cursor) openFirst() error {
	segments, err := c.segmentList()
	if err != nil {
		return err
	}
	if len(segments) == 0 {
		return io.EOF
	}
	at := segments[0]
	for _, s := range segments {
		if s.base <= c.end {
			at = s
		}
	}
	return c.openSegment(at.base)
}

func (c *Cursor) segmentList() ([]segment, error) {
	if c.journal == nil {
		return listSegments(c.dir)
	}
	c.journal.mu.Lock()
	defer c.journal.mu.Unlock()
	return slices.Clone(c.journal.segments), nil
}

func (c *Cursor) openSegment(base uint64) error {
	f, err := os.Open(filepath.Join(c.dir, fmt.Sprintf("%020d", base)))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if c.file != nil {
		_ = c.file.Close()
	}
	box, err := newBox(c.options.Key)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if c.journal != nil {
		box = c.journal.box
	}
	c.file, c.base, c.reader = f, base, reader{box: box, file: f}
	return nil
}

// nextSegment goes to the following segment, if there is one.
func (c *Cursor) nextSegment() (bool, error) {
	segments, err := c.segmentList()
	if err != nil {
		return false, err
	}
	for _, s := range segments {
		if s.base <= c.base {
			continue
		}
		// The writer may have ended this segment after it was read: what it has
		// put there since comes first.
		at := c.reader.at
		if _, err := c.reader.nextRecord(); err == nil {
			c.reader.at = at
			return true, nil
		}
		return true, c.openSegment(s.base)
	}
	return false, nil
}

// Offset returns the offset behind the last record that was returned.
func (c *Cursor) Offset() uint64 { return c.end }

// Close closes the cursor.
func (c *Cursor) Close() error {
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}
