package archive

import (
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"code.wake.dev/wake/services/recorder/internal/database"
)

// How data is written. Another dictionary, or other columns, are another codec.
const (
	Columns = 2 // a segment's: [columns], in a zstd frame with a checksum, with [dictionary]
	Loose   = 3 // a tail's, which has no column that says so: [columns] as they are
)

// dictionary is what many recordings of agents have in common, the most common
// last. `go test -tags shareddata -run SharedDataDictionary ./services/recorder -update` made it.
//
//go:embed dictionary.zdict
var dictionary []byte

// SegmentEvents is how many events a segment has at most.
const SegmentEvents = 1000

// maxUnpacked bounds what a segment may grow to when it is unpacked.
const maxUnpacked = 256 << 20

// ErrSegment means that a segment's data can't be read.
var ErrSegment = errors.New("the data is damaged")

// Codec packs and unpacks segments. Any number may unpack at the same time;
// one packs.
type Codec struct {
	Enc     *zstd.Encoder
	Dec     *zstd.Decoder
	packing columns
	packed  []byte    // the last one
	reading sync.Pool // of columns
}

// NewCodec returns one.
func NewCodec() (*Codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderDictRaw(Columns, dictionary))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(database.Readers), zstd.WithDecoderMaxMemory(maxUnpacked),
		zstd.WithDecoderDictRaw(Columns, dictionary))
	if err != nil {
		return nil, err
	}
	return &Codec{Enc: enc, Dec: dec}, nil
}

// Pack returns the data of a segment. It is valid until the next call.
func (z *Codec) Pack(list []Event) []byte {
	z.packed = z.Enc.EncodeAll(z.packing.pack(list), z.packed[:0])
	return z.packed
}

// PackLoose returns the data of a part of a tail. It is valid until the next call.
func (z *Codec) PackLoose(list []Event) []byte { return z.packing.pack(list) }

// Unpack appends the events of a segment, or of a part of a tail, to a list. They share memory, of which data isn't a part.
func (z *Codec) Unpack(list []Event, codec int, data []byte) ([]Event, error) {
	c, ok := z.reading.Get().(*columns)
	if !ok {
		c = new(columns)
	}
	defer z.reading.Put(c)
	switch codec {
	case Columns:
		raw, err := z.Dec.DecodeAll(data, c.raw[:0])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSegment, err)
		}
		return c.unpack(list, raw)
	case Loose:
		return c.unpack(list, append(c.raw[:0], data...))
	default:
		return nil, fmt.Errorf("%w: codec %d", ErrSegment, codec)
	}
}
