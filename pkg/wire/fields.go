package wire

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// record is a struct that is a map on the wire. One method serves encoding,
// decoding, checking and describing: it visits every field in wire order, by its
// tags (see [shape]), and the [fields] it is given do what is asked for. A record
// has at most 64 fields.
type record interface{ visitFields(*fields) }

// keeper is a record that keeps fields it doesn't know.
type keeper interface{ unknownFields() *[]Field }

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
	event *Event     // the event that is visited, if it is one
	known *knownType // its type
	err   error      // the first one; everything after it is ignored
	path  []string   // names of the objects that are visited

	*packer     // encoding: the output
	count   int // encoding: fields written to the current map

	in    []byte // decoding: the rest of the input, at the value of key
	key   []byte // decoding: the current key; valid if left > 0
	left  int    // decoding: fields of the current map, the current one included
	seen  uint64 // decoding: which visited fields have been decoded, by index
	need  uint64 // decoding: which visited fields are required
	rules bool   // decoding: the record has rules of its own, so it must be checked
	index int    // decoding, checking: index of the visited field

	describe func(FieldInfo)       // describing
	requires func(envelope string) // describing; may be nil

	ids [8]string // decoding: those that were read last
}

// failField records the first problem.
func (f *fields) failField(name, problem string) { f.refuseField(name, problem, nil) }

func (f *fields) refuseField(name, problem string, cause error) {
	if f.err != nil {
		return
	}
	if len(f.path) > 0 {
		name = strings.Join(f.path, ".") + "." + name
	}
	e := &FieldError{Field: name, Problem: problem, Err: cause}
	if f.event != nil {
		e.Type = f.event.Type()
	}
	f.err = e
}

// failValue ends a field if its value could not be taken.
func (f *fields) failValue(name, want string, err error) {
	switch {
	case errors.Is(err, errKind):
		f.failField(name, "must be "+want)
	case errors.Is(err, ErrTrailing):
		f.refuseField(name, "must be one value", err)
	case errors.Is(err, ErrDepth):
		f.refuseField(name, "is nested too deep", err)
	default:
		f.refuseField(name, "is malformed", err)
	}
}

// isMoved reports whether the field was moved to the object store.
func (f *fields) isMoved(name string) bool {
	if f.event == nil || len(f.event.Blobs) == 0 || len(f.path) > 0 {
		return false
	}
	return slices.ContainsFunc(f.event.Blobs, func(b Blob) bool { return b.Field == name })
}

// requireID makes an optional field of the envelope required.
func (f *fields) requireID(name string) {
	switch f.mode {
	case encoding, checking:
		if name == "sessionId" && f.event.SessionID == "" || name == "callId" && f.event.CallID == "" {
			f.failField(name, "is required")
		}
	case describing:
		if f.requires != nil {
			f.requires(name)
		}
	case decoding:
		f.rules = true
	}
}

const moved = "is both present and moved to a blob"

// beginField begins a field. It reports false if the field is to be left out.
func (f *fields) beginField(name string, empty bool, p presence) bool {
	switch {
	case f.err != nil:
		return false
	case f.isMoved(name):
		if !empty {
			f.failField(name, moved)
		}
		return false
	case empty && p == optional:
		return false
	case empty && p == nonEmpty:
		f.failField(name, "is required")
		return false
	}
	f.count++
	f.putKey(name)
	return true
}

// matchKey reports whether the current key is name, so that its value is to be
// decoded. It serves [checking] too.
func (f *fields) matchKey(name string, p presence) bool {
	bit := f.passField(p)
	if f.mode == checking {
		f.checkPresence(name, p, f.seen&bit != 0)
		return false
	}
	if f.err != nil || !f.isNext(name) {
		return false
	}
	if f.seen&bit != 0 {
		f.failField(name, "occurs twice")
		return false
	}
	f.seen |= bit
	return true
}

// isNext reports whether the current key is name.
func (f *fields) isNext(name string) bool { return f.left > 0 && string(f.key) == name }

// passField counts a field, which is needed by its presence, and returns its bit.
func (f *fields) passField(p presence) (bit uint64) {
	bit = uint64(1) << f.index
	f.index++
	if p != optional {
		f.need |= bit
	}
	return bit
}

func (f *fields) checkPresence(name string, p presence, seen bool) {
	switch moves := f.isMoved(name); {
	case moves && seen:
		f.failField(name, moved)
	case !moves && !seen && p != optional:
		f.failField(name, "is required")
	}
}

