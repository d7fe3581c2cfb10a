package wire

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// part is a struct that is read from a map.
type part struct {
	*shape
	at   unsafe.Pointer
	seen uint64 // the bits of the fields that were read
}

// readMap reads n fields into the structs that have them; the first one keeps those that none has.
// In canonical input every field is found in one round; other orders take more.
func (r *reader) readMap(in []byte, n int, parts []part) (rest []byte) {
	for left := n; left > 0; {
		before := left
		for i := 0; i < len(parts) && left > 0; i++ {
			in, left = r.readInOrder(&parts[i], in, left)
		}
		if left == before {
			in = r.readByName(parts, in)
			left--
		}
		if r.err != nil {
			return nil
		}
	}
	if kept := *parts[0].unknownOf(parts[0].at); len(kept) > 0 {
		r.sortUnknown(kept)
	}
	return in
}

// readInOrder reads the fields of a part that stand at the input in wire order, at most left.
func (r *reader) readInOrder(p *part, in []byte, left int) ([]byte, int) {
	for i := range p.fields {
		key := p.fields[i].key
		if len(in) <= len(key) || in[0] != key[0] || in[1] != key[1] || string(in[:len(key)]) != key {
			continue
		}
		in = r.readField(p, i, in[len(key):])
		if left--; left == 0 || r.err != nil {
			return in, 0
		}
	}
	return in, left
}

// readByName reads a field that is unknown, or that another program has encoded.
func (r *reader) readByName(parts []part, in []byte) (rest []byte) {
	key, in, err := readString(in)
	switch {
	case errors.Is(err, errKind):
		r.err = errKey
		return nil
	case err != nil:
		r.err = errEnd
		return nil
	}
	name := string(key)
	for i := range parts {
		if at := parts[i].findField(name); at >= 0 {
			return r.readField(&parts[i], at, in)
		}
	}
	if !utf8.ValidString(name) {
		return r.failField(name, "must be valid UTF-8")
	}
	value, rest, err := readRaw(in, MaxDepth)
	if err != nil {
		return r.failValue(name, "a value", err)
	}
	kept := parts[0].unknownOf(parts[0].at)
	*kept = append(*kept, Field{Name: name, Value: value})
	return rest
}

// readField reads the value of a field. In an optional one that has no null, null counts as absent.
func (r *reader) readField(p *part, i int, in []byte) (rest []byte) {
	f := &p.fields[i]
	bit := uint64(1) << i
	if p.seen&bit != 0 {
		return r.failField(f.name(), "occurs twice")
	}
	p.seen |= bit
	if f.presence == optional && len(in) > 0 && in[0] == codeNil && f.kind != FieldAny {
		return in[1:]
	}
	return f.read(r, f, unsafe.Add(p.at, f.offset), in)
}

