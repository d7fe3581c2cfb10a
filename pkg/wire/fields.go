package wire

import (
	"errors"
	"fmt"
	"sort"
	"unicode/utf8"
)

// ErrVersion is returned for an event of a wire version that this package
// doesn't know.
var ErrVersion = errors.New("wire: newer version")

// ErrTrailing is returned when bytes follow a value.
var ErrTrailing = errors.New("wire: bytes after the value")

// ErrSyntax is returned for bytes that aren't well-formed.
var ErrSyntax = errors.New("wire: malformed")

// FieldError says which field of an event violates its type.
type FieldError struct {
	Type    Type   // of the event; "" where it isn't known
	Field   string // name in the wire form; dotted inside objects
	Problem string // such as "must be a string"
}

// Error returns "wire: <type>: <field> <problem>".
func (e *FieldError) Error() string {
	if e.Type == "" {
		return "wire: " + e.Field + " " + e.Problem
	}
	return "wire: " + string(e.Type) + ": " + e.Field + " " + e.Problem
}

// record is a struct that names its fields. One method serves encoding,
// decoding, checking and describing: it visits every field in wire order, and
// the [fields] it is given does what is asked for.
type record interface{ fields(*fields) }

// keeper is a record that keeps fields it doesn't know.
type keeper interface{ unknown() *[]Field }

// presence says when a field may be absent.
type presence uint8

const (
	optional presence = iota // absent if zero
	required                 // always present, may be empty
	nonEmpty                 // always present and never empty
)

type mode uint8

const (
	encoding mode = iota
	decoding
	checking // that every required field has been decoded
	describing
)

// fields visits the fields of a [record].
type fields struct {
	mode  mode
	event *Event // the event that is visited, if it is one
	err   error  // the first one; everything after it is ignored
	path  string // of the object that is visited, with a final dot

	buf   []byte // encoding: the output
	count int    // encoding: fields written to the current map

	in    []byte // decoding: the rest of the input, at the value of key
	key   []byte // decoding: the current key; valid if left > 0
	left  int    // decoding: fields of the current map, the current one included
	seen  uint64 // decoding: which visited fields have been decoded, by index
	index int    // decoding, checking: index of the visited field

	describe func(name, kind string, p presence, elem func(*fields)) // describing
}

// fail records the first problem.
func (f *fields) fail(name, problem string) {
	if f.err != nil {
		return
	}
	e := &FieldError{Field: f.path + name, Problem: problem}
	if f.event != nil {
		e.Type = f.event.Type()
	}
	f.err = e
}

// moved reports whether the field was moved to the object store.
func (f *fields) moved(name string) bool {
	if f.event == nil || f.path != "" {
		return false
	}
	for i := range f.event.Blobs {
		if f.event.Blobs[i].Field == name {
			return true
		}
	}
	return false
}

// envelopeRequires makes an optional field of the envelope required for a type.
func (f *fields) envelopeRequires(name string) {
	if f.mode != encoding && f.mode != checking {
		return
	}
	if (name == "sessionId" && f.event.SessionID == "") || (name == "callId" && f.event.CallID == "") {
		f.fail(name, "is required")
	}
}

// write begins a field. It reports false if the field is to be left out.
func (f *fields) write(name string, empty bool, p presence) bool {
	if f.err != nil {
		return false
	}
	if empty {
		if p == optional || f.moved(name) {
			return false
		}
		if p == nonEmpty {
			f.fail(name, "is required")
			return false
		}
	}
	f.count++
	f.buf = appendString(f.buf, name)
	return true
}

// read reports whether the current key is name, so that its value is to be
// decoded. A null in an optional field counts as absent. It serves [checking]
// too.
func (f *fields) read(name string, p presence) bool {
	i := f.index
	f.index++
	if f.err != nil {
		return false
	}
	bit := uint64(1) << i
	if f.mode == checking {
		if p != optional && f.seen&bit == 0 && !f.moved(name) {
			f.fail(name, "is required")
		}
		return false
	}
	if f.left == 0 || string(f.key) != name {
		return false
	}
	if f.seen&bit != 0 {
		f.fail(name, "occurs twice")
		return false
	}
	f.seen |= bit
	if p == optional && len(f.in) > 0 && f.in[0] == codeNil {
		f.in = f.in[1:]
		f.next()
		return false
	}
	return true
}

// next ends a decoded field and reads the key of the following one.
func (f *fields) next() {
	f.left--
	if f.left > 0 && f.err == nil {
		f.readKey()
	}
}

func (f *fields) readKey() {
	key, rest, err := readString(f.in)
	if err != nil {
		f.err = fmt.Errorf("%w: a key is not a string", ErrSyntax)
		return
	}
	f.key, f.in = key, rest
}

