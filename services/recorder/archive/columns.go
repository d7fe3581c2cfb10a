package archive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// columns are the events of a segment by field, since the values of a field resemble each other:
//
//   - the bytes of all events' data;
//   - the number of shapes, and each shape behind its length: the names of an event's fields,
//     in order, each behind a byte of its length, and 0x80 if the value is a whole number;
//   - the columns, each behind its length: of each event its shape, position, time, mark and
//     note, then those of the fields, in the order in which the shapes have them first.
//
// Lengths and shapes are varints. A number is a varint of the difference from the one before
// it in its column. Any other value is its length + 1 and its bytes as they are in the event,
// or 0 if it is the one before. What isn't a map of few fields with short names, each header
// in its shortest form, has an empty shape, and is a value as a whole.
//
// They are used for one segment after the other, and know the shapes of earlier ones.
type columns struct {
	raw                          []byte
	fixed                        [5]column
	shape, pos, time, mark, note *column   // the fixed ones
	list                         []*column // those of this segment
	shapes                       []*shape  // those of this segment
	names                        map[string]*column
	known                        map[string]*shape
}

// shape is what events with the same fields have in common.
type shape struct {
	fields  []byte
	columns []*column
	number  int // in the segment, from 1
}

// column is the values of one field: as written so far, or as they are still to be read.
type column struct {
	data   []byte
	last   []byte // the value before
	number uint64 // the number before
	bad    bool   // it ended too early
	used   bool   // in the segment
}

const (
	maxName    = 31      // of a field in a shape, in bytes: the wire has a header of one byte for it
	maxFields  = 255     // of a shape
	numberFlag = 0x80    // of a name whose values are numbers
	maxKnown   = 1000    // shapes that are kept in mind
	maxKept    = 1 << 20 // bytes of a segment whose memory is kept
)

// reset makes room for another segment.
func (c *columns) reset() {
	for _, s := range c.shapes {
		s.number = 0
	}
	for _, one := range c.list {
		*one = column{data: one.data[:0]}
	}
	c.list, c.shapes = c.list[:0], c.shapes[:0]
	if c.known == nil || len(c.known) > maxKnown || cap(c.raw) > maxKept {
		*c = columns{known: map[string]*shape{}, names: map[string]*column{}}
		c.shape, c.pos, c.time, c.mark, c.note = &c.fixed[0], &c.fixed[1], &c.fixed[2], &c.fixed[3], &c.fixed[4]
	}
	for i := range c.fixed {
		c.use(&c.fixed[i])
	}
}

func (c *columns) use(one *column) {
	if !one.used {
		one.used = true
		c.list = append(c.list, one)
	}
}

// addShape returns the shape of such fields, which the segment has from now on, or nil if they aren't any.
func (c *columns) addShape(fields []byte) *shape {
	s, ok := c.known[string(fields)]
	if !ok {
		s = &shape{fields: bytes.Clone(fields)}
		for rest := s.fields; len(rest) > 0 || s.columns == nil; {
			size := 0 // of the name of what has an empty shape
			if len(rest) > 0 {
				size = 1 + int(rest[0]&^numberFlag)
			}
			if size > 1+maxName || size > len(rest) || len(s.columns) == maxFields {
				return nil
			}
			one, ok := c.names[string(rest[:size])]
			if !ok {
				one = new(column)
				c.names[string(rest[:size])] = one
			}
			s.columns, rest = append(s.columns, one), rest[size:]
		}
		c.known[string(fields)] = s
	}
	if s.number == 0 {
		c.shapes = append(c.shapes, s)
		s.number = len(c.shapes)
		for _, one := range s.columns {
			c.use(one)
		}
	}
	return s
}

// pack returns the events as columns. They are valid until the next call.
func (c *columns) pack(list []Event) []byte {
	c.reset()
	size := 0
	var fields []byte
	var values []wire.Raw
	for i := range list {
		e := &list[i]
		fields, values = splitEvent(fields[:0], values[:0], e.Data)
		s := c.addShape(fields)
		c.shape.data = binary.AppendUvarint(c.shape.data, uint64(s.number-1))
		c.pos.putNumber(e.Pos)
		c.time.putNumber(uint64(e.Time))
		c.mark.putValue([]byte(e.Mark))
		c.note.putValue([]byte(e.Note))
		for j, one := range s.columns {
			if n, ok := numberOf(values[j]); ok && len(fields) > 0 {
				one.putNumber(n)
			} else {
				one.putValue(values[j])
			}
		}
		size += len(e.Data)
	}
	b := binary.AppendUvarint(c.raw[:0], uint64(size))
	b = binary.AppendUvarint(b, uint64(len(c.shapes)))
	for _, s := range c.shapes {
		b = append(binary.AppendUvarint(b, uint64(len(s.fields))), s.fields...)
	}
	for _, one := range c.list {
		b = append(binary.AppendUvarint(b, uint64(len(one.data))), one.data...)
	}
	c.raw = b
	return b
}

