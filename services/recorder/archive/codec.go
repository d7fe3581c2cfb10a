package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/klauspost/compress/zstd"

	"code.wake.dev/wake/services/recorder/internal/database"
)

// Zstd says how a segment's data is written: a zstd frame with a checksum,
// of events one after the other. Of each: its position and its time as varints,
// the latter signed, both as differences from the event before; the length of
// its mark, the mark, and if there is one the length of the note and the note;
// the length of the data, the data.
const Zstd = 1

// SegmentEvents is how many events a segment has at most.
const SegmentEvents = 1000

// maxUnpacked bounds what a segment may grow to when it is unpacked.
const maxUnpacked = 256 << 20

// ErrSegment means that a segment's data can't be read.
var ErrSegment = errors.New("the data is damaged")

// Codec packs and unpacks segments. Any number may unpack at the same time;
// one packs.
type Codec struct {
	Enc         *zstd.Encoder
	Dec         *zstd.Decoder
	raw, packed []byte // of the last one that was packed
}

// NewCodec returns one.
func NewCodec() (*Codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(database.Readers), zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, err
	}
	return &Codec{Enc: enc, Dec: dec}, nil
}

// Pack returns the data of a segment. It is valid until the next call.
func (z *Codec) Pack(list []Event) []byte {
	b, pos, time := z.raw[:0], uint64(0), int64(0)
	for i := range list {
		s := &list[i]
		b = binary.AppendUvarint(b, s.Pos-pos)
		b = binary.AppendVarint(b, s.Time-time)
		b = appendText(b, s.Mark)
		if s.Mark != "" {
			b = appendText(b, s.Note)
		}
		b = append(binary.AppendUvarint(b, uint64(len(s.Data))), s.Data...)
		pos, time = s.Pos, s.Time
	}
	z.raw = b
	z.packed = z.Enc.EncodeAll(b, z.packed[:0])
	return z.packed
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Unpack appends the events of a segment, which share memory, to a list.
func (z *Codec) Unpack(list []Event, codec int, data []byte) ([]Event, error) {
	if codec != Zstd {
		return nil, fmt.Errorf("%w: codec %d", ErrSegment, codec)
	}
	b, err := z.Dec.DecodeAll(data, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSegment, err)
	}
	r := frames{rest: b}
	before := len(list)
	for list = slices.Grow(list, SegmentEvents); len(r.rest) > 0 && !r.bad; {
		list = append(list, r.nextEvent())
	}
	if r.bad {
		return nil, fmt.Errorf("%w: it ends within event %d", ErrSegment, len(list)-before)
	}
	return list, nil
}

// frames reads the events of a segment.
type frames struct {
	rest []byte
	bad  bool
	pos  uint64
	time int64
}

func (r *frames) nextEvent() Event {
	r.pos += r.readUvarint()
	if delta, n := binary.Varint(r.rest); n > 0 {
		r.time, r.rest = r.time+delta, r.rest[n:]
	} else {
		r.bad = true
	}
	s := Event{Pos: r.pos, Time: r.time, Mark: string(r.readBytes())}
	if s.Mark != "" {
		s.Note = string(r.readBytes())
	}
	s.Data = r.readBytes()
	return s
}

func (r *frames) readUvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *frames) readBytes() []byte {
	n := r.readUvarint()
	if n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}
