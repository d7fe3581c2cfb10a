package document

import (
	"fmt"
	"math"
	"slices"
)

// Place is where something stands in a file, from 1; zero if there is no file.
type Place struct{ Line, Col int }

// Value is a value with places: what YAML, JSON and msgpack have in common.
type Value struct {
	At     Place
	Kind   Kind
	Scalar any // nil, bool, int64, uint64, float64 or string
	List   []*Value
	Fields []Field
}

// Field is a field of an object.
type Field struct {
	Name  string
	At    Place // of its name
	Value *Value
}

// Kind says what a [Value] is.
type Kind uint8

// The kinds.
const (
	Scalar Kind = iota
	List
	Object
)

// Get returns a field of an object, or nil.
func (t *Value) Get(name string) *Value {
	if t == nil {
		return nil
	}
	for _, f := range t.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

// IsAbsent reports whether there is no value, or null.
func (t *Value) IsAbsent() bool { return t == nil || t.Kind == Scalar && t.Scalar == nil }

// AsText returns the value if it is a text.
func (t *Value) AsText() (string, bool) {
	if t == nil || t.Kind != Scalar {
		return "", false
	}
	s, ok := t.Scalar.(string)
	return s, ok
}

// KindName names the kind of the value for a message.
func (t *Value) KindName() string {
	switch {
	case t.Kind == List:
		return "a list"
	case t.Kind == Object:
		return "an object"
	case t.Scalar == nil:
		return "nothing"
	}
	switch v := t.Scalar.(type) {
	case string:
		return "a text"
	case bool:
		return "true or false"
	default:
		return fmt.Sprintf("the number %v", v)
	}
}

// ToAny returns the value without its places.
func (t *Value) ToAny() any {
	switch {
	case t == nil:
		return nil
	case t.Kind == List:
		out := make([]any, len(t.List))
		for i, item := range t.List {
			out[i] = item.ToAny()
		}
		return out
	case t.Kind == Object:
		out := make(map[string]any, len(t.Fields))
		for _, f := range t.Fields {
			out[f.Name] = f.Value.ToAny()
		}
		return out
	}
	return t.Scalar
}

// ValueOf returns a value that has no places. Keys come in ascending order.
func ValueOf(v any) *Value {
	switch v := v.(type) {
	case []any:
		t := &Value{Kind: List, List: make([]*Value, len(v))}
		for i, item := range v {
			t.List[i] = ValueOf(item)
		}
		return t
	case map[string]any:
		t := &Value{Kind: Object}
		for name, value := range v {
			t.Fields = append(t.Fields, Field{Name: name, Value: ValueOf(value)})
		}
		slices.SortFunc(t.Fields, func(a, b Field) int {
			if a.Name < b.Name {
				return -1
			}
			return 1
		})
		return t
	case []byte:
		return &Value{Scalar: string(v)}
	}
	return &Value{Scalar: v}
}

// AsInteger returns the value if it is an integer.
func (t *Value) AsInteger() (int64, bool) {
	switch v := t.Scalar.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return 0, false
}

// AsNumber returns the value if it is a number.
func (t *Value) AsNumber() (float64, bool) {
	switch v := t.Scalar.(type) {
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}
