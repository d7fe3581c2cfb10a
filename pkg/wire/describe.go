package wire

import (
	"maps"
	"slices"
)

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

// FieldInfo describes a field of an event.
type FieldInfo struct {
	Name     string
	Kind     FieldKind
	Required bool        // always present
	NonEmpty bool        // neither "" nor 0; implies Required
	Enum     []string    // the values that a string may have, if they are limited
	Fields   []FieldInfo // of the objects
}

// TypeInfo describes a type of event.
type TypeInfo struct {
	Type     Type
	Requires []string    // optional fields of the envelope that this type requires
	Fields   []FieldInfo // of the payload, in wire order
}

// Types returns all types that this version knows, in alphabetical order.
func Types() []Type { return slices.Sorted(maps.Keys(catalogue())) }

// Describe returns the description of a type; without fields if it is unknown.
func Describe(t Type) TypeInfo {
	info := TypeInfo{Type: t}
	f := fields{known: lookUpType(t), requires: func(name string) { info.Requires = append(info.Requires, name) }}
	info.Fields = f.collectFields(func(f *fields) { f.visitPayload(f.known.newPayload(nil)) })
	return info
}

// DescribeEnvelope returns the fields that all types share, in wire order. The
// payload's fields stand before the last one, blobs.
func DescribeEnvelope() []FieldInfo {
	f := fields{known: opaqueType}
	return f.collectFields((&Event{Payload: new(Opaque)}).visitFields)
}

// collectFields returns what visit describes.
func (f *fields) collectFields(visit func(*fields)) (list []FieldInfo) {
	outer := *f
	f.mode = describing
	f.describe = func(i FieldInfo) { list = append(list, i) }
	visit(f)
	*f = outer
	return list
}

// describeField hands the description of a field to f.describe.
func (f *fields) describeField(name string, kind FieldKind, p presence) {
	f.describe(FieldInfo{Name: name, Kind: kind, Required: p != optional, NonEmpty: p == nonEmpty})
}

// describeNested is [fields.describeField] for fields that hold objects.
func (f *fields) describeNested(name string, kind FieldKind, p presence, r record) {
	f.describe(FieldInfo{Name: name, Kind: kind, Required: p != optional, Fields: f.collectFields(r.visitFields)})
}

// hasField reports whether r has a field of that name.
func (f *fields) hasField(r record, name string) bool {
	probe := fields{known: f.known}
	return slices.ContainsFunc(probe.collectFields(r.visitFields), func(i FieldInfo) bool { return i.Name == name })
}
