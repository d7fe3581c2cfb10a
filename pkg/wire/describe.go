package wire

import (
	"maps"
	"slices"
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
	known := lookUpType(t)
	info := TypeInfo{Type: t, Fields: known.shape.describeFields()}
	if known.requires != "" {
		info.Requires = []string{known.requires}
	}
	return info
}

// DescribeEnvelope returns the fields that all types share, in wire order. The
// payload's fields stand before the last one, blobs.
func DescribeEnvelope() []FieldInfo { return envelope().describeFields() }

func (s *shape) describeFields() (list []FieldInfo) {
	for _, f := range s.fields {
		info := FieldInfo{Name: f.name(), Kind: f.kind, Required: f.presence != optional, Enum: slices.Clone(f.words)}
		info.NonEmpty = f.presence == nonEmpty && f.kind != FieldAny // null is not empty, and "" neither
		if f.nested != nil {
			info.Fields = f.nested.describeFields()
		}
		list = append(list, info)
	}
	return list
}