// splitEvent appends the shape of an event and the values of its fields. If the event can't be put together of
// them again, its shape is empty and it is the only value.
func splitEvent(fields []byte, values []wire.Raw, data []byte) ([]byte, []wire.Raw) {
	size := 0
	for name, v := range wire.Raw(data).Fields() {
		if len(name) > maxName || len(values) == maxFields {
			break
		}
		head := byte(len(name))
		if _, ok := numberOf(v); ok {
			head |= numberFlag
		}
		fields, values = append(append(fields, head), name...), append(values, v)
		size += 1 + len(name) + len(v)
	}
	var short [3]byte
	head := appendHead(short[:0], len(values))
	if len(values) == 0 || len(head)+size != len(data) || !bytes.HasPrefix(data, head) { // a header is too long, or something isn't a field
		return fields[:0], append(values[:0], data)
	}
	return fields, values
}

// unpack appends the events that raw has as columns to a list. They share memory, of which raw isn't a part.
func (c *columns) unpack(list []Event, raw []byte) ([]Event, error) {
	c.reset()
	c.raw = raw[:0]
	r, before := &column{data: raw}, len(list)
	size := r.readLength()
	for range min(r.readLength(), SegmentEvents) {
		if c.addShape(r.readBytes(r.readLength())) == nil {
			return nil, fmt.Errorf("%w: a shape ends within a name", ErrSegment)
		}
	}
	for _, one := range c.list {
		one.data = r.readBytes(r.readLength())
	}
	if r.bad || len(r.data) > 0 || size > maxUnpacked {
		return nil, fmt.Errorf("%w: a column is too long, or one is missing", ErrSegment)
	}
	list = slices.Grow(list, min(len(c.shape.data), SegmentEvents))
	data := make([]byte, 0, min(size, uint64(16*len(raw)))) // a header's word isn't enough for more
	for len(c.shape.data) > 0 && uint64(len(data)) <= size {
		at, start := c.shape.readLength(), len(data)
		if at >= uint64(len(c.shapes)) || len(list)-before == SegmentEvents {
			return nil, fmt.Errorf("%w: event %d has no shape", ErrSegment, len(list)-before)
		}
		e := Event{Pos: c.pos.readNumber(), Time: int64(c.time.readNumber()), Mark: string(c.mark.readValue()), Note: string(c.note.readValue())}
		data = c.shapes[at].appendEvent(data, size)
		e.Data = data[start:len(data):len(data)]
		list = append(list, e)
	}
	for _, one := range c.list {
		if one.bad || len(one.data) > 0 || uint64(len(data)) != size {
			return nil, fmt.Errorf("%w: its columns aren't of as many events", ErrSegment)
		}
	}
	return list, nil
}

// appendEvent appends the next event of its shape, or a part of it that is longer than so many bytes.
func (s *shape) appendEvent(b []byte, most uint64) []byte {
	rest := s.fields
	if len(rest) == 0 {
		return append(b, s.columns[0].readValue()...)
	}
	b = appendHead(b, len(s.columns))
	for _, one := range s.columns {
		size := int(rest[0] &^ numberFlag)
		b = append(b, 0xa0|byte(size))
		b = append(b, rest[1:1+size]...)
		if rest[0]&numberFlag != 0 {
			b = appendNumber(b, one.readNumber())
		} else {
			b = append(b, one.readValue()...)
		}
		if rest = rest[1+size:]; uint64(len(b)) > most {
			break
		}
	}
	return b
}

func (c *column) putNumber(n uint64) {
	c.data = binary.AppendVarint(c.data, int64(n-c.number))
	c.number = n
}

func (c *column) readNumber() uint64 {
	delta, n := binary.Varint(c.data)
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.data, c.number = c.data[n:], c.number+uint64(delta)
	return c.number
}

func (c *column) putValue(v []byte) {
	if bytes.Equal(v, c.last) {
		c.data = append(c.data, 0)
		return
	}
	c.data = append(binary.AppendUvarint(c.data, uint64(len(v))+1), v...)
	c.last = v
}

func (c *column) readValue() []byte {
	if n := c.readLength(); n > 0 {
		c.last = c.readBytes(n - 1)
	}
	return c.last
}

func (c *column) readLength() uint64 {
	v, n := binary.Uvarint(c.data)
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.data = c.data[n:]
	return v
}

func (c *column) readBytes(n uint64) []byte {
	if n > uint64(len(c.data)) {
		c.bad = true
		return nil
	}
	b := c.data[:n:n]
	c.data = c.data[n:]
	return b
}

// appendHead appends the header of a map of so many fields.
func appendHead(b []byte, fields int) []byte {
	if fields < 16 {
		return append(b, 0x80|byte(fields))
	}
	return append(b, 0xde, 0, byte(fields))
}

// numberOf returns the value of a whole number in its shortest form.
func numberOf(v []byte) (n uint64, ok bool) {
	switch {
	case len(v) == 0 || v[0] >= 0x80 && v[0] < 0xcc || v[0] > 0xcf:
		return 0, false
	case v[0] < 0x80:
		return uint64(v[0]), true
	}
	for _, c := range v[1:] {
		n = n<<8 | uint64(c)
	}
	var short [9]byte
	return n, len(appendNumber(short[:0], n)) == len(v)
}

// appendNumber appends a whole number in its shortest form, as the wire has it.
func appendNumber(b []byte, n uint64) []byte {
	switch {
	case n < 0x80:
		return append(b, byte(n))
	case n <= 0xff:
		return append(b, 0xcc, byte(n))
	case n <= 0xffff:
		return append(b, 0xcd, byte(n>>8), byte(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}
