package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/wire"
)

// TestRoundTrip: whatever an event holds, both notations give it back, and one
// event has one encoding.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anEvent().Draw(t, "event")
		e := decodeMap(t, in)
		b, err := wire.Encode(e)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		again, err := wire.Decode(b)
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatalf("decode∘encode (-was +is):\n%s", diff)
		}
		j, err := wire.EncodeJSON(e)
		if err != nil {
			t.Fatalf("JSON: %v", err)
		}
		fromJSON, err := wire.DecodeJSON(j)
		if err != nil {
			t.Fatalf("decode %s: %v", j, err)
		}
		if diff := cmp.Diff(e, fromJSON); diff != "" {
			t.Fatalf("JSON (-was +is):\n%s", diff)
		}
		for _, x := range []*wire.Event{e, again, fromJSON} {
			if got, err := wire.Encode(x); err != nil || !bytes.Equal(got, b) {
				t.Fatalf("encode again: %v\n got %x\nwant %x", err, got, b)
			}
		}
		keepsEverything(t, in, j)
	})
}

// keepsEverything compares what went in with the JSON that came out: a field may
// only be missing if it was empty.
func keepsEverything(t *rapid.T, in map[string]any, out []byte) {
	j, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	if err := json.Unmarshal(j, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if diff := cmp.Diff(dropEmpty(want, 2), dropEmpty(got, 2)); diff != "" {
		t.Fatalf("lost (-in +out):\n%s", diff)
	}
}

// dropEmpty removes fields that are empty from the objects of an event.
func dropEmpty(v any, depth int) any {
	m, ok := v.(map[string]any)
	if list, isList := v.([]any); isList && depth > 0 {
		for i := range list {
			list[i] = dropEmpty(list[i], depth-1)
		}
	}
	if !ok || depth < 0 {
		return v
	}
	for name, value := range m {
		value = dropEmpty(value, depth-1)
		r := reflect.ValueOf(value)
		if value == nil || r.IsZero() || (r.Kind() == reflect.Map || r.Kind() == reflect.Slice) && r.Len() == 0 {
			delete(m, name)
		}
	}
	return m
}

// TestForeignEncoders: the order of keys and the width of numbers and headers
// don't matter, whichever program encoded the event.
func TestForeignEncoders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anEvent().Draw(t, "event")
		want := decodeMap(t, in)
		for name, b := range map[string][]byte{
			"long forms":  appendLong(nil, in, rapid.Bool().Draw(t, "upwards")),
			"msgpack/v5":  foreignMarshal(t, in, false),
			"sorted keys": foreignMarshal(t, in, true),
		} {
			got, err := wire.Decode(b)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

func foreignMarshal(t *rapid.T, v any, sorted bool) []byte {
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.SetSortMapKeys(sorted)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// appendLong encodes a value in the longest forms that msgpack has.
func appendLong(b []byte, v any, upwards bool) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case uint64:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
	case string:
		return append(binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(len(v))), v...)
	case []byte:
		return append(binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(len(v))), v...)
	case []any:
		b = binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(len(v)))
		for _, item := range v {
			b = appendLong(b, item, upwards)
		}
		return b
	case map[string]any:
		b = binary.BigEndian.AppendUint32(append(b, 0xdf), uint32(len(v)))
		keys := slices.Sorted(maps.Keys(v))
		if !upwards {
			slices.Reverse(keys)
		}
		for _, key := range keys {
			b = appendLong(appendLong(b, key, upwards), v[key], upwards)
		}
		return b
	}
	panic(reflect.TypeOf(v))
}

// TestUnknownFieldsSurvive: an older program that reads an event and writes it
// again loses nothing, at the top and inside the objects of the payload.
func TestUnknownFieldsSurvive(t *testing.T) {
	future := map[string]any{"name": "from the future", "null": nil}
	for _, typ := range append(wire.Types(), "future:type") {
		in := fullEvent(typ)
		addEverywhere(in, wire.Describe(typ).Fields, "zFuture", future)
		e := decodeMap(t, in)
		out := decodeJSON(t, wantError(t, wire.EncodeJSON, e)).(map[string]any)
		want := decodeJSON(t, wantError(t, json.Marshal, any(in)))
		if diff := cmp.Diff(want, any(out)); diff != "" {
			t.Errorf("%s (-in +out):\n%s", typ, diff)
		}
	}
}

func wantError[T any](t testing.TB, f func(T) ([]byte, error), v T) []byte {
	t.Helper()
	b, err := f(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// addEverywhere adds a field to an object and to all objects inside it.
func addEverywhere(m map[string]any, list []wire.FieldInfo, name string, value any) {
	m[name] = value
	for _, f := range list {
		switch f.Kind {
		case wire.FieldObject:
			addEverywhere(m[f.Name].(map[string]any), f.Fields, name, value)
		case wire.FieldObjects:
			for _, item := range m[f.Name].([]any) {
				addEverywhere(item.(map[string]any), f.Fields, name, value)
			}
		case wire.FieldObjectMap:
			for _, item := range m[f.Name].(map[string]any) {
				addEverywhere(item.(map[string]any), f.Fields, name, value)
			}
		default:
		}
	}
}

// TestCanonicalIsUnique: values that JSON can't tell apart have the same bytes,
// and canonical bytes are left alone.
func TestCanonicalIsUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := aValue(3).Draw(t, "value")
		want, err := wire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		j, err := json.Marshal(want.Any()) // of v it would have floats beyond 2^53 with digits that they don't have
		if err != nil {
			t.Fatal(err)
		}
		fromJSON, err := wire.RawFromJSON(j)
		if err != nil {
			t.Fatalf("%v in %s", err, j)
		}
		again, err := want.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		fromOurs, err := wire.RawFromJSON(again)
		if err != nil {
			t.Fatalf("%v in %s", err, again)
		}
		fromAny, err := wire.Marshal(want.Any())
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string]wire.Raw{
			"JSON": fromJSON, "our JSON": fromOurs, "any": fromAny,
			"itself":     canonical(t, want),
			"long forms": canonical(t, appendLong(nil, v, false)),
			"msgpack/v5": canonical(t, foreignMarshal(t, v, false)),
		} {
			if !bytes.Equal(got, want) {
				t.Fatalf("%s\n got %x\nwant %x", name, got, want)
			}
		}
	})
}

func canonical(t *rapid.T, b []byte) wire.Raw {
	v, err := wire.Canonical(b)
	if err != nil {
		t.Fatalf("%x: %v", b, err)
	}
	return v
}
