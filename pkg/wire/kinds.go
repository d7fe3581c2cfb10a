package wire

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// One method or function for each kind of field. All have the same shape: write
// it, read it, or describe it.

func (f *fields) str(name string, v *string, p presence) { f.visitText(name, v, p, copyString) }

// id is a string that many events have in common. Those that are decoded one
// after the other share its memory.
func (f *fields) id(name string, v *string, p presence) { f.visitText(name, v, p, f.recentString) }

func copyString(b []byte) string { return string(b) }

// maxShared bounds the ids that are kept for the next event.
const maxShared = 128

// recentString returns b as a string, the one of an earlier call if that is equal.
func (f *fields) recentString(b []byte) string {
	for _, s := range f.ids {
		if s == string(b) {
			return s
		}
	}
	s := string(b)
	if len(s) <= maxShared {
		copy(f.ids[1:], f.ids[:])
		f.ids[0] = s
	}
	return s
}

func (f *fields) visitText(name string, v *string, p presence, take func([]byte) string) {
	switch f.mode {
	case encoding:
		if f.beginField(name, *v == "", p) {
			f.appendText(name, *v)
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			b, rest, err := readString(f.in)
			switch {
			case err != nil:
				f.failValue(name, "a string", err)
			case !utf8.Valid(b):
				f.failField(name, "must be valid UTF-8")
			case len(b) == 0 && p == nonEmpty:
				f.failField(name, "is required")
			default:
				*v = take(b)
				f.nextField(rest)
			}
		}
	case describing:
		f.describeField(name, FieldString, p)
	}
}

func (f *fields) appendText(name, s string) {
	if !utf8.ValidString(s) {
		f.failField(name, "must be valid UTF-8")
	}
	f.putString(s)
}

// enum is a string out of a set.
func enum[T ~string](f *fields, name string, v *T, p presence, allowed ...T) {
	if p == required {
		p = nonEmpty
	}
	if f.mode == describing {
		f.describe(FieldInfo{Name: name, Kind: FieldString, Required: p != optional, NonEmpty: p == nonEmpty, Enum: toStrings(allowed)})
		return
	}
	s := string(*v)
	f.str(name, &s, p)
	if f.mode == decoding { // what is encoded may be shared
		*v = T(s)
	}
	if s != "" && f.err == nil && !slices.Contains(allowed, T(s)) {
		f.failField(name, "must be one of "+strings.Join(toStrings(allowed), ", "))
	}
}

