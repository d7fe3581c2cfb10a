package flow

import (
	"fmt"
	"math"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// place is where something stands in a file; zero if there is no file.
type place struct{ line, col int }

// tree is a value with places: what YAML, JSON and msgpack have in common.
type tree struct {
	at     place
	value  any // nil, bool, int64, uint64, float64 or string
	list   []*tree
	fields []treeField
	kind   kind
}

type treeField struct {
	name string
	at   place
	tree *tree
}

type kind uint8

const (
	scalar kind = iota
	list
	object
)

// get returns a field of an object, or nil.
func (t *tree) get(name string) *tree {
	if t == nil {
		return nil
	}
	for _, f := range t.fields {
		if f.name == name {
			return f.tree
		}
	}
	return nil
}

func (t *tree) isAbsent() bool { return t == nil || t.kind == scalar && t.value == nil }

func (t *tree) asText() (string, bool) {
	if t == nil || t.kind != scalar {
		return "", false
	}
	s, ok := t.value.(string)
	return s, ok
}

// kindName names the kind of the value for a message.
func (t *tree) kindName() string {
	switch {
	case t.kind == list:
		return "a list"
	case t.kind == object:
		return "an object"
	case t.value == nil:
		return "nothing"
	}
	switch v := t.value.(type) {
	case string:
		return "a text"
	case bool:
		return "true or false"
	default:
		return fmt.Sprintf("the number %v", v)
	}
}

// toAny returns the value without its places.
func (t *tree) toAny() any {
	switch {
	case t == nil:
		return nil
	case t.kind == list:
		out := make([]any, len(t.list))
		for i, item := range t.list {
			out[i] = item.toAny()
		}
		return out
	case t.kind == object:
		out := make(map[string]any, len(t.fields))
		for _, f := range t.fields {
			out[f.name] = f.tree.toAny()
		}
		return out
	}
	return t.value
}

// toRaw returns the value as it goes into a definition.
func (t *tree) toRaw() (wire.Raw, error) { return wire.Marshal(t.toAny()) }

// treeOf returns a value that has no places. Keys come in ascending order.
func treeOf(v any) *tree {
	switch v := v.(type) {
	case []any:
		t := &tree{kind: list, list: make([]*tree, len(v))}
		for i, item := range v {
			t.list[i] = treeOf(item)
		}
		return t
	case map[string]any:
		t := &tree{kind: object}
		for name, value := range v {
			t.fields = append(t.fields, treeField{name: name, tree: treeOf(value)})
		}
		slices.SortFunc(t.fields, func(a, b treeField) int {
			if a.name < b.name {
				return -1
			}
			return 1
		})
		return t
	case []byte:
		return &tree{value: string(v)}
	}
	return &tree{value: v}
}

// asInteger returns the value if it is an integer.
func (t *tree) asInteger() (int64, bool) {
	switch v := t.value.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return 0, false
}