func (r *reader) sortUnknown(rest []Field) {
	slices.SortFunc(rest, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(rest); i++ {
		if rest[i-1].Name == rest[i].Name {
			r.failField(rest[i].Name, "occurs twice")
		}
	}
}

// checkPresence refuses a part that lacks a field, or has one that blobs name.
func (r *reader) checkPresence(p *part, blobs []Blob) {
	if p.required&^p.seen == 0 && len(blobs) == 0 {
		return
	}
	for i := range p.fields {
		f, seen := &p.fields[i], p.seen>>i&1 != 0
		switch away := isMoved(blobs, f.name()); {
		case away && seen:
			r.failField(f.name(), moved)
		case !away && !seen && f.presence != optional:
			r.failField(f.name(), "is required")
		}
	}
}

// readRecord reads a struct inside a field to an address.
func (r *reader) readRecord(f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	n, in, err := readMapHeader(in)
	if err != nil {
		return r.failValue(f.name(), "an object", err)
	}
	r.path = append(r.path, f.name())
	parts := [...]part{{shape: f.nested, at: at}}
	if rest = r.readMap(in, n, parts[:]); r.err == nil {
		r.checkPresence(&parts[0], nil)
	}
	r.path = r.path[:len(r.path)-1]
	return rest
}

// What follows reads the fields of a type each.

// passValue passes over a field that was read before.
func passValue(r *reader, f *field, _ unsafe.Pointer, in []byte) (rest []byte) {
	rest, err := skipValue(in)
	if err != nil {
		return r.failValue(f.name(), "a value", err)
	}
	return rest
}

// readBytes reads a string that is a part of the input.
func (r *reader) readBytes(f *field, in []byte) (b, rest []byte) {
	b, rest, err := readString(in)
	switch {
	case err != nil:
		r.failValue(f.name(), "a string", err)
	case !utf8.Valid(b):
		r.failField(f.name(), "must be valid UTF-8")
	case len(b) == 0 && f.presence == nonEmpty:
		r.failField(f.name(), "is required")
	}
	return b, rest
}

func readText(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	b, rest := r.readBytes(f, in)
	*(*string)(at) = string(b)
	return rest
}

// maxShared bounds the ids that are kept for the next event.
const maxShared = 128

// readShared reads an id that many events have in common. Those that are read one after the other
// share its memory.
func readShared(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	b, rest := r.readBytes(f, in)
	if len(b) == 0 || len(b) > maxShared {
		*(*string)(at) = string(b)
		return rest
	}
	// Ids that resemble each other, of sessions or of nodes, differ at their ends.
	last := len(b) - 1
	id := &r.ids[(int(b[last])+7*int(b[last/2])+13*last)%len(r.ids)]
	if *id != string(b) {
		*id = string(b)
	}
	*(*string)(at) = *id
	return rest
}

func readWord(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	rest = readText(r, f, at, in)
	r.checkWord(f, *(*string)(at))
	return rest
}

func (r *reader) readInteger(f *field, in []byte) (n int64, rest []byte) {
	n, rest, err := readInt(in)
	switch {
	case err != nil:
		r.failValue(f.name(), "an integer", err)
	case n == 0 && f.presence == nonEmpty:
		r.failField(f.name(), "is required")
	}
	return n, rest
}

// readSmall reads an int, which may have 32 bits.
func readSmall(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	n, rest := r.readInteger(f, in)
	if *(*int)(at) = int(n); int64(int(n)) != n {
		r.failField(f.name(), "is out of range")
	}
	return rest
}

func readInt64(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	*(*int64)(at), rest = r.readInteger(f, in)
	return rest
}

func readUint64(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	n, rest, err := readUint(in)
	switch {
	case err != nil:
		return r.failValue(f.name(), "an integer, not negative", err)
	case n == 0 && f.presence == nonEmpty:
		return r.failField(f.name(), "is required")
	}
	*(*uint64)(at) = n
	return rest
}

func readFlag(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	x, rest, err := readBool(in)
	if err != nil {
		return r.failValue(f.name(), "true or false", err)
	}
	*(*bool)(at) = x
	return rest
}

func readFloat64(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	x, rest, err := readFloat(in)
	if err != nil {
		return r.failValue(f.name(), "a finite number", err)
	}
	*(*float64)(at) = x
	return rest
}

// readPointer returns what reads a field that points to a value.
func readPointer[T any](read func(*reader, *field, unsafe.Pointer, []byte) []byte) func(*reader, *field, unsafe.Pointer, []byte) []byte {
	return func(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
		v := new(T)
		*(**T)(at) = v
		return read(r, f, unsafe.Pointer(v), in)
	}
}

func readDocument(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	value, rest, err := readRaw(in, f.depth)
	if err != nil {
		return r.failValue(f.name(), "a value", err)
	}
	*(*Raw)(at) = value
	return rest
}

// readItem reads a string inside a field.
func (r *reader) readItem(f *field, want string, in []byte) (s string, rest []byte) {
	b, rest, err := readString(in)
	switch {
	case err != nil:
		r.failValue(f.name(), want, err)
	case !utf8.Valid(b):
		r.failField(f.name(), "must be valid UTF-8")
	}
	return string(b), rest
}

func readStrings(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	return readItems(r, f, (*[]string)(at), in, func(s *string, in []byte) (rest []byte) {
		*s, rest = r.readItem(f, "an array of strings", in)
		return rest
	})
}

func readStringMap(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	return readEntries(r, f, (*map[string]string)(at), in, func(s *string, in []byte) (rest []byte) {
		*s, rest = r.readItem(f, "an object of strings", in)
		return rest
	})
}

func readObject(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	return r.readRecord(f, at, in)
}

func readObjects[T any](r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	return readItems(r, f, (*[]T)(at), in, func(v *T, in []byte) []byte { return r.readRecord(f, unsafe.Pointer(v), in) })
}

func readObjectMap[T any](r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) {
	return readEntries(r, f, (*map[string]T)(at), in, func(v *T, in []byte) []byte { return r.readRecord(f, unsafe.Pointer(v), in) })
}

// readItems reads a list. An empty one is nil.
func readItems[T any](r *reader, f *field, list *[]T, in []byte, item func(*T, []byte) []byte) (rest []byte) {
	n, rest, err := readArrayHeader(in)
	if err != nil {
		return r.failValue(f.name(), "an array", err)
	}
	for i := 0; i < n && r.err == nil; i++ {
		*list = append(*list, *new(T))
		rest = item(&(*list)[i], rest)
	}
	return rest
}

// maxAhead bounds the memory that is reserved on the word of a header: it may
// promise the rest of the message and break its word at once.
const maxAhead = 32

// readEntries reads a map. An empty one is nil.
func readEntries[T any](r *reader, f *field, m *map[string]T, in []byte, item func(*T, []byte) []byte) (rest []byte) {
	n, rest, err := readMapHeader(in)
	if err != nil {
		return r.failValue(f.name(), "an object", err)
	}
	if n > 0 {
		*m = make(map[string]T, min(n, maxAhead))
	}
	for i := 0; i < n && r.err == nil; i++ {
		var k string
		k, rest = r.readItem(f, "an object", rest)
		v := new(T)
		rest = item(v, rest)
		(*m)[k] = *v
	}
	if len(*m) != n {
		r.failField(f.name(), "has a key twice")
	}
	return rest
}
