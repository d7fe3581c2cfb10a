package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// MaxDepth bounds the nesting of values: so many arrays and maps may stand
// inside each other. Deeper ones are refused.
const MaxDepth = 256

// maxDocument bounds the nesting of what holds values: an event in JSON, or the
// state that a fork carries.
const maxDocument = 2 * MaxDepth

// Canonical returns the one value that b holds in canonical form.
func Canonical(b []byte) (Raw, error) {
	value, rest, err := readRaw(b, MaxDepth)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, ErrTrailing
	}
	return value, nil
}

// readRaw reads one value and returns it in canonical form, not sharing memory
// with b.
func readRaw(b []byte, depth int) (value Raw, rest []byte, err error) {
	rest, done, err := scanValue(b, depth)
	if err != nil {
		return nil, nil, err
	}
	in := b[:len(b)-len(rest)]
	if done {
		return bytes.Clone(in), rest, nil
	}
	value, err = packWith(func(p *packer) error { _, err := p.putCanonical(in); return err })
	return value, rest, err
}

// putRaw appends a value that a caller gave, in canonical form.
func (p *packer) putRaw(v Raw, depth int) error {
	rest, done, err := scanValue(v, depth)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return ErrTrailing
	case done:
		p.buf = append(p.buf, v...)
		return nil
	}
	_, err = p.putCanonical(v)
	return err
}

// scanValue checks the first value of b and returns what follows it. It needs no
// memory. done reports that the value is canonical.
func scanValue(b []byte, depth int) (rest []byte, done bool, err error) {
	if len(b) == 0 {
		return nil, false, errEnd
	}
	switch c := b[0]; {
	case c < 0x80, c >= 0xe0, c == codeNil, c == codeTrue, c == codeFalse:
		return b[1:], true, nil
	case isString(c):
		s, rest, err := readString(b)
		if err != nil {
			return nil, false, errEnd
		}
		if !utf8.Valid(s) {
			return nil, false, errUTF8
		}
		return rest, len(b)-len(rest)-len(s) == stringHeader(len(s)), nil
	case isBin(c):
		data, rest, err := readBin(b)
		if err != nil {
			return nil, false, errEnd
		}
		return rest, len(b)-len(rest)-len(data) == binHeader(len(data)), nil
	case isArray(c):
		return scanArray(b, depth)
	case isMap(c):
		return scanMap(b, depth)
	}
	n, rest, err := readNumber(b)
	switch {
	case errors.Is(err, errKind):
		return nil, false, errExt
	case err != nil:
		return nil, false, errEnd
	case n.class == 'x' && !isFinite(n.x):
		return nil, false, errFinite
	}
	return rest, n.shortestCode() == b[0], nil
}

func scanArray(b []byte, depth int) (rest []byte, done bool, err error) {
	n, rest, err := readArrayHeader(b)
	if err != nil {
		return nil, false, errEnd
	}
	if depth == 0 {
		return nil, false, ErrDepth
	}
	done = len(b)-len(rest) == containerHeader(n)
	for range n {
		var ok bool
		if rest, ok, err = scanValue(rest, depth-1); err != nil {
			return nil, false, err
		}
		done = done && ok
	}
	return rest, done, nil
}

func scanMap(b []byte, depth int) (rest []byte, done bool, err error) {
	n, rest, err := readMapHeader(b)
	if err != nil {
		return nil, false, errEnd
	}
	if depth == 0 {
		return nil, false, ErrDepth
	}
	done = len(b)-len(rest) == containerHeader(n)
	var last []byte
	for i := range n {
		if len(rest) == 0 {
			return nil, false, errEnd
		}
		if !isString(rest[0]) {
			return nil, false, errKey
		}
		key, _, _ := readString(rest)
		var ok bool
		if rest, ok, err = scanValue(rest, 0); err != nil {
			return nil, false, err
		}
		done = done && ok && (i == 0 || bytes.Compare(last, key) < 0)
		last = key
		if rest, ok, err = scanValue(rest, depth-1); err != nil {
			return nil, false, err
		}
		done = done && ok
	}
	return rest, done, nil
}

