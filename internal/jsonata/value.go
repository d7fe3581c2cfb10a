package jsonata

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Values are nil (null), bool, float64, string, []any, map[string]any, *function, and
// nothing. They are never changed once they are made, and may be shared.

// nothing is the value of what there is not.
type nothing struct{}

func isAbsent(v any) bool { _, is := v.(nothing); return is }

// elementsOf returns a list as it is, another value as a list of it.
func elementsOf(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case nothing:
		return nil
	}
	return []any{v}
}

// unwrapSequence is what a sequence is as a value: one item is that item.
func unwrapSequence(items []any) any {
	switch len(items) {
	case 0:
		return nothing{}
	case 1:
		return items[0]
	}
	return items
}

// typedItems returns a list if all its items have the type T.
func typedItems[T any](v any) ([]T, bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, false
	}
	out := make([]T, len(list))
	for i, item := range list {
		if out[i], ok = item.(T); !ok {
			return nil, false
		}
	}
	return out, true
}

// Truth is JSONata's notion of true: not empty, not zero, not null.
func Truth(v any) bool {
	switch v := v.(type) {
	case bool:
		return v
	case float64:
		return v != 0
	case int64:
		return v != 0
	case uint64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return slices.ContainsFunc(v, Truth)
	case map[string]any:
		return len(v) > 0
	}
	return false
}

// isTrue is [Truth] at its price.
func (m *machine) isTrue(v any) bool {
	list, ok := v.([]any)
	if !ok {
		return Truth(v)
	}
	m.countSteps(len(list))
	return slices.ContainsFunc(list, m.isTrue)
}

// equalValues compares two values.
func (m *machine) equalValues(a, b any, depth int) bool {
	m.countSteps(1)
	m.checkDepth(depth)
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, func(x, y any) bool { return m.equalValues(x, y, depth+1) })
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, func(x, y any) bool { return m.equalValues(x, y, depth+1) })
	case string:
		m.countSteps(len(a) >> 8)
	}
	switch b.(type) {
	case []any, map[string]any:
		return false
	}
	return a == b
}

// textOf is a value as $string and & write it: a text as it is, a function as nothing, other
// values as JSON.
func (m *machine) textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nothing, *function:
		return ""
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return strconv.FormatInt(int64(v), 10)
		}
	}
	out := string(m.appendJSON(nil, v, 0))
	m.countBytes(len(out))
	return out
}

func (m *machine) appendJSON(out []byte, v any, depth int) []byte {
	m.countSteps(4)
	m.checkDepth(depth)
	before := len(out)
	switch v := v.(type) {
	case []any:
		out = append(out, '[')
		for i, item := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = m.appendJSON(out, item, depth+1)
		}
		return append(out, ']')
	case map[string]any:
		out = append(out, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(m.appendJSON(out, key, depth), ':')
			out = m.appendJSON(out, v[key], depth+1)
		}
		return append(out, '}')
	case *function, nothing:
		return append(out, `""`...)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return append(out, "null"...) // numbers are finite: not reached
	}
	out = append(out, b...)
	m.countBytes(len(out) - before)
	return out
}

// copyPlain returns a copy that shares nothing: what the log stores is as large as it looks.
func (m *machine) copyPlain(v any, depth int) (any, error) {
	m.countSteps(1)
	m.checkDepth(depth)
	m.countBytes(16)
	switch v := v.(type) {
	case *function:
		return nil, errFunction
	case string:
		m.countBytes(len(v))
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			var err error
			if out[i], err = m.copyPlain(item, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		m.countBytes(200 + 64*len(v))
		out := make(map[string]any, len(v))
		for key, item := range v {
			var err error
			if out[key], err = m.copyPlain(item, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}
