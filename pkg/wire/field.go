package wire

import (
	"slices"
	"strings"
	"unsafe"
)

// shape is how a struct lies on the wire: its fields in wire order, as their tags
// `wire:"name,required"` tell. Instead of required there may be nonempty, see [presence];
// document marks a [Raw] that holds values, shared an id that many events have in common.
//
// A struct is visited by the offsets of its fields. That is sound since its address and its shape are
// always of the same type: the catalogue pairs types and payloads (writeEvent compares
// them), and readShape pairs a field with the functions for its type.
type shape struct {
	fields   []field // at most [maxFields]
	required uint64  // the bits of those that must be present
	unknown  uintptr // offset of the fields that it doesn't know; payloads have none, an event has theirs
}

type field struct {
	key      string // its name as encoded
	offset   uintptr
	probe    uintptr // offset of the integer that is zero if the field is blank
	width    uint8   // bytes of that integer; 0: ask isEmpty
	presence presence
	depth    int    // how deep a [Raw] may be nested
	nested   *shape // of the structs in it
	fieldType
}

// presence says when a field may be absent.
type presence uint8

const (
	optional presence = iota // absent if blank
	required                 // always present, may be blank
	nonEmpty                 // always present and never blank
)

// fieldType is what the fields of one type have in common.
type fieldType struct {
	kind    FieldKind
	words   []string                                                              // those that a string may be, if they are limited
	write   func(w *writer, f *field, at unsafe.Pointer)                          // behind the key
	read    func(r *reader, f *field, at unsafe.Pointer, in []byte) (rest []byte) // nil if the reader has an error then
	isEmpty func(at unsafe.Pointer) bool                                          // nil: no value is blank
}

// writer writes the fields of structs.
type writer struct {
	*packer
	fault
	count int // fields of the current map
}

// reader reads the fields of structs. What reads returns what follows, nil if there is an error.
type reader struct {
	fault
	ids [64]string // some of those that were read last
}

// FieldKind is the kind of value that a field takes.
type FieldKind string

// The kinds of fields.
const (
	FieldString    FieldKind = "string"
	FieldInteger   FieldKind = "integer"   // 64 bits
	FieldUnsigned  FieldKind = "unsigned"  // 64 bits, not negative
	FieldNumber    FieldKind = "number"    // a finite float
	FieldBoolean   FieldKind = "boolean"   //
	FieldAny       FieldKind = "any"       // a [Raw]; null is a value
	FieldStrings   FieldKind = "strings"   // array of strings
	FieldStringMap FieldKind = "stringMap" // map of strings
	FieldObject    FieldKind = "object"    // map with Fields
	FieldObjects   FieldKind = "objects"   // array of maps with Fields
	FieldObjectMap FieldKind = "objectMap" // map of maps with Fields
)

func (f *field) name() string { return f.key[1:] }

// isBlank reports whether the struct at an address has nothing in the field. It is inlined.
func (f *field) isBlank(at unsafe.Pointer) bool {
	if f.width == 8 {
		return *(*uint64)(unsafe.Add(at, f.probe)) == 0
	}
	return f.isBlankElse(at)
}

// isBlankElse is [field.isBlank] for fields that are not told by a word of 64 bits.
func (f *field) isBlankElse(at unsafe.Pointer) bool {
	switch f.width {
	case 4:
		return *(*uint32)(unsafe.Add(at, f.probe)) == 0
	case 1:
		return *(*uint8)(unsafe.Add(at, f.probe)) == 0
	}
	return f.isEmpty != nil && f.isEmpty(unsafe.Add(at, f.offset))
}

// findField returns the index of the field of that name, or -1.
func (s *shape) findField(name string) int {
	for i := range s.fields {
		if s.fields[i].name() == name {
			return i
		}
	}
	return -1
}

// unknownOf returns the fields of the struct at an address that its shape doesn't have.
func (s *shape) unknownOf(at unsafe.Pointer) *[]Field { return (*[]Field)(unsafe.Add(at, s.unknown)) }

// checkWord refuses a word that isn't one of the field's. A word that may be absent may be empty.
func (e *fault) checkWord(f *field, s string) {
	if s != "" && !slices.Contains(f.words, s) {
		e.failField(f.name(), "must be one of "+strings.Join(f.words, ", "))
	}
}
