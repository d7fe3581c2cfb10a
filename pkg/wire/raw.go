package wire

import (
	"bytes"
	"errors"
	"math"
	"unicode/utf8"
)

// Raw is any value in canonical msgpack: the keys of maps are strings in
// ascending order and occur once, numbers are in their shortest form (a number
// without a fraction that fits into 64 bits is an integer, as JSON doesn't tell
// 1 from 1.0), strings are UTF-8, there are no extension types. Equal values
// thus have equal bytes. A nil Raw is an absent value.
type Raw []byte

// Null is the value null.
var Null = Raw{codeNil} //nolint:gochecknoglobals // constant

// RawString returns the value of a string. Invalid UTF-8 is replaced by U+FFFD.
func RawString(s string) Raw {
	r, _ := packWith(func(p *packer) error { p.putString(validString(s)); return nil })
	return r
}

// validString replaces each byte that isn't UTF-8 by U+FFFD.
func validString(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

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

// Plain returns a string as it is, and any other value as JSON; "" of an absent or
// malformed one.
func (r Raw) Plain() string {
	if s, ok := r.Text(); ok || len(r) == 0 {
		return s
	}
	b, err := AppendJSON(nil, r)
	if err != nil {
		return ""
	}
	return string(b)
}

// Text returns the value if it is a string.
func (r Raw) Text() (string, bool) {
	s, rest, err := readString(r)
	if err != nil || len(rest) > 0 {
		return "", false
	}
	return string(s), true
}

// Get returns the value at a path of keys, or nil if there is none.
func (r Raw) Get(path ...string) Raw {
	for _, key := range path {
		r = r.valueOf(key)
	}
	return r
}

// TextAt returns the text at a path of keys, or "".
func (r Raw) TextAt(path ...string) string {
	s, _ := r.Get(path...).Text()
	return s
}

// IsMap reports whether the value is a map.
func (r Raw) IsMap() bool {
	_, is := r.Any().(map[string]any)
	return is
}

func (r Raw) valueOf(key string) Raw {
	n, rest, err := readMapHeader(r)
	if err != nil {
		return nil
	}
	for range n {
		k, tail, err := readString(rest)
		if err != nil {
			return nil
		}
		end, err := skipValue(tail)
		if err != nil {
			return nil
		}
		if string(k) == key {
			return Raw(tail[:len(tail)-len(end)])
		}
		rest = end
	}
	return nil
}

// Items returns the items of a list, nil of anything else.
func (r Raw) Items() []Raw {
	var items []Raw
	if len(r) == 0 || Unmarshal(r, &items) != nil {
		return nil
	}
	return items
}

// RawOf encodes a value; [Null] stands for one that has no form, such as one that is nested too deeply.
func RawOf(v any) Raw {
	r, err := Marshal(v)
	if err != nil {
		return Null
	}
	return r
}

// ValueOf returns what an optional field has, zero if it is absent.
func ValueOf[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

// IsZero makes `omitempty` and `omitzero` leave out an absent value.
func (r Raw) IsZero() bool { return len(r) == 0 }

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