// matchNonNull is [fields.matchKey] for fields that have no null: in an optional one it
// counts as absent.
func (f *fields) matchNonNull(name string, p presence) bool {
	if !f.matchKey(name, p) {
		return false
	}
	if p == optional && len(f.in) > 0 && f.in[0] == codeNil {
		f.nextField(f.in[1:])
		return false
	}
	return true
}

// nextField ends a decoded field: rest begins with the following key.
func (f *fields) nextField(rest []byte) {
	f.in = rest
	if f.left--; f.left > 0 && f.err == nil {
		f.readKey()
	}
}

func (f *fields) readKey() {
	key, rest, err := readString(f.in)
	switch {
	case errors.Is(err, errKind):
		f.err = errKey
	case err != nil:
		f.err = errEnd
	}
	f.key, f.in = key, rest
}

// writeRecord appends r as a map. Its header is patched when the number of
// fields is known. The record inside a payload has a name.
func (f *fields) writeRecord(name string, r record) {
	if f.err != nil {
		return
	}
	outer := f.count
	if name != "" {
		f.path = append(f.path, name)
	}
	at := f.leaveRoom()
	f.count = 0
	r.visitFields(f)
	if k, ok := r.(keeper); ok && len(*k.unknownFields()) > 0 {
		f.writeUnknown(r, *k.unknownFields())
	}
	f.endMap(at)
	f.count = outer
	if name != "" {
		f.path = f.path[:len(f.path)-1]
	}
}

// endMap writes the header of the map that begins at at.
func (f *fields) endMap(at int) {
	start := len(f.buf)
	f.putMapLen(f.count)
	f.insertHeader(at, start)
}

// writeUnknown appends the fields that r doesn't know.
func (f *fields) writeUnknown(r record, rest []Field) {
	for i, field := range rest {
		switch {
		case f.err != nil:
			return
		case i > 0 && rest[i-1].Name >= field.Name:
			f.failField(field.Name, "is out of order or occurs twice")
		case !utf8.ValidString(field.Name):
			f.failField(field.Name, "must be valid UTF-8")
		case f.hasField(r, field.Name):
			f.failField(field.Name, "is a known field")
		}
		f.raw(field.Name, &field.Value, nonEmpty)
	}
}

// readRecord decodes the map at the input into r.
func (f *fields) readRecord(name string, r record) {
	if f.err != nil {
		return
	}
	n, rest, err := readMapHeader(f.in)
	if err != nil {
		f.failValue(name, "an object", err)
		return
	}
	f.in = rest
	key, left, index, seen, need, rules := f.key, f.left, f.index, f.seen, f.need, f.rules
	if name != "" {
		f.path = append(f.path, name)
	}
	f.readMap(n, r)
	if name != "" {
		f.path = f.path[:len(f.path)-1]
	}
	f.key, f.left, f.index, f.seen, f.need, f.rules = key, left, index, seen, need, rules
}

// readMap decodes n fields into r. In canonical input every field of r is found
// in one visit; other orders take more.
func (f *fields) readMap(n int, r record) {
	var keep *[]Field
	if k, ok := r.(keeper); ok {
		keep = k.unknownFields()
	}
	f.left, f.seen, f.need, f.rules = n, 0, 0, n == 0
	if n > 0 {
		f.readKey()
	}
	for f.left > 0 && f.err == nil {
		before := f.left
		f.index = 0
		r.visitFields(f)
		if f.left == before && f.err == nil {
			f.keepUnknown(keep)
		}
	}
	if f.err != nil {
		return
	}
	if f.rules || f.seen&f.need != f.need {
		f.mode, f.index = checking, 0
		r.visitFields(f)
		f.mode = decoding
	}
	if keep != nil && len(*keep) > 0 {
		f.sortUnknown(*keep)
	}
}

func (f *fields) keepUnknown(keep *[]Field) {
	name := string(f.key)
	if !utf8.ValidString(name) {
		f.failField(name, "must be valid UTF-8")
		return
	}
	value, rest, err := readRaw(f.in, MaxDepth)
	if err != nil {
		f.failValue(name, "a value", err)
		return
	}
	if keep != nil {
		*keep = append(*keep, Field{Name: name, Value: value})
	}
	f.nextField(rest)
}

func (f *fields) sortUnknown(rest []Field) {
	slices.SortFunc(rest, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(rest); i++ {
		if rest[i-1].Name == rest[i].Name {
			f.failField(rest[i].Name, "occurs twice")
		}
	}
}
