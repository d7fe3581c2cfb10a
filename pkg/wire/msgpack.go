package wire

import (
	"errors"
	"math"
)

// The reader of single values: https://github.com/msgpack/msgpack/blob/master/spec.md.
// It reserves no memory on the word of a header, as msgpack/v5's decoder does; see
// docs/adr/0007-msgpack-writes-we-read.md.

const (
	codeFixed   = 0xa0 // a string of up to 31 bytes, with its length in the code
	codeNil     = 0xc0
	codeFalse   = 0xc2
	codeTrue    = 0xc3
	codeBin8    = 0xc4
	codeBin32   = 0xc6
	codeFloat   = 0xca
	codeDouble  = 0xcb
	codeUint8   = 0xcc
	codeUint16  = 0xcd
	codeUint32  = 0xce
	codeUint64  = 0xcf
	codeInt8    = 0xd0
	codeInt16   = 0xd1
	codeInt32   = 0xd2
	codeInt64   = 0xd3
	codeStr8    = 0xd9
	codeStr16   = 0xda
	codeStr32   = 0xdb
	codeArray16 = 0xdc
	codeArray32 = 0xdd
	codeMap16   = 0xde
	codeMap32   = 0xdf
)

func isString(c byte) bool { return c&0xe0 == codeFixed || c >= codeStr8 && c <= codeStr32 }

func isBin(c byte) bool { return c >= codeBin8 && c <= codeBin32 }

func isArray(c byte) bool { return c&0xf0 == 0x90 || c == codeArray16 || c == codeArray32 }

func isMap(c byte) bool { return c&0xf0 == 0x80 || c == codeMap16 || c == codeMap32 }

// stringHeader is the length of the shortest header of a string of n bytes.
func stringHeader(n int) int {
	switch {
	case n < 32:
		return 1
	case n <= math.MaxUint8:
		return 2
	case n <= math.MaxUint16:
		return 3
	default:
		return 5
	}
}

// binHeader is [stringHeader] for binary data.
func binHeader(n int) int { return max(2, stringHeader(n)) }

// containerHeader is [stringHeader] for maps and arrays of n entries.
func containerHeader(n int) int {
	switch {
	case n < 16:
		return 1
	case n <= math.MaxUint16:
		return 3
	default:
		return 5
	}
}

// readSize reads the w-byte size behind a code.
func readSize(b []byte, w int) (n int, rest []byte, err error) {
	if len(b) < 1+w {
		return 0, nil, ErrSyntax
	}
	for _, c := range b[1 : 1+w] {
		n = n<<8 | int(c)
	}
	if n < 0 { // on 32 bits
		return 0, nil, ErrSyntax
	}
	return n, b[1+w:], nil
}

// readString reads a string; the result is a part of b.
func readString(b []byte) (s, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, ErrSyntax
	}
	var n int
	switch c := b[0]; {
	case c&0xe0 == codeFixed:
		n, rest = int(c&0x1f), b[1:]
	case c == codeStr8:
		n, rest, err = readSize(b, 1)
	case c == codeStr16:
		n, rest, err = readSize(b, 2)
	case c == codeStr32:
		n, rest, err = readSize(b, 4)
	default:
		return nil, nil, errKind
	}
	if err != nil || len(rest) < n {
		return nil, nil, ErrSyntax
	}
	return rest[:n], rest[n:], nil
}

// readBin reads binary data; the result is a part of b.
func readBin(b []byte) (data, rest []byte, err error) {
	if len(b) == 0 || !isBin(b[0]) {
		return nil, nil, errKind
	}
	n, rest, err := readSize(b, 1<<(b[0]-codeBin8))
	if err != nil || len(rest) < n {
		return nil, nil, ErrSyntax
	}
	return rest[:n], rest[n:], nil
}

// readMapHeader reads the number of entries, which is at most what the bytes
// behind it can hold.
func readMapHeader(b []byte) (n int, rest []byte, err error) {
	return readHeader(b, 0x80, codeMap16, codeMap32, 2)
}

// readArrayHeader is [readMapHeader] for arrays.
func readArrayHeader(b []byte) (n int, rest []byte, err error) {
	return readHeader(b, 0x90, codeArray16, codeArray32, 1)
}

func readHeader(b []byte, fixed, code16, code32 byte, least int) (n int, rest []byte, err error) {
	if len(b) == 0 {
		return 0, nil, ErrSyntax
	}
	switch c := b[0]; {
	case c&0xf0 == fixed:
		n, rest = int(c&0x0f), b[1:]
	case c == code16:
		n, rest, err = readSize(b, 2)
	case c == code32:
		n, rest, err = readSize(b, 4)
	default:
		return 0, nil, errKind
	}
	if err != nil || n > len(rest)/least {
		return 0, nil, ErrSyntax
	}
	return n, rest, nil
}

