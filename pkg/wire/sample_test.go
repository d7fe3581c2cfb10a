package wire_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/wire"
)

// envelope is the least that every event has.
func envelope(t wire.Type) map[string]any {
	m := map[string]any{
		"v": 1, "type": string(t), "runId": "r1", "nodeId": "coder",
		"seq": 17, "epoch": 2, "timestamp": 1767400000000,
	}
	for _, name := range wire.Describe(t).Requires {
		m[name] = name + "-1"
	}
	return m
}

// fullEvent has every field of its type and of the envelope, but blobs: a field
// is present or moved.
func fullEvent(t wire.Type) map[string]any {
	m := envelope(t)
	maps.Copy(m, map[string]any{
		"execId": "coder#1", "agentId": "reviewer", "sessionId": "7d4c1c9e-5b0e-4f6b-9d53-0c1f3a5e8b11",
		"turn": 3, "step": 1, "callId": "toolu_01A", "cause": "cmd-7", "parent": "toolu_00Z", "redactions": 1,
		"journalOffset": 1<<40 + 3, "journalIndex": 2,
	})
	fillAll(m, wire.Describe(t).Fields)
	return m
}

// leastEvent has the required fields, as empty as they may be.
func leastEvent(t wire.Type) map[string]any {
	m := envelope(t)
	fillRequired(m, wire.Describe(t).Fields)
	return m
}

func fillAll(m map[string]any, list []wire.FieldInfo) {
	for i, f := range list {
		m[f.Name] = fullValue(f, i+1)
	}
}

// fullValue is a value that tells fields apart.
func fullValue(f wire.FieldInfo, n int) any {
	object := func() map[string]any {
		m := map[string]any{}
		fillAll(m, f.Fields)
		return m
	}
	switch f.Kind {
	case wire.FieldString:
		if len(f.Enum) > 0 {
			return f.Enum[n%len(f.Enum)]
		}
		return f.Name + " ✓ \"1\"\n"
	case wire.FieldInteger:
		return -1000*n - 7
	case wire.FieldUnsigned:
		return 1<<40 + n
	case wire.FieldNumber:
		return float64(n) + 0.125
	case wire.FieldBoolean:
		return true
	case wire.FieldAny:
		return map[string]any{"name": f.Name, "list": []any{n, -0.5, nil, true, "é\u202e"}, "": map[string]any{}}
	case wire.FieldStrings:
		return []any{f.Name, ""}
	case wire.FieldStringMap:
		return map[string]any{"b": f.Name, "a": ""}
	case wire.FieldObject:
		return object()
	case wire.FieldObjects:
		return []any{object(), object()}
	case wire.FieldObjectMap:
		return map[string]any{"y": object(), "x": object()}
	}
	panic(f.Kind)
}

func fillRequired(m map[string]any, list []wire.FieldInfo) {
	for _, f := range list {
		if f.Required {
			m[f.Name] = leastValue(f)
		}
	}
}

func leastValue(f wire.FieldInfo) any {
	switch f.Kind {
	case wire.FieldString:
		switch {
		case len(f.Enum) > 0:
			return f.Enum[0]
		case f.NonEmpty:
			return f.Name
		}
		return ""
	case wire.FieldInteger, wire.FieldUnsigned:
		if f.NonEmpty {
			return 1
		}
		return 0
	case wire.FieldNumber:
		return 0.5
	case wire.FieldBoolean:
		return false
	case wire.FieldAny:
		return nil
	case wire.FieldStrings, wire.FieldObjects:
		return []any{}
	case wire.FieldStringMap, wire.FieldObjectMap:
		return map[string]any{}
	case wire.FieldObject:
		m := map[string]any{}
		fillRequired(m, f.Fields)
		return m
	}
	panic(f.Kind)
}

// decodeMap decodes an event that is given as a map.
func decodeMap(t interface {
	Helper()
	Fatalf(string, ...any)
}, m map[string]any,
) *wire.Event {
	t.Helper()
	b, err := wire.Marshal(m)
	if err != nil {
		t.Fatalf("marshal %v: %v", m, err)
	}
	e, err := wire.Decode(b)
	if err != nil {
		t.Fatalf("decode %v: %v", m, err)
	}
	return e
}

