package wire

import (
	"bytes"
	"sync"
	"unsafe"

	"github.com/vmihailenco/msgpack/v5"
)

// packer writes values into a buffer, each in its shortest form. The buffer takes
// everything, so that the encoder, which writes to the packer itself, never fails.
type packer struct {
	buf []byte
	enc *msgpack.Encoder
}

func newPacker() *packer {
	p := new(packer)
	p.enc = msgpack.NewEncoder(p)
	return p
}

// packers recycles packers with their buffers.
var packers = sync.Pool{New: func() any { return newPacker() }}

func packWith(write func(*packer) error) (Raw, error) {
	p := packers.Get().(*packer)
	defer func() {
		p.empty()
		packers.Put(p)
	}()
	if err := write(p); err != nil {
		return nil, err
	}
	return bytes.Clone(p.buf), nil
}

// maxPooled bounds the buffers that are kept: one huge event must not stay in
// memory for ever.
const maxPooled = 1 << 20

// empty makes the packer ready for another value.
func (p *packer) empty() {
	if p.buf = p.buf[:0]; cap(p.buf) > maxPooled {
		p.buf = nil
	}
}

// Write implements [io.Writer].
func (p *packer) Write(b []byte) (int, error) {
	p.buf = append(p.buf, b...)
	return len(b), nil
}

// WriteByte implements [io.ByteWriter], which spares the encoder a slice per byte.
func (p *packer) WriteByte(c byte) error {
	p.buf = append(p.buf, c)
	return nil
}

func (p *packer) putNil()             { _ = p.enc.EncodeNil() }
func (p *packer) putBool(v bool)      { _ = p.enc.EncodeBool(v) }
func (p *packer) putInt(n int64)      { _ = p.enc.EncodeInt(n) }
func (p *packer) putUint(n uint64)    { _ = p.enc.EncodeUint(n) }
func (p *packer) putString(s string)  { _ = p.enc.EncodeString(s) }
func (p *packer) putArrayLen(n int)   { _ = p.enc.EncodeArrayLen(n) }
func (p *packer) putMapLen(n int)     { _ = p.enc.EncodeMapLen(n) }
func (p *packer) putText(text []byte) { p.putString(unsafe.String(unsafe.SliceData(text), len(text))) }

// maxFixed is the length in bytes of the longest string with a header of one byte.
const maxFixed = 31

// putBytes appends binary data; the encoder would make null of a nil slice.
func (p *packer) putBytes(b []byte) {
	_ = p.enc.EncodeBytesLen(len(b))
	p.buf = append(p.buf, b...)
}

// putNumber appends a finite float, as an integer if it is one of 64 bits:
// JSON doesn't tell 1e17 from 100000000000000000.
func (p *packer) putNumber(x float64) {
	switch n := integralNumber(x); n.class {
	case 'u':
		p.putUint(n.u)
	case 'i':
		p.putInt(n.i)
	default:
		_ = p.enc.EncodeFloat64(x)
	}
}

// leaveRoom leaves room for the first byte of a header, and returns where.
func (p *packer) leaveRoom() int {
	p.buf = append(p.buf, 0)
	return len(p.buf) - 1
}

// insertHeader moves the header that was written last to at, where there is room for its
// first byte; start is where it begins.
func (p *packer) insertHeader(at, start int) {
	var header [5]byte
	n := copy(header[:], p.buf[start:])
	copy(p.buf[at+n:], p.buf[at+1:start])
	copy(p.buf[at:], header[:n])
	p.buf = p.buf[:start+n-1]
}