// putCanonical appends the first value of b, which [scanValue] has accepted, and returns what
// follows it. All that can still be wrong is a key that occurs twice.
func (p *packer) putCanonical(b []byte) (rest []byte, err error) {
	switch c := b[0]; {
	case c == codeNil:
		p.putNil()
		return b[1:], nil
	case c == codeTrue, c == codeFalse:
		p.putBool(c == codeTrue)
		return b[1:], nil
	case isString(c):
		s, rest, _ := readString(b)
		p.putText(s)
		return rest, nil
	case isBin(c):
		data, rest, _ := readBin(b)
		p.putBytes(data)
		return rest, nil
	case isArray(c):
		n, rest, _ := readArrayHeader(b)
		p.putArrayLen(n)
		for range n {
			if rest, err = p.putCanonical(rest); err != nil {
				return nil, err
			}
		}
		return rest, nil
	case isMap(c):
		return p.putCanonicalMap(b)
	}
	n, rest, _ := readNumber(b)
	switch n.class {
	case 'u':
		p.putUint(n.u)
	case 'i':
		p.putInt(n.i)
	default:
		p.putNumber(n.x)
	}
	return rest, nil
}

func (p *packer) putCanonicalMap(b []byte) (rest []byte, err error) {
	n, rest, _ := readMapHeader(b)
	p.putMapLen(n)
	start := len(p.buf)
	sorted := true
	var last []byte
	ends := make([]int, 0, n)
	for i := range n {
		key, tail, _ := readString(rest)
		sorted = sorted && (i == 0 || bytes.Compare(last, key) < 0)
		last = key
		p.putText(key)
		if rest, err = p.putCanonical(tail); err != nil {
			return nil, err
		}
		ends = append(ends, len(p.buf))
	}
	if !sorted {
		err = sortEntries(p.buf[start:], ends, start)
	}
	return rest, err
}

// mapEntry is an encoded key and its value.
type mapEntry struct {
	bytes []byte
	key   []byte
}

// entriesOf takes apart the encoded entries that b consists of. ends are their
// ends, counted from base before b. The result is ordered by key; entries with
// equal keys stay in their order.
func entriesOf(b []byte, ends []int, base int) []mapEntry {
	entries := make([]mapEntry, len(ends))
	at := 0
	for i, end := range ends {
		e := b[at : end-base]
		key, _, _ := readString(e)
		entries[i], at = mapEntry{bytes: e, key: key}, end-base
	}
	slices.SortStableFunc(entries, func(x, y mapEntry) int { return bytes.Compare(x.key, y.key) })
	return entries
}

// sortEntries orders the entries of b by key and refuses equal ones.
func sortEntries(b []byte, ends []int, base int) error {
	ordered := make([]byte, 0, len(b))
	entries := entriesOf(b, ends, base)
	for i, e := range entries {
		if i > 0 && bytes.Equal(entries[i-1].key, e.key) {
			return fmt.Errorf("%w: key %s occurs twice", ErrSyntax, quoteName(string(e.key)))
		}
		ordered = append(ordered, e.bytes...)
	}
	copy(b, ordered)
	return nil
}

// lastOfEach returns the entries of b ordered by key, the last of those with
// equal keys, and their number.
func lastOfEach(b []byte, ends []int, base int) (ordered []byte, n int) {
	ordered = make([]byte, 0, len(b))
	entries := entriesOf(b, ends, base)
	for i, e := range entries {
		if i+1 < len(entries) && bytes.Equal(entries[i+1].key, e.key) {
			continue
		}
		ordered = append(ordered, e.bytes...)
		n++
	}
	return ordered, n
}

// shortestCode returns the code with which the shortest form of a number begins.
func (n number) shortestCode() byte {
	if n.class == 'x' {
		n = integralNumber(n.x)
	}
	switch {
	case n.class == 'x':
		return codeDouble
	case n.class == 'u':
		return shortestUint(n.u)
	case n.i >= -32:
		return byte(n.i)
	case n.i >= math.MinInt8:
		return codeInt8
	case n.i >= math.MinInt16:
		return codeInt16
	case n.i >= math.MinInt32:
		return codeInt32
	}
	return codeInt64
}

func shortestUint(n uint64) byte {
	switch {
	case n < 128:
		return byte(n)
	case n <= math.MaxUint8:
		return codeUint8
	case n <= math.MaxUint16:
		return codeUint16
	case n <= math.MaxUint32:
		return codeUint32
	}
	return codeUint64
}
