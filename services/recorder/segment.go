package recorder

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// codecZstd says how a segment's data is written: a zstd frame with a checksum,
// of events one after the other. Of each: its position and its time as varints,
// the latter signed, both as differences from the event before; the length of
// its mark, the mark, and if there is one the length of the note and the note;
// the length of the data, the data.
const codecZstd = 1

// maxUnpacked bounds what a segment may grow to when it is unpacked.
const maxUnpacked = 256 << 20

// errSegment means that a segment's data can't be read.
var errSegment = errors.New("the data is damaged")

// zipper packs and unpacks segments. Any number may unpack at the same time;
// one packs.
type zipper struct {
	enc         *zstd.Encoder
	dec         *zstd.Decoder
	raw, packed []byte // of the last one that was packed
}

func newZipper() (*zipper, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(readers), zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, err
	}
	return &zipper{enc: enc, dec: dec}, nil
}

// pack returns the data of a segment. It is valid until the next call.
func (z *zipper) pack(list []stored) []byte {
	b, pos, time := z.raw[:0], uint64(0), int64(0)
	for i := range list {
		s := &list[i]
		b = binary.AppendUvarint(b, s.pos-pos)
		b = binary.AppendVarint(b, s.time-time)
		b = appendText(b, s.mark)
		if s.mark != "" {
			b = appendText(b, s.note)
		}
		b = append(binary.AppendUvarint(b, uint64(len(s.data))), s.data...)
		pos, time = s.pos, s.time
	}
	z.raw = b
	z.packed = z.enc.EncodeAll(b, z.packed[:0])
	return z.packed
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// unpack returns the events of a segment, which share memory.
func (z *zipper) unpack(codec int, data []byte) ([]stored, error) {
	if codec != codecZstd {
		return nil, fmt.Errorf("%w: codec %d", errSegment, codec)
	}
	b, err := z.dec.DecodeAll(data, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSegment, err)
	}
	r := frames{rest: b}
	list := make([]stored, 0, segmentEvents)
	for len(r.rest) > 0 && !r.bad {
		list = append(list, r.next())
	}
	if r.bad {
		return nil, fmt.Errorf("%w: it ends within event %d", errSegment, len(list))
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

func (r *frames) next() stored {
	r.pos += r.uvarint()
	if delta, n := binary.Varint(r.rest); n > 0 {
		r.time, r.rest = r.time+delta, r.rest[n:]
	} else {
		r.bad = true
	}
	s := stored{pos: r.pos, time: r.time, mark: string(r.bytes())}
	if s.mark != "" {
		s.note = string(r.bytes())
	}
	s.data = r.bytes()
	return s
}

func (r *frames) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *frames) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}
