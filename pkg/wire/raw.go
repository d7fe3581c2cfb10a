package wire

import (
	"iter"
	"unicode/utf8"
)

// Raw is any value in canonical msgpack: the keys of maps are strings in
// ascending order and occur once, numbers are in their shortest form (a number
// without a fraction that fits into 64 bits is an integer, as JSON doesn't tell
// 1 from 1.0), strings are UTF-8, there are no extension types. Equal values
// thus have equal bytes. A nil Raw is an absent value.
type Raw []byte

// Null is the value null.
var Null = Raw{codeNil}

// validString replaces each byte that isn't UTF-8 by U+FFFD.
func validString(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
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

func (r Raw) valueOf(key string) Raw {
	for name, v := range r.Fields() {
		if string(name) == key {
			return v
		}
	}
	return nil
}

// Fields yields the names and the values of a map's fields, in order, as far as
// they can be read.
func (r Raw) Fields() iter.Seq2[[]byte, Raw] {
	return func(yield func([]byte, Raw) bool) {
		n, rest, err := readMapHeader(r)
		for i := 0; i < n && err == nil; i++ {
			var name, end []byte
			if name, rest, err = readString(rest); err != nil {
				return
			}
			if end, err = skipValue(rest); err != nil || !yield(name, Raw(rest[:len(rest)-len(end)])) {
				return
			}
			rest = end
		}
	}
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

// Field is a named value.
type Field struct {
	Name  string
	Value Raw
}

// Unknown is embedded by the structs inside payloads to keep fields that this
// version doesn't know.
type Unknown struct{ Rest []Field }