// number is an integer or a float as it stands in the input.
type number struct {
	u     uint64  // an integer that is not negative
	i     int64   // a negative integer
	x     float64 // a float
	class byte    // 'u', 'i' or 'x'
}

func readNumber(b []byte) (n number, rest []byte, err error) {
	if len(b) == 0 {
		return n, nil, ErrSyntax
	}
	c := b[0]
	if c < 0x80 || c >= 0xe0 {
		if int8(c) < 0 {
			return number{i: int64(int8(c)), class: 'i'}, b[1:], nil
		}
		return number{u: uint64(c), class: 'u'}, b[1:], nil
	}
	width := 0
	switch c {
	case codeUint8, codeInt8:
		width = 1
	case codeUint16, codeInt16:
		width = 2
	case codeUint32, codeInt32, codeFloat:
		width = 4
	case codeUint64, codeInt64, codeDouble:
		width = 8
	default:
		return n, nil, errKind
	}
	if len(b) < 1+width {
		return n, nil, ErrSyntax
	}
	var u uint64
	for _, d := range b[1 : 1+width] {
		u = u<<8 | uint64(d)
	}
	rest = b[1+width:]
	switch c {
	case codeFloat:
		return number{x: float64(math.Float32frombits(uint32(u))), class: 'x'}, rest, nil
	case codeDouble:
		return number{x: math.Float64frombits(u), class: 'x'}, rest, nil
	case codeInt8, codeInt16, codeInt32, codeInt64:
		shift := 64 - 8*width
		if i := int64(u<<shift) >> shift; i < 0 {
			return number{i: i, class: 'i'}, rest, nil
		}
	}
	return number{u: u, class: 'u'}, rest, nil
}

func readInt(b []byte) (int64, []byte, error) {
	n, rest, err := readNumber(b)
	if err != nil {
		return 0, nil, err
	}
	if n.class == 'x' {
		n = integralNumber(n.x)
	}
	switch {
	case n.class == 'i':
		return n.i, rest, nil
	case n.class == 'u' && n.u <= math.MaxInt64:
		return int64(n.u), rest, nil
	}
	return 0, nil, errKind
}

func readUint(b []byte) (uint64, []byte, error) {
	n, rest, err := readNumber(b)
	if err != nil {
		return 0, nil, err
	}
	if n.class == 'x' {
		n = integralNumber(n.x)
	}
	if n.class != 'u' {
		return 0, nil, errKind
	}
	return n.u, rest, nil
}

func readFloat(b []byte) (float64, []byte, error) {
	n, rest, err := readNumber(b)
	switch {
	case err != nil:
		return 0, nil, err
	case n.class == 'i':
		return float64(n.i), rest, nil
	case n.class == 'u':
		return float64(n.u), rest, nil
	case isFinite(n.x):
		return n.x, rest, nil
	}
	return 0, nil, errKind
}

func readBool(b []byte) (bool, []byte, error) {
	if len(b) == 0 {
		return false, nil, ErrSyntax
	}
	switch b[0] {
	case codeTrue:
		return true, b[1:], nil
	case codeFalse:
		return false, b[1:], nil
	}
	return false, nil, errKind
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// skipValue returns what follows the first value of b.
func skipValue(b []byte) ([]byte, error) {
	for left := 1; left > 0; left-- {
		if len(b) == 0 {
			return nil, errEnd
		}
		c := b[0]
		var n int
		var err error
		switch {
		case c == codeNil, c == codeTrue, c == codeFalse:
			b = b[1:]
		case isString(c):
			_, b, err = readString(b)
		case isBin(c):
			_, b, err = readBin(b)
		case isArray(c):
			n, b, err = readArrayHeader(b)
			left += n
		case isMap(c):
			n, b, err = readMapHeader(b)
			left += 2 * n
		default:
			_, b, err = readNumber(b)
		}
		switch {
		case errors.Is(err, errKind):
			return nil, errExt
		case err != nil:
			return nil, errEnd
		}
	}
	return b, nil
}

// integralNumber returns x as an integer if it is one of 64 bits, else as a float.
func integralNumber(x float64) number {
	switch {
	case x != math.Trunc(x), x >= 1<<64, x < -1<<63:
		return number{x: x, class: 'x'}
	case x < 0:
		return number{i: int64(x), class: 'i'}
	}
	return number{u: uint64(x), class: 'u'}
}
