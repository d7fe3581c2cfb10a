package wire

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// envelope is the shape of what all events have. Its first two fields are not in the struct: an
// event is the version of this package and the type of its payload. Blobs, which stand behind the
// payload, are the last.
var envelope = sync.OnceValue(func() *shape {
	s := readShape(reflect.TypeFor[Event]())
	header := []field{newField("v", nonEmpty), newField("type", nonEmpty)}
	header[0].fieldType = fieldType{kind: FieldUnsigned, read: passValue}
	header[1].fieldType = fieldType{kind: FieldString, read: passValue}
	s.fields = slices.Concat(header, s.fields)
	s.required = s.required<<len(header) | (1<<len(header) - 1)
	return s
})

// inHeader is the number of fields of the envelope that are not in the struct.
const inHeader = 2

func newField(name string, p presence) field {
	if len(name) > maxFixed {
		panic(fmt.Sprintf("wire: the name %s is longer than %d bytes", name, maxFixed))
	}
	return field{key: string([]byte{codeFixed | byte(len(name))}) + name, presence: p}
}

// maxFields is the number of fields whose bits fit into a word, beside those in the header.
const maxFields = 64 - inHeader

func readShape(t reflect.Type) *shape {
	s := new(shape)
	for member := range t.Fields() {
		if member.Type == reflect.TypeFor[Unknown]() || member.Type == reflect.TypeFor[[]Field]() {
			s.unknown = member.Offset
		}
		tag, ok := member.Tag.Lookup("wire")
		if !ok {
			continue
		}
		f := readTag(tag, member)
		if f.presence != optional {
			s.required |= 1 << len(s.fields)
		}
		s.fields = append(s.fields, f)
	}
	if len(s.fields) > maxFields {
		panic(fmt.Sprintf("wire: %s has more than %d fields", t, maxFields))
	}
	return s
}

func readTag(tag string, member reflect.StructField) field {
	name, rest, _ := strings.Cut(tag, ",")
	options := strings.Split(rest, ",")
	p := optional
	switch {
	case slices.Contains(options, "required"):
		p = required
	case slices.Contains(options, "nonempty"):
		p = nonEmpty
	}
	f := newField(name, p)
	f.offset, f.probe, f.depth = member.Offset, member.Offset, MaxDepth
	f.fieldType, f.nested = typeOf(member.Type)
	switch member.Type.Kind() {
	case reflect.String, reflect.Slice: // the length stands behind the pointer
		f.width = uint8(unsafe.Sizeof(f.probe))
		f.probe += unsafe.Sizeof(f.probe)
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Bool, reflect.Pointer:
		f.width = uint8(member.Type.Size())
	}
	if p == required && (f.kind == FieldAny || f.words != nil) { // neither a value nor a word is ever blank
		f.presence = nonEmpty
	}
	if slices.Contains(options, "document") {
		f.depth = maxDocument
	}
	if slices.Contains(options, "shared") {
		f.read = readShared
	}
	return f
}

// typeOf returns what fields of a type have in common, and the shape of the structs in them.
func typeOf(t reflect.Type) (fieldType, *shape) {
	switch reflect.Zero(t).Interface().(type) {
	case string:
		return fieldType{kind: FieldString, write: writeString, read: readText}, nil
	case int:
		return fieldType{kind: FieldInteger, write: writeInt, read: readSmall}, nil
	case int64:
		return fieldType{kind: FieldInteger, write: writeInt64, read: readInt64}, nil
	case uint64:
		return fieldType{kind: FieldUnsigned, write: writeUint64, read: readUint64}, nil
	case bool:
		return fieldType{kind: FieldBoolean, write: writeBool, read: readFlag}, nil
	case *int:
		return fieldType{kind: FieldInteger, write: writePointer(writeInt), read: readPointer[int](readSmall)}, nil
	case *int64:
		return fieldType{kind: FieldInteger, write: writePointer(writeInt64), read: readPointer[int64](readInt64)}, nil
	case *float64:
		return fieldType{kind: FieldNumber, write: writePointer(writeNumber), read: readPointer[float64](readFloat64)}, nil
	case Raw:
		return fieldType{kind: FieldAny, write: writeRaw, read: readDocument}, nil
	case []string:
		return fieldType{kind: FieldStrings, write: writeStrings, read: readStrings}, nil
	case map[string]string:
		return fieldType{kind: FieldStringMap, write: writeStringMap, read: readStringMap, isEmpty: isEmptyMap[string]}, nil
	case TokenUsage:
		return fieldType{kind: FieldObject, write: writeObject, read: readObject, isEmpty: isZeroStruct[TokenUsage]}, shapeOf[TokenUsage]()
	case Patch:
		return fieldType{kind: FieldObject, write: writeObject, read: readObject, isEmpty: isZeroStruct[Patch]}, shapeOf[Patch]()
	case *TokenUsage:
		return fieldType{kind: FieldObject, write: writePointer(writeObject), read: readPointer[TokenUsage](readObject)}, shapeOf[TokenUsage]()
	case []Todo:
		return fieldType{kind: FieldObjects, write: writeObjects[Todo], read: readObjects[Todo]}, shapeOf[Todo]()
	case []Blob:
		return fieldType{kind: FieldObjects, write: writeObjects[Blob], read: readObjects[Blob]}, shapeOf[Blob]()
	case map[string]ModelUsage:
		return fieldType{
			kind: FieldObjectMap, write: writeObjectMap[ModelUsage], read: readObjectMap[ModelUsage], isEmpty: isEmptyMap[ModelUsage],
		}, shapeOf[ModelUsage]()
	case PatchOp:
		return wordOf(PatchSet, PatchMerge), nil
	case FlowStatus:
		return wordOf(FlowStatusComplete, FlowStatusFailed), nil
	case Severity:
		return wordOf(SeverityInfo, SeverityWarning, SeverityError, SeverityCritical), nil
	case Priority:
		return wordOf(PriorityInfo, PriorityQuestion, PriorityBlocker), nil
	case ToolCallState:
		return wordOf(ToolPending, ToolApprovalRequired, ToolApproved, ToolExecuting, ToolCompleted, ToolFailed, ToolDenied, ToolSealedState), nil
	case Decision:
		return wordOf(DecisionAllow, DecisionDeny), nil
	case CheckpointKind:
		return wordOf(CheckpointTurn, CheckpointSubturn, CheckpointSFP, CheckpointLabelled), nil
	case AuditResult:
		return wordOf(AuditPass, AuditFail, AuditWarn), nil
	}
	panic(fmt.Sprintf("wire: fields of type %s have no kind", t))
}

func shapeOf[T any]() *shape { return readShape(reflect.TypeFor[T]()) }

// wordOf is the type of a string out of a set.
func wordOf[T ~string](words ...T) fieldType {
	t := fieldType{kind: FieldString, write: writeWord, read: readWord}
	for _, word := range words {
		t.words = append(t.words, string(word))
	}
	return t
}

func isEmptyMap[T any](at unsafe.Pointer) bool { return len(*(*map[string]T)(at)) == 0 }

// isZeroStruct serves structs, which are never blank unless they were moved to a blob.
func isZeroStruct[T any](at unsafe.Pointer) bool { return reflect.ValueOf((*T)(at)).Elem().IsZero() }

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
