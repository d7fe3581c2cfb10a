package eventlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"
)

// frame is one event on its way to the stream.
type frame struct {
	run, node string // "": a dead letter
	epoch     uint64
	seq       uint64
	subject   string
	data      []byte            // the encoded event
	blobs     map[string][]byte // what has to be in the object store first, by SHA-256
	more      bool              // the next frame was appended together with this one

	// What its writer knew to be stored when the frame was spooled: for the first
	// frame of a writer in the spool, the event it follows.
	afterSeq, afterPos uint64

	origin trace.SpanContext // of the caller that appended it; not spooled

	w      *writerState // nil for a dead letter, and for a found frame until it is adopted
	broken string       // why a frame of the spool can't be stored
	gone   bool         // stored earlier, or with the dead letters
}

// byteSize is what the frame counts for in memory and in a batch.
func (f *frame) byteSize() int64 {
	n := len(f.subject) + len(f.data) + frameOverhead
	for _, b := range f.blobs {
		n += len(b)
	}
	return int64(n)
}

// frameOverhead stands for headers and bookkeeping.
const frameOverhead = 256

// writerKey names a writer: an epoch of a node is claimed once.
type writerKey struct {
	run, node string // "": a dead letter
	epoch     uint64
}

func (f *frame) writerKey() writerKey { return writerKey{f.run, f.node, f.epoch} }

func sizeOf(frames []*frame) int64 {
	var n int64
	for _, f := range frames {
		n += f.byteSize()
	}
	return n
}

// errFrame is the problem of a frame with a right checksum and a wrong content:
// another version wrote it.
var errFrame = errors.New("unknown form of frame")

const (
	frameVersion = 1
	frameMore    = 1 // flag
)

// appendFrame appends the spooled form of f.
func appendFrame(b []byte, f *frame) []byte {
	var flags byte
	if f.more {
		flags |= frameMore
	}
	b = append(b, frameVersion, flags)
	for _, n := range []uint64{f.epoch, f.seq, f.afterSeq, f.afterPos, uint64(len(f.blobs))} {
		b = binary.AppendUvarint(b, n)
	}
	for _, s := range []string{f.run, f.node, f.subject} {
		b = appendBytes(b, []byte(s))
	}
	b = appendBytes(b, f.data)
	for sum, data := range f.blobs {
		b = appendBytes(appendBytes(b, []byte(sum)), data)
	}
	return b
}

func appendBytes(b, s []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }

// parseFrame is the reverse of appendFrame. The frame shares memory with b.
func parseFrame(b []byte) (*frame, error) {
	if len(b) < 2 || b[0] != frameVersion {
		return nil, errFrame
	}
	r := frameReader{b: b[2:]}
	f := &frame{more: b[1]&frameMore != 0}
	f.epoch, f.seq, f.afterSeq, f.afterPos = r.readUint(), r.readUint(), r.readUint(), r.readUint()
	blobs := r.readUint()
	f.run, f.node, f.subject = string(r.readBytes()), string(r.readBytes()), string(r.readBytes())
	f.data = r.readBytes()
	for range blobs {
		if r.err != nil {
			break
		}
		if f.blobs == nil {
			f.blobs = map[string][]byte{}
		}
		f.blobs[string(r.readBytes())] = r.readBytes()
	}
	if r.err != nil || len(r.b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes left", errFrame, len(r.b))
	}
	return f, nil
}

// frameReader reads fields until one doesn't fit.
type frameReader struct {
	b   []byte
	err error
}

func (r *frameReader) readUint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.b, r.err = nil, errFrame
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *frameReader) readBytes() []byte {
	n := r.readUint()
	if n > uint64(len(r.b)) {
		r.b, r.err = nil, errFrame
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n:]
	return s
}
