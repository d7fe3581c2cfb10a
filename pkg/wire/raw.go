package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// MaxDepth bounds the nesting of values. Deeper ones are refused.
const MaxDepth = 256

// ErrDepth is returned for a value that is nested deeper than [MaxDepth].
var ErrDepth = errors.New("wire: nested too deep")

// Raw is any value in canonical msgpack: the keys of maps are strings in
// ascending order and occur once, numbers are in their shortest form (a float
// without a fraction up to 2^53 is an integer, as JSON doesn't tell them
// apart), strings are UTF-8, there are no extension types. Equal values thus
// have equal bytes. A nil Raw is an absent value.
type Raw []byte

// Null is the value null.
var Null = Raw{codeNil}

// Marshal returns v in canonical form. Structs are encoded by their `json` tags.
func Marshal(v any) (Raw, error) {
	switch v := v.(type) {
	case Raw:
		return v, nil
	case string:
		return RawString(v), nil
	}
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	var b bytes.Buffer
	enc.Reset(&b)
	enc.SetCustomStructTag("json")
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("wire: marshal %T: %w", v, err)
	}
	raw, err := Canonical(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("wire: marshal %T: %w", v, err)
	}
	return raw, nil
}

// RawString returns the value of a string. Invalid UTF-8 is replaced by U+FFFD.
func RawString(s string) Raw {
	if !utf8.ValidString(s) {
		s = string([]rune(s))
	}
	return appendString(make([]byte, 0, len(s)+5), s)
}

// Unmarshal decodes one value into v, which is a pointer. Structs are decoded
// by their `json` tags, maps become map[string]any, integers int64.
func Unmarshal(b []byte, v any) error {
	r := bytes.NewReader(b)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	dec.SetCustomStructTag("json")
	dec.UseLooseInterfaceDecoding(true)
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("wire: unmarshal into %T: %w", v, err)
	}
	if r.Len() > 0 {
		return ErrTrailing
	}
	return nil
}

// Any returns the value as nil, bool, int64, uint64 (beyond int64), float64,
// string, []byte, []any or map[string]any. It is nil for an absent value.
func (r Raw) Any() any {
	if len(r) == 0 {
		return nil
	}
	v, _ := anyOf(r)
	return v
}

func anyOf(b []byte) (v any, rest []byte) {
	c := b[0]
	switch {
	case c == codeNil:
		return nil, b[1:]
	case c == codeTrue, c == codeFalse:
		return c == codeTrue, b[1:]
	case isString(c):
		s, rest, _ := readString(b)
		return string(s), rest
	case c == codeBin8, c == codeBin16, c == codeBin32:
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
			var k []byte
			k, rest, _ = readString(rest)
			m[string(k)], rest = anyOf(rest)
		}
		return m, rest
	}
	n, rest, _ := readNumber(b)
	switch {
	case n.class == 'i':
		return n.i, rest
	case n.class == 'x':
		return n.x, rest
	case n.u <= math.MaxInt64:
		return int64(n.u), rest
	}
	return n.u, rest
}

// Text returns the value if it is a string.
func (r Raw) Text() (string, bool) {
	s, rest, err := readString(r)
	if err != nil || len(rest) > 0 {
		return "", false
	}
	return string(s), true
}