// wrong ends a field that could not be decoded.
func (f *fields) wrong(name, want string, err error) {
	if errors.Is(err, errKind) {
		f.fail(name, "must be "+want)
	} else if f.err == nil {
		f.err = fmt.Errorf("%w: in field %s%s", err, f.path, name)
	}
}

func (f *fields) str(name string, v *string, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, *v == "", p) {
			if !utf8.ValidString(*v) {
				f.fail(name, "must be valid UTF-8")
				return
			}
			f.buf = appendString(f.buf, *v)
		}
	case decoding, checking:
		if f.read(name, p) {
			b, rest, err := readString(f.in)
			switch {
			case err != nil:
				f.wrong(name, "a string", err)
			case !utf8.Valid(b):
				f.fail(name, "must be valid UTF-8")
			case len(b) == 0 && p == nonEmpty:
				f.fail(name, "is required")
			default:
				*v, f.in = string(b), rest
				f.next()
			}
		}
	case describing:
		f.describe(name, "string", p, nil)
	}
}

// enum is a string out of a set.
func enum[T ~string](f *fields, name string, v *T, p presence, allowed ...T) {
	if p == required {
		p = nonEmpty
	}
	s := string(*v)
	f.str(name, &s, p)
	*v = T(s)
	if f.err != nil || f.mode == describing || *v == "" {
		return
	}
	for _, a := range allowed {
		if *v == a {
			return
		}
	}
	f.fail(name, fmt.Sprintf("must be one of %v", allowed))
}

func (f *fields) int64(name string, v *int64, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, *v == 0, p) {
			f.buf = appendInt(f.buf, *v)
		}
	case decoding, checking:
		if f.read(name, p) {
			n, rest, err := readInt(f.in)
			if err != nil {
				f.wrong(name, "an integer", err)
				return
			}
			*v, f.in = n, rest
			f.next()
		}
	case describing:
		f.describe(name, "integer", p, nil)
	}
}

func (f *fields) int(name string, v *int, p presence) {
	n := int64(*v)
	f.int64(name, &n, p)
	*v = int(n)
}

func (f *fields) uint64(name string, v *uint64, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, *v == 0, p) {
			f.buf = appendUint(f.buf, *v)
		}
	case decoding, checking:
		if f.read(name, p) {
			n, rest, err := readUint(f.in)
			if err != nil {
				f.wrong(name, "an integer, not negative", err)
				return
			}
			if n == 0 && p == nonEmpty {
				f.fail(name, "must not be 0")
				return
			}
			*v, f.in = n, rest
			f.next()
		}
	case describing:
		f.describe(name, "integer", p, nil)
	}
}

// optInt64 is an integer whose absence differs from 0.
func (f *fields) optInt64(name string, v **int64) {
	switch f.mode {
	case encoding:
		if *v != nil {
			f.int64(name, *v, required)
		}
	case decoding, checking:
		if f.read(name, optional) {
			n, rest, err := readInt(f.in)
			if err != nil {
				f.wrong(name, "an integer", err)
				return
			}
			*v, f.in = &n, rest
			f.next()
		}
	case describing:
		f.describe(name, "integer", optional, nil)
	}
}

func (f *fields) optInt(name string, v **int) {
	var n *int64
	if f.mode == encoding && *v != nil {
		n = new(int64(**v))
	}
	f.optInt64(name, &n)
	if f.mode == decoding && n != nil {
		*v = new(int(*n))
	}
}

// optFloat is a number whose absence differs from 0.
func (f *fields) optFloat(name string, v **float64) {
	switch f.mode {
	case encoding:
		if *v != nil && f.write(name, false, required) {
			if !finite(**v) {
				f.fail(name, "must be finite")
				return
			}
			f.buf = appendFloat(f.buf, **v)
		}
	case decoding, checking:
		if f.read(name, optional) {
			x, rest, err := readFloat(f.in)
			if err != nil {
				f.wrong(name, "a number", err)
				return
			}
			*v, f.in = &x, rest
			f.next()
		}
	case describing:
		f.describe(name, "number", optional, nil)
	}
}

func (f *fields) bool(name string, v *bool, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, !*v, p) {
			f.buf = appendBool(f.buf, *v)
		}
	case decoding, checking:
		if f.read(name, p) {
			b, rest, err := readBool(f.in)
			if err != nil {
				f.wrong(name, "true or false", err)
				return
			}
			*v, f.in = b, rest
			f.next()
		}
	case describing:
		f.describe(name, "boolean", p, nil)
	}
}