func encode(t testing.TB, e *wire.Event) []byte {
	t.Helper()
	b, err := wire.Encode(e)
	if err != nil {
		t.Fatalf("encode %s: %v", e.Type(), err)
	}
	return b
}

// anEvent generates events of all types, with unknown fields here and there.
func anEvent() *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		typ := rapid.SampledFrom(wire.Types()).Draw(t, "type")
		info := wire.Describe(typ)
		m := map[string]any{"v": 1, "type": string(typ)}
		for _, f := range slices.Concat(wire.DescribeEnvelope(), info.Fields) {
			if f.Name == "v" || f.Name == "type" || f.Name == "blobs" {
				continue
			}
			if f.Required || slices.Contains(info.Requires, f.Name) || rapid.Bool().Draw(t, "has "+f.Name) {
				if slices.Contains(info.Requires, f.Name) {
					f.NonEmpty = true
				}
				m[f.Name] = fieldValue(t, f)
			}
		}
		addUnknown(t, m)
		return m
	})
}

func fieldValue(t *rapid.T, f wire.FieldInfo) any {
	object := func() map[string]any {
		m := map[string]any{}
		for _, inner := range f.Fields {
			if inner.Required || rapid.Bool().Draw(t, "has "+inner.Name) {
				m[inner.Name] = fieldValue(t, inner)
			}
		}
		addUnknown(t, m)
		return m
	}
	size := rapid.IntRange(0, 3)
	switch f.Kind {
	case wire.FieldString:
		switch {
		case len(f.Enum) > 0:
			return rapid.SampledFrom(f.Enum).Draw(t, f.Name)
		case f.NonEmpty:
			return rapid.StringN(1, 40, 300).Draw(t, f.Name)
		}
		return rapid.String().Draw(t, f.Name)
	case wire.FieldInteger:
		return rapid.Int64().Draw(t, f.Name)
	case wire.FieldUnsigned:
		return rapid.Uint64Min(1).Draw(t, f.Name)
	case wire.FieldNumber:
		return rapid.Float64().Draw(t, f.Name)
	case wire.FieldBoolean:
		return rapid.Bool().Draw(t, f.Name)
	case wire.FieldAny:
		return aValue(3).Draw(t, f.Name)
	case wire.FieldStrings:
		list := []any{}
		for range size.Draw(t, "length") {
			list = append(list, rapid.String().Draw(t, f.Name))
		}
		return list
	case wire.FieldStringMap:
		m := map[string]any{}
		for range size.Draw(t, "length") {
			m[rapid.String().Draw(t, "key")] = rapid.String().Draw(t, f.Name)
		}
		return m
	case wire.FieldObject:
		return object()
	case wire.FieldObjects:
		list := []any{}
		for range size.Draw(t, "length") {
			list = append(list, object())
		}
		return list
	case wire.FieldObjectMap:
		m := map[string]any{}
		for range size.Draw(t, "length") {
			m[rapid.String().Draw(t, "key")] = object()
		}
		return m
	}
	panic(f.Kind)
}

// addUnknown adds fields that no version has.
func addUnknown(t *rapid.T, m map[string]any) {
	for i := range rapid.IntRange(0, 2).Draw(t, "unknown fields") {
		m[fmt.Sprintf("x-%d%s", i, rapid.String().Draw(t, "name"))] = aValue(2).Draw(t, "unknown")
	}
}

// aValue generates any value that both msgpack and JSON have.
func aValue(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		rapid.Int64().AsAny(),
		rapid.Uint64().AsAny(),
		rapid.Float64().AsAny(),
		rapid.Float64Range(-1e22, 1e22).AsAny(),
		rapid.Custom(func(t *rapid.T) float64 { return float64(rapid.Int64().Draw(t, "integral")) }).AsAny(),
		rapid.String().AsAny(),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	inner := aValue(depth - 1)
	return rapid.OneOf(append(leaves,
		rapid.SliceOfN(inner, 0, 20).AsAny(),
		rapid.MapOfN(rapid.String(), inner, 0, 20).AsAny())...)
}