// Get returns the value of a key, or nil if the value is no map or lacks it.
func (r Raw) Get(key string) Raw {
	n, rest, err := readMapHeader(r)
	if err != nil {
		return nil
	}
	for range n {
		k, tail, err := readString(rest)
		if err != nil {
			return nil
		}
		end, err := skip(tail)
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

// skip returns what follows the first value of b.
func skip(b []byte) ([]byte, error) {
	for left := 1; left > 0; left-- {
		if len(b) == 0 {
			return nil, ErrSyntax
		}
		c := b[0]
		var n int
		var err error
		switch {
		case c == codeNil, c == codeTrue, c == codeFalse:
			b = b[1:]
		case isString(c):
			_, b, err = readString(b)
		case c == codeBin8, c == codeBin16, c == codeBin32:
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
		if err != nil {
			return nil, ErrSyntax
		}
	}
	return b, nil
}

func readBin(b []byte) (data, rest []byte, err error) {
	var n int
	switch b[0] {
	case codeBin8:
		n, rest, err = readSize(b, 1)
	case codeBin16:
		n, rest, err = readSize(b, 2)
	default:
		n, rest, err = readSize(b, 4)
	}
	if err != nil || len(rest) < n {
		return nil, nil, ErrSyntax
	}
	return rest[:n], rest[n:], nil
}

// readRaw reads one value and returns it in canonical form, not sharing memory
// with b.
func readRaw(b []byte) (value Raw, rest []byte, err error) {
	rest, err = skip(b)
	if err != nil {
		return nil, nil, err
	}
	in := b[:len(b)-len(rest)]
	out, err := canonical(make([]byte, 0, len(in)), &in, 0)
	if err != nil {
		return nil, nil, err
	}
	return out, rest, nil
}

// Canonical returns the one value that b holds in canonical form.
func Canonical(b []byte) (Raw, error) {
	value, rest, err := readRaw(b)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, ErrTrailing
	}
	return value, nil
}

// entry is an encoded key and its value.
type entry struct {
	bytes []byte
	key   []byte
}

// canonical appends the first value of *in, which is well-formed, to out.
func canonical(out []byte, in *[]byte, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, ErrDepth
	}
	b := *in
	c := b[0]
	switch {
	case c == codeNil, c == codeTrue, c == codeFalse:
		*in = b[1:]
		return append(out, c), nil
	case isString(c):
		s, rest, err := readString(b)
		if err != nil {
			return nil, err
		}
		if !utf8.Valid(s) {
			return nil, fmt.Errorf("%w: a string is not UTF-8", ErrSyntax)
		}
		*in = rest
		return append(appendStringHeader(out, len(s)), s...), nil
	case c == codeBin8, c == codeBin16, c == codeBin32:
		data, rest, err := readBin(b)
		if err != nil {
			return nil, err
		}
		*in = rest
		return appendBin(out, data), nil
	case isArray(c):
		n, rest, err := readArrayHeader(b)
		if err != nil {
			return nil, err
		}
		out, *in = appendArrayHeader(out, n), rest
		for range n {
			if out, err = canonical(out, in, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case isMap(c):
		n, rest, err := readMapHeader(b)
		if err != nil {
			return nil, err
		}
		out, *in = appendMapHeader(out, n), rest
		return canonicalMap(out, in, n, depth)
	}
	n, rest, err := readNumber(b)
	if err != nil {
		return nil, fmt.Errorf("%w: extension types are not supported", ErrSyntax)
	}
	*in = rest
	switch n.class {
	case 'u':
		return appendUint(out, n.u), nil
	case 'i':
		return appendInt(out, n.i), nil
	}
	if !finite(n.x) {
		return nil, fmt.Errorf("%w: a number is not finite", ErrSyntax)
	}
	return appendNumber(out, n.x), nil
}

// appendNumber appends a float as an integer if it is one.
func appendNumber(out []byte, x float64) []byte {
	if x == math.Trunc(x) && math.Abs(x) <= maxExact {
		return appendInt(out, int64(x))
	}
	return appendFloat(out, x)
}

func canonicalMap(out []byte, in *[]byte, n, depth int) ([]byte, error) {
	start := len(out)
	var last []byte
	sorted := true
	ends := make([]int, 0, min(n, 64))
	for range n {
		key, rest, err := readString(*in)
		if err != nil {
			return nil, fmt.Errorf("%w: a key is not a string", ErrSyntax)
		}
		if !utf8.Valid(key) {
			return nil, fmt.Errorf("%w: a key is not UTF-8", ErrSyntax)
		}
		if last != nil && bytes.Compare(last, key) >= 0 {
			sorted = false
		}
		last, *in = key, rest
		out = append(appendStringHeader(out, len(key)), key...)
		if out, err = canonical(out, in, depth+1); err != nil {
			return nil, err
		}
		ends = append(ends, len(out))
	}
	if sorted {
		return out, nil
	}
	if err := sortEntries(out[start:], ends, start); err != nil {
		return nil, err
	}
	return out, nil
}

// entriesOf takes apart the encoded entries that b consists of. ends are their
// ends, counted from base before b. The result is ordered by key; entries with
// equal keys stay in their order.
func entriesOf(b []byte, ends []int, base int) []entry {
	entries := make([]entry, len(ends))
	at := 0
	for i, end := range ends {
		e := b[at : end-base]
		key, _, _ := readString(e)
		entries[i], at = entry{bytes: e, key: key}, end-base
	}
	slices.SortStableFunc(entries, func(x, y entry) int { return bytes.Compare(x.key, y.key) })
	return entries
}

// sortEntries orders the entries of b by key and refuses equal ones.
func sortEntries(b []byte, ends []int, base int) error {
	ordered := make([]byte, 0, len(b))
	entries := entriesOf(b, ends, base)
	for i, e := range entries {
		if i > 0 && bytes.Equal(entries[i-1].key, e.key) {
			return fmt.Errorf("%w: key %q occurs twice", ErrSyntax, e.key)
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