// raw is any value. A required one must be given, if only as null.
func (f *fields) raw(name string, v *Raw, p presence) {
	switch f.mode {
	case encoding:
		if p == required {
			p = nonEmpty
		}
		if f.write(name, len(*v) == 0, p) {
			f.buf = append(f.buf, *v...)
		}
	case decoding, checking:
		// A null is a value here, so it must not be taken for an absent field.
		if p == optional && f.mode == checking {
			f.index++
			return
		}
		if f.read(name, required) {
			value, rest, err := readRaw(f.in)
			if err != nil {
				f.wrong(name, "a value", err)
				return
			}
			*v, f.in = value, rest
			f.next()
		}
	case describing:
		f.describe(name, "any", p, nil)
	}
}

func (f *fields) strs(name string, v *[]string, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, len(*v) == 0, p) {
			f.buf = appendArrayHeader(f.buf, len(*v))
			for _, s := range *v {
				if !utf8.ValidString(s) {
					f.fail(name, "must be valid UTF-8")
					return
				}
				f.buf = appendString(f.buf, s)
			}
		}
	case decoding, checking:
		if f.read(name, p) {
			n, rest, err := readArrayHeader(f.in)
			if err != nil {
				f.wrong(name, "an array", err)
				return
			}
			list := make([]string, 0, n)
			for range n {
				var b []byte
				if b, rest, err = readString(rest); err != nil {
					f.wrong(name, "an array of strings", err)
					return
				}
				if !utf8.Valid(b) {
					f.fail(name, "must be valid UTF-8")
					return
				}
				list = append(list, string(b))
			}
			*v, f.in = list, rest
			f.next()
		}
	case describing:
		f.describe(name, "strings", p, nil)
	}
}

func (f *fields) strMap(name string, v *map[string]string, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, len(*v) == 0, p) {
			f.buf = appendMapHeader(f.buf, len(*v))
			for _, k := range sortedKeys(*v) {
				if !utf8.ValidString(k) || !utf8.ValidString((*v)[k]) {
					f.fail(name, "must be valid UTF-8")
					return
				}
				f.buf = appendString(appendString(f.buf, k), (*v)[k])
			}
		}
	case decoding, checking:
		if f.read(name, p) {
			n, rest, err := readMapHeader(f.in)
			if err != nil {
				f.wrong(name, "an object", err)
				return
			}
			m := make(map[string]string, n)
			for range n {
				var k, s []byte
				if k, rest, err = readString(rest); err == nil {
					s, rest, err = readString(rest)
				}
				if err != nil {
					f.wrong(name, "an object of strings", err)
					return
				}
				if !utf8.Valid(k) || !utf8.Valid(s) {
					f.fail(name, "must be valid UTF-8")
					return
				}
				m[string(k)] = string(s)
			}
			if len(m) != n {
				f.fail(name, "has a key twice")
				return
			}
			*v, f.in = m, rest
			f.next()
		}
	case describing:
		f.describe(name, "stringMap", p, nil)
	}
}

// object is a nested record.
func object[T any, P interface {
	*T
	record
}](f *fields, name string, v *T, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, false, p) {
			f.writeRecord(name, P(v))
		}
	case decoding, checking:
		if f.read(name, p) {
			f.readRecord(name, P(v))
			f.next()
		}
	case describing:
		f.describe(name, "object", p, P(v).fields)
	}
}

// optObject is a nested record that may be absent.
func optObject[T any, P interface {
	*T
	record
}](f *fields, name string, v **T) {
	switch f.mode {
	case encoding:
		if *v != nil && f.write(name, false, required) {
			f.writeRecord(name, P(*v))
		}
	case decoding, checking:
		if f.read(name, optional) {
			*v = new(T)
			f.readRecord(name, P(*v))
			f.next()
		}
	case describing:
		f.describe(name, "object", optional, P(new(T)).fields)
	}
}

// objects is a list of records.
func objects[T any, P interface {
	*T
	record
}](f *fields, name string, v *[]T, p presence) {
	switch f.mode {
	case encoding:
		if f.write(name, len(*v) == 0, p) {
			f.buf = appendArrayHeader(f.buf, len(*v))
			for i := range *v {
				f.writeRecord(name, P(&(*v)[i]))
			}
		}
	case decoding, checking:
		if f.read(name, p) {
			n, rest, err := readArrayHeader(f.in)
			if err != nil {
				f.wrong(name, "an array", err)
				return
			}
			f.in = rest
			list := make([]T, n)
			for i := range list {
				f.readRecord(name, P(&list[i]))
			}
			*v = list
			f.next()
		}
	case describing:
		f.describe(name, "objects", p, P(new(T)).fields)
	}
}

