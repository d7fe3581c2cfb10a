package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Marshal returns v in canonical form. Structs are encoded by their `json`
// tags, a nil map or slice as an empty one, types that are a [json.Marshaler]
// through JSON. Invalid UTF-8 is replaced by U+FFFD. It fails for numbers that
// aren't finite and for types that JSON doesn't have either.
func Marshal(v any) (Raw, error) {
	if r, ok := v.(Raw); ok && len(r) == 0 {
		return nil, nil
	}
	f := visitors.Get().(*fields) // for its buffer
	defer f.release()
	b, err := appendAny(f.buf, v, MaxDepth)
	if err != nil {
		return nil, fmt.Errorf("wire: marshal %T: %w", v, err)
	}
	f.buf = b
	return bytes.Clone(b), nil
}

// appendAny appends v. It spares the usual types a look by reflection.
func appendAny(b []byte, v any, depth int) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, codeNil), nil
	case bool:
		return appendBool(b, v), nil
	case string:
		return appendString(b, validString(v)), nil
	case int:
		return appendInt(b, int64(v)), nil
	case int64:
		return appendInt(b, v), nil
	case float64:
		return appendFinite(b, v)
	case []any:
		return appendSlice(b, reflect.ValueOf(v), depth)
	}
	return appendValue(b, reflect.ValueOf(v), depth)
}

func appendFinite(b []byte, x float64) ([]byte, error) {
	if !finite(x) {
		return nil, errFinite
	}
	return appendNumber(b, x), nil
}

func appendValue(b []byte, v reflect.Value, depth int) ([]byte, error) {
	t := v.Type()
	if t == rawType {
		return appendRawValue(b, v.Bytes())
	}
	if k := t.Kind(); k == reflect.Pointer || k == reflect.Interface {
		if v.IsNil() {
			return append(b, codeNil), nil
		}
		if k == reflect.Interface || !t.Implements(marshalerType) {
			return appendAny(b, v.Elem().Interface(), depth)
		}
		return appendMarshaler(b, v.Interface().(json.Marshaler))
	}
	if t.PkgPath() != "" && t.Implements(marshalerType) {
		return appendMarshaler(b, v.Interface().(json.Marshaler))
	}
	switch t.Kind() {
	case reflect.Bool:
		return appendBool(b, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(b, v.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendUint(b, v.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return appendFinite(b, v.Float())
	case reflect.String:
		return appendString(b, validString(v.String())), nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return appendBin(b, v.Bytes()), nil
		}
		return appendSlice(b, v, depth)
	case reflect.Map:
		return appendMap(b, v, depth)
	case reflect.Struct:
		return appendStruct(b, v, depth)
	}
	return nil, errUnsupported(t)
}

// appendRawValue appends a value inside another one; null if it is absent.
func appendRawValue(b []byte, v Raw) ([]byte, error) {
	if len(v) == 0 {
		return append(b, codeNil), nil
	}
	return appendRaw(b, v, maxDocument)
}

func appendMarshaler(b []byte, m json.Marshaler) ([]byte, error) {
	text, err := m.MarshalJSON()
	if err != nil {
		return nil, err
	}
	v, err := RawFromJSON(text)
	if err != nil {
		return nil, err
	}
	return append(b, v...), nil
}

func appendSlice(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, ErrDepth
	}
	b = appendArrayHeader(b, v.Len())
	for i := range v.Len() {
		var err error
		if b, err = appendValue(b, v.Index(i), depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func appendMap(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.Type().Key().Kind() != reflect.String {
		return nil, errUnsupported(v.Type())
	}
	if depth == 0 {
		return nil, ErrDepth
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
	b = appendMapHeader(b, len(keys))
	for _, key := range keys {
		name := key.String()
		if validString(name) != name {
			return nil, errUTF8
		}
		var err error
		if b, err = appendValue(appendString(b, name), v.MapIndex(key), depth-1); err != nil {
			return nil, fmt.Errorf("%s: %w", plain(name), err)
		}
	}
	return b, nil
}

func appendStruct(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, ErrDepth
	}
	l := layoutOf(v.Type())
	n := 0
	for i := range l.members {
		if !l.members[i].omit(v.FieldByIndex(l.members[i].index)) {
			n++
		}
	}
	b = appendMapHeader(b, n)
	for i := range l.members {
		m := &l.members[i]
		field := v.FieldByIndex(m.index)
		if m.omit(field) {
			continue
		}
		var err error
		if b, err = appendValue(appendString(b, m.name), field, depth-1); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return b, nil
}
