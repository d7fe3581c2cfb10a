package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/wire"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// setInto returns v with value at a path. It may change v.
func setInto(v any, path []string, value any) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	key, rest := path[0], path[1:]
	if list, ok := v.([]any); ok {
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i > len(list) {
			return nil, fmt.Errorf("%q is no index of a list of %d", key, len(list))
		}
		if i == len(list) {
			list = append(list, nil)
		}
		list[i], err = setInto(list[i], rest, value)
		return list, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	child, err := setInto(object[key], rest, value)
	object[key] = child
	return object, err
}

// Values that are changed as they are encoded have the bytes of those that are decoded, changed and encoded.
func TestChangesOfEncodedValues(t *testing.T) {
	value := rapid.Map(rapid.SampledFrom([]string{
		`null`, `1`, `-7.5`, `"text"`, `[]`, `{}`, `[1,[2,{"a":3}],null]`, `{"a":1,"b":[1,2],"long":"` + strings.Repeat("x", 300) + `"}`, `{"":{"a":{"b":null}}}`,
		`[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]`, `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1}`,
	}), func(s string) wire.Raw { return must(wire.RawFromJSON([]byte(s))) })
	path := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "zz", "", "0", "1", "15", "-1", "+0", "ü"}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		var state wire.Raw
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			path, v := path.Draw(t, "path"), value.Draw(t, "value")
			before := bytes.Clone(state)
			if rapid.Bool().Draw(t, "merge") {
				merged, _ := state.At(path...).Any().(map[string]any)
				merged = maps.Clone(merged)
				if merged == nil {
					merged = map[string]any{}
				}
				changes, _ := v.Any().(map[string]any)
				maps.Copy(merged, changes)
				if v = state.At(path...).Merge(v); !bytes.Equal(v, must(wire.Marshal(merged))) {
					t.Fatalf("at %q: merged to %v, want %v", path, v.Any(), merged)
				}
			}
			got, err := state.SetAt(path, v)
			whole, wantErr := setInto(state.Any(), path, v.Any())
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("at %q: %v, want %v", path, err, wantErr)
			}
			if !bytes.Equal(state, before) {
				t.Fatalf("at %q: the value itself was changed", path)
			}
			if err != nil {
				continue
			}
			if want := must(wire.Marshal(whole)); !bytes.Equal(got, want) {
				t.Fatalf("at %q: %x, want %x", path, got, want)
			}
			state = got
		}
	})
}

func TestChangesAreBounded(t *testing.T) {
	deep := must(wire.RawFromJSON([]byte(strings.Repeat("[", wire.MaxDepth) + strings.Repeat("]", wire.MaxDepth))))
	if _, err := wire.Raw(nil).SetAt(nil, deep); err != nil {
		t.Error(err)
	}
	if _, err := wire.Raw(nil).SetAt([]string{"a"}, deep); !errors.Is(err, wire.ErrDepth) {
		t.Error(err)
	}
	for n, want := range map[int]error{wire.MaxDepth: nil, wire.MaxDepth + 1: wire.ErrDepth} {
		got, err := wire.Raw(nil).SetAt(make([]string, n), wire.Null)
		if !errors.Is(err, want) {
			t.Errorf("%d maps: %v", n, err)
		}
		if _, err := wire.Canonical(got); want == nil && err != nil {
			t.Error(err)
		}
	}
	if _, err := wire.Raw(nil).SetAt([]string{"a"}, wire.Raw{0x91}); err == nil {
		t.Error("half a value was taken")
	}
}
