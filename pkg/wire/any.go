package wire

import (
	"bytes"
	"math"
)

// Any returns the value as nil, bool, int64, uint64 (beyond int64), float64,
// string, []byte, []any or map[string]any. It is nil for an absent value and
// for one that is malformed.
func (r Raw) Any() any {
	// The check comes first: nested headers may each promise the rest of the
	// message, and memory is reserved on their word below.
	if rest, _, err := scanValue(r, 2*maxDocument); err != nil || len(rest) > 0 {
		return nil
	}
	v, _ := anyOf(r)
	return v
}

// anyOf returns the first value of b, which [scanValue] has accepted.
func anyOf(b []byte) (v any, rest []byte) {
	switch c := b[0]; {
	case c == codeNil:
		return nil, b[1:]
	case c == codeTrue, c == codeFalse:
		return c == codeTrue, b[1:]
	case isString(c):
		s, rest, _ := readString(b)
		return string(s), rest
	case isBin(c):
		data, rest, _ := readBin(b)
		return bytes.Clone(data), rest
	case isArray(c):
		n, rest, _ := readArrayHeader(b)
		list := make([]any, n)
		for i := range list {
			list[i], rest = anyOf(rest)
		}
		return list, rest
	case isMap(c):
		n, rest, _ := readMapHeader(b)
		m := make(map[string]any, n)
		for range n {
			key, tail, _ := readString(rest)
			m[string(key)], rest = anyOf(tail)
		}
		return m, rest
	}
	n, rest, _ := readNumber(b)
	return n.anyValue(), rest
}

func (n number) anyValue() any {
	switch {
	case n.class == 'i':
		return n.i
	case n.class == 'x':
		return n.x
	case n.u <= math.MaxInt64:
		return int64(n.u)
	}
	return n.u
}

// IsMap reports whether the value is a map.
func (r Raw) IsMap() bool {
	if len(r) == 0 || !isMap(r[0]) {
		return false
	}
	rest, _, err := scanValue(r, 2*maxDocument)
	return err == nil && len(rest) == 0
}