func toStrings[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

// scalar visits a value of one word.
func scalar[T comparable](f *fields, name string, v *T, p presence, kind FieldKind, want string, put func(*packer, T), read func([]byte) (T, []byte, error)) {
	zero := *new(T)
	switch f.mode {
	case encoding:
		if f.beginField(name, *v == zero, p) {
			put(f.packer, *v)
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			x, rest, err := read(f.in)
			switch {
			case err != nil:
				f.failValue(name, want, err)
			case x == zero && p == nonEmpty:
				f.failField(name, "is required")
			default:
				*v = x
				f.nextField(rest)
			}
		}
	case describing:
		f.describeField(name, kind, p)
	}
}

// optScalar is a [scalar]; its absence differs from zero.
func optScalar[T any](f *fields, name string, v **T, p presence, kind FieldKind, want string, put func(*packer, T), read func([]byte) (T, []byte, error)) {
	switch f.mode {
	case encoding:
		if *v != nil && f.beginField(name, false, p) {
			put(f.packer, **v)
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			x, rest, err := read(f.in)
			if err != nil {
				f.failValue(name, want, err)
				return
			}
			*v = &x
			f.nextField(rest)
		}
	case describing:
		f.describeField(name, kind, p)
	}
}

func (f *fields) int64(name string, v *int64, p presence) {
	scalar(f, name, v, p, FieldInteger, "an integer", (*packer).putInt, readInt)
}

func (f *fields) uint64(name string, v *uint64, p presence) {
	scalar(f, name, v, p, FieldUnsigned, "an integer, not negative", (*packer).putUint, readUint)
}

func (f *fields) bool(name string, v *bool, p presence) {
	scalar(f, name, v, p, FieldBoolean, "true or false", (*packer).putBool, readBool)
}

func (f *fields) optInt64(name string, v **int64, p presence) {
	optScalar(f, name, v, p, FieldInteger, "an integer", (*packer).putInt, readInt)
}

func (f *fields) optFloat(name string, v **float64, p presence) {
	if f.mode == encoding && *v != nil && !isFinite(**v) {
		f.failField(name, "must be finite")
	}
	optScalar(f, name, v, p, FieldNumber, "a finite number", (*packer).putNumber, readFloat)
}

func (f *fields) int(name string, v *int, p presence) {
	n := int64(*v)
	f.int64(name, &n, p)
	if f.mode != decoding { // what is encoded may be shared
		return
	}
	if *v = int(n); int64(*v) != n {
		f.failField(name, "is out of range")
	}
}

func (f *fields) optInt(name string, v **int, p presence) {
	var n *int64
	if f.mode == encoding && *v != nil {
		n = new(int64(**v))
	}
	f.optInt64(name, &n, p)
	if f.mode != decoding || n == nil {
		return
	}
	if *v = new(int(*n)); int64(**v) != *n {
		f.failField(name, "is out of range")
	}
}

// raw is any value. A required one must be given, if only as null.
func (f *fields) raw(name string, v *Raw, p presence) { f.visitValue(name, v, p, MaxDepth) }

// document is a value that holds values, so that it may be nested deeper.
func (f *fields) document(name string, v *Raw, p presence) { f.visitValue(name, v, p, maxDocument) }

func (f *fields) visitValue(name string, v *Raw, p presence, depth int) {
	if p == required {
		p = nonEmpty
	}
	switch f.mode {
	case encoding:
		if f.beginField(name, len(*v) == 0, p) {
			if err := f.putRaw(*v, depth); err != nil {
				f.failValue(name, "a value", err)
			}
		}
	case decoding, checking:
		if f.matchKey(name, p) {
			value, rest, err := readRaw(f.in, depth)
			if err != nil {
				f.failValue(name, "a value", err)
				return
			}
			*v = value
			f.nextField(rest)
		}
	case describing:
		p = min(p, required) // null is not empty, and "" neither
		f.describeField(name, FieldAny, p)
	}
}

func (f *fields) strs(name string, v *[]string, p presence) {
	switch f.mode {
	case encoding:
		if f.beginField(name, len(*v) == 0, p) {
			f.putArrayLen(len(*v))
			for _, s := range *v {
				f.appendText(name, s)
			}
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			readItems(f, name, v, func() string { return f.readItem(name, "an array of strings") })
		}
	case describing:
		f.describeField(name, FieldStrings, p)
	}
}

// readItem reads a string inside a field.
func (f *fields) readItem(name, want string) string {
	b, rest, err := readString(f.in)
	switch {
	case err != nil:
		f.failValue(name, want, err)
	case !utf8.Valid(b):
		f.failField(name, "must be valid UTF-8")
	}
	f.in = rest
	return string(b)
}

func (f *fields) strMap(name string, v *map[string]string, p presence) {
	switch f.mode {
	case encoding:
		if f.beginField(name, len(*v) == 0, p) {
			f.putMapLen(len(*v))
			for _, k := range slices.Sorted(maps.Keys(*v)) {
				f.appendText(name, k)
				f.appendText(name, (*v)[k])
			}
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			readEntries(f, name, v, func() string { return f.readItem(name, "an object of strings") })
		}
	case describing:
		f.describeField(name, FieldStringMap, p)
	}
}

// readItems reads a list. An empty one is nil.
func readItems[T any](f *fields, name string, v *[]T, item func() T) {
	n, rest, err := readArrayHeader(f.in)
	if err != nil {
		f.failValue(name, "an array", err)
		return
	}
	f.in = rest
	for i := 0; i < n && f.err == nil; i++ {
		*v = append(*v, item())
	}
	f.nextField(f.in)
}

// maxAhead bounds the memory that is reserved on the word of a header: it may
// promise the rest of the message and break its word at once.
const maxAhead = 32

// readEntries reads a map. An empty one is nil.
func readEntries[T any](f *fields, name string, v *map[string]T, item func() T) {
	n, rest, err := readMapHeader(f.in)
	if err != nil {
		f.failValue(name, "an object", err)
		return
	}
	f.in = rest
	if n > 0 {
		*v = make(map[string]T, min(n, maxAhead))
	}
	for i := 0; i < n && f.err == nil; i++ {
		k := f.readItem(name, "an object")
		(*v)[k] = item()
	}
	if f.err == nil && len(*v) != n {
		f.failField(name, "has a key twice")
	}
	f.nextField(f.in)
}

// pointer is a pointer to T that is a record.
type pointer[T any] interface {
	*T
	record
}

// readNew reads a record inside a field.
func readNew[T any, P pointer[T]](f *fields, name string) T {
	item := new(T)
	f.readRecord(name, P(item))
	return *item
}

// object is a nested record.
func object[T any, P pointer[T]](f *fields, name string, v *T, p presence) {
	switch f.mode {
	case encoding:
		if f.beginField(name, f.isMoved(name) && reflect.ValueOf(v).Elem().IsZero(), p) {
			f.writeRecord(name, P(v))
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			f.readRecord(name, P(v))
			f.nextField(f.in)
		}
	case describing:
		f.describeNested(name, FieldObject, p, P(new(T)))
	}
}

// optObject is a nested record that may be absent.
func optObject[T any, P pointer[T]](f *fields, name string, v **T, p presence) {
	switch f.mode {
	case encoding:
		if *v != nil && f.beginField(name, false, p) {
			f.writeRecord(name, P(*v))
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			*v = new(T)
			f.readRecord(name, P(*v))
			f.nextField(f.in)
		}
	case describing:
		f.describeNested(name, FieldObject, p, P(new(T)))
	}
}

// objects is a list of records. An empty one is nil.
func objects[T any, P pointer[T]](f *fields, name string, v *[]T, p presence) {
	switch f.mode {
	case encoding:
		if f.beginField(name, len(*v) == 0, p) {
			f.putArrayLen(len(*v))
			for i := range *v {
				f.writeRecord(name, P(&(*v)[i]))
			}
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			readItems(f, name, v, func() T { return readNew[T, P](f, name) })
		}
	case describing:
		f.describeNested(name, FieldObjects, p, P(new(T)))
	}
}

// objectMap is a map of records. An empty one is nil.
func objectMap[T any, P pointer[T]](f *fields, name string, v *map[string]T, p presence) {
	switch f.mode {
	case encoding:
		if f.beginField(name, len(*v) == 0, p) {
			f.putMapLen(len(*v))
			for _, k := range slices.Sorted(maps.Keys(*v)) {
				f.appendText(name, k)
				item := (*v)[k]
				f.writeRecord(name, P(&item))
			}
		}
	case decoding, checking:
		if f.matchNonNull(name, p) {
			readEntries(f, name, v, func() T { return readNew[T, P](f, name) })
		}
	case describing:
		f.describeNested(name, FieldObjectMap, p, P(new(T)))
	}
}