// objectMap is an optional map of records.
func objectMap[T any, P interface {
	*T
	record
}](f *fields, name string, v *map[string]T) {
	switch f.mode {
	case encoding:
		if f.write(name, len(*v) == 0, optional) {
			f.buf = appendMapHeader(f.buf, len(*v))
			for _, k := range sortedKeys(*v) {
				if !utf8.ValidString(k) {
					f.fail(name, "must be valid UTF-8")
					return
				}
				f.buf = appendString(f.buf, k)
				item := (*v)[k]
				f.writeRecord(name, P(&item))
			}
		}
	case decoding, checking:
		if f.read(name, optional) {
			n, rest, err := readMapHeader(f.in)
			if err != nil {
				f.wrong(name, "an object", err)
				return
			}
			f.in = rest
			m := make(map[string]T, n)
			for range n {
				k, rest, err := readString(f.in)
				if err != nil {
					f.wrong(name, "an object", err)
					return
				}
				if !utf8.Valid(k) {
					f.fail(name, "must be valid UTF-8")
					return
				}
				f.in = rest
				var item T
				f.readRecord(name, P(&item))
				m[string(k)] = item
			}
			if len(m) != n {
				f.fail(name, "has a key twice")
				return
			}
			*v = m
			f.next()
		}
	case describing:
		f.describe(name, "objectMap", optional, P(new(T)).fields)
	}
}

// writeRecord appends r as a map. Its header is patched when the number of
// fields is known.
func (f *fields) writeRecord(name string, r record) {
	if f.err != nil {
		return
	}
	outer, path := f.count, f.path
	if name != "" {
		f.path += name + "."
	}
	at := len(f.buf)
	f.buf = append(f.buf, 0x80)
	f.count = 0
	r.fields(f)
	if k, ok := r.(keeper); ok {
		f.writeUnknown(*k.unknown())
	}
	f.endMap(at)
	f.count, f.path = outer, path
}

// endMap writes the header of the map that begins at at.
func (f *fields) endMap(at int) {
	if f.count < 16 {
		f.buf[at] = 0x80 | byte(f.count)
		return
	}
	f.buf = append(f.buf, 0, 0)
	copy(f.buf[at+3:], f.buf[at+1:])
	f.buf[at], f.buf[at+1], f.buf[at+2] = codeMap16, byte(f.count>>8), byte(f.count)
}

// writeUnknown appends the fields that the record doesn't know.
func (f *fields) writeUnknown(rest []Field) {
	for i := range rest {
		if i > 0 && rest[i-1].Name >= rest[i].Name {
			f.fail(rest[i].Name, "is out of order or occurs twice")
		}
		if f.write(rest[i].Name, len(rest[i].Value) == 0, nonEmpty) {
			f.buf = append(f.buf, rest[i].Value...)
		}
	}
}

// readRecord decodes the map at the input into r.
func (f *fields) readRecord(name string, r record) {
	if f.err != nil {
		return
	}
	n, rest, err := readMapHeader(f.in)
	if err != nil {
		f.wrong(name, "an object", err)
		return
	}
	f.in = rest
	outer := *f
	if name != "" {
		f.path += name + "."
	}
	var keep *[]Field
	if k, ok := r.(keeper); ok {
		keep = k.unknown()
	}
	f.readMap(n, r, keep)
	f.path, f.key, f.left, f.seen, f.index = outer.path, outer.key, outer.left, outer.seen, outer.index
}

// readMap decodes n fields into r. In canonical input every field of r is found
// in one visit; other orders take more.
func (f *fields) readMap(n int, r record, keep *[]Field) {
	f.left, f.seen = n, 0
	if n > 0 {
		f.readKey()
	}
	for f.left > 0 && f.err == nil {
		before := f.left
		f.index = 0
		r.fields(f)
		if f.left == before && f.err == nil {
			f.keepUnknown(keep)
		}
	}
	if f.err != nil {
		return
	}
	f.mode, f.index = checking, 0
	r.fields(f)
	f.mode = decoding
	if keep != nil && f.err == nil {
		sort.Slice(*keep, func(i, j int) bool { return (*keep)[i].Name < (*keep)[j].Name })
		for i := 1; i < len(*keep); i++ {
			if (*keep)[i-1].Name == (*keep)[i].Name {
				f.fail((*keep)[i].Name, "occurs twice")
			}
		}
	}
}

func (f *fields) keepUnknown(keep *[]Field) {
	name := string(f.key)
	value, rest, err := readRaw(f.in)
	if err != nil {
		f.wrong(name, "a value", err)
		return
	}
	if !utf8.ValidString(name) {
		f.fail(name, "must be valid UTF-8")
		return
	}
	f.in = rest
	if keep != nil {
		*keep = append(*keep, Field{Name: name, Value: value})
	}
	f.next()
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
