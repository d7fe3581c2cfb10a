package wire

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"
)

// Unmarshal decodes one value into v, which is a pointer. Structs are decoded by
// their `json` tags, to the letter; fields that they lack are passed over, and a
// null empties what it is decoded into. An `any` becomes what [Raw.Any] returns.
//
// A value of the wrong kind or out of range is refused with a [*FieldError].
// Nothing is reserved on the word of a header, so b may come from any sender.
func Unmarshal(b []byte, v any) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("wire: unmarshal into %T: not a pointer", v)
	}
	rest, err := decodeValue(b, p.Elem(), maxDocument)
	if err != nil {
		if e, ok := errors.AsType[*FieldError](err); ok {
			return e
		}
		return fmt.Errorf("wire: unmarshal into %T: %w", v, err)
	}
	if len(rest) > 0 {
		return ErrTrailing
	}
	return nil
}

// wantError is the error of a value that isn't what the target wants.
func wantError(err error, want string) error {
	if errors.Is(err, errKind) {
		return &FieldError{Field: "value", Problem: "must be " + want}
	}
	return err
}

func inField(name string, err error) error {
	e, ok := errors.AsType[*FieldError](err)
	if !ok {
		return fmt.Errorf("%s: %w", quoteName(name), err)
	}
	if e.Field == "value" {
		e.Field = name
	} else {
		e.Field = name + "." + e.Field
	}
	return e
}

func decodeValue(b []byte, v reflect.Value, depth int) (rest []byte, err error) {
	if len(b) == 0 {
		return nil, errEnd
	}
	t := v.Type()
	if t == rawType {
		value, rest, err := readRaw(b, maxDocument)
		if err == nil {
			v.SetBytes(value)
		}
		return rest, err
	}
	if t.Kind() == reflect.Pointer && b[0] != codeNil {
		if v.IsNil() {
			v.Set(reflect.New(t.Elem()))
		}
		return decodeValue(b, v.Elem(), depth)
	}
	if b[0] == codeNil {
		v.SetZero()
		return b[1:], nil
	}
	if t.PkgPath() != "" && reflect.PointerTo(t).Implements(unmarshalerType) && v.CanAddr() {
		return decodeUnmarshaler(b, v.Addr().Interface().(json.Unmarshaler))
	}
	return decodeKind(b, v, depth)
}

func decodeUnmarshaler(b []byte, v json.Unmarshaler) (rest []byte, err error) {
	text, rest, err := AppendFirstJSON(nil, b)
	if err != nil {
		return nil, err
	}
	if err := v.UnmarshalJSON(text); err != nil {
		return nil, &FieldError{Field: "value", Problem: "is refused: " + err.Error()}
	}
	return rest, nil
}

func decodeKind(b []byte, v reflect.Value, depth int) (rest []byte, err error) {
	switch v.Kind() {
	case reflect.Bool:
		x, rest, err := readBool(b)
		v.SetBool(x)
		return rest, wantError(err, "true or false")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		x, rest, err := readInt(b)
		if err == nil && v.OverflowInt(x) {
			err = errKind
		}
		v.SetInt(x)
		if err != nil {
			err = wantError(err, fmt.Sprintf("an integer of %d bits", v.Type().Bits()))
		}
		return rest, err
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		x, rest, err := readUint(b)
		if err == nil && v.OverflowUint(x) {
			err = errKind
		}
		v.SetUint(x)
		if err != nil {
			err = wantError(err, fmt.Sprintf("an integer of %d bits, not negative", v.Type().Bits()))
		}
		return rest, err
	case reflect.Float32, reflect.Float64:
		x, rest, err := readFloat(b)
		if err == nil && v.OverflowFloat(x) {
			err = errKind
		}
		v.SetFloat(x)
		return rest, wantError(err, "a number")
	case reflect.String:
		s, rest, err := readString(b)
		if err == nil && !utf8.Valid(s) {
			err = errUTF8
		}
		v.SetString(string(s))
		return rest, wantError(err, "a string")
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return decodeBytes(b, v)
		}
		return decodeSlice(b, v, depth)
	case reflect.Map:
		return decodeMap(b, v, depth)
	case reflect.Struct:
		return decodeStruct(b, v, depth)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			x, rest, err := readRaw(b, MaxDepth)
			if err == nil {
				v.Set(reflect.ValueOf(x.Any()))
			}
			return rest, err
		}
	}
	return nil, errUnsupported(v.Type())
}

// decodeBytes takes binary data, or base64 where the value came as JSON.
func decodeBytes(b []byte, v reflect.Value) (rest []byte, err error) {
	if isString(b[0]) {
		text, rest, err := readString(b)
		if err != nil {
			return nil, err
		}
		data, err := base64.StdEncoding.AppendDecode(nil, text)
		if err != nil {
			return nil, wantError(errKind, "base64")
		}
		v.SetBytes(data)
		return rest, nil
	}
	data, rest, err := readBin(b)
	v.SetBytes(append([]byte{}, data...))
	return rest, wantError(err, "binary data")
}

func decodeSlice(b []byte, v reflect.Value, depth int) (rest []byte, err error) {
	n, rest, err := readArrayHeader(b)
	if err != nil {
		return nil, wantError(err, "an array")
	}
	if depth == 0 {
		return nil, ErrDepth
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, min(n, maxAhead)))
	item := reflect.New(v.Type().Elem()).Elem()
	for range n {
		item.SetZero()
		if rest, err = decodeValue(rest, item, depth-1); err != nil {
			return nil, err
		}
		v.Set(reflect.Append(v, item))
	}
	return rest, nil
}

func decodeMap(b []byte, v reflect.Value, depth int) (rest []byte, err error) {
	t := v.Type()
	if t.Key().Kind() != reflect.String {
		return nil, errUnsupported(t)
	}
	n, rest, err := readMapHeader(b)
	if err != nil {
		return nil, wantError(err, "an object")
	}
	if depth == 0 {
		return nil, ErrDepth
	}
	v.Set(reflect.MakeMapWithSize(t, min(n, maxAhead)))
	key, item := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
	for range n {
		name, tail, err := readKey(rest)
		if err != nil {
			return nil, err
		}
		key.SetString(string(name))
		item.SetZero()
		if v.MapIndex(key).IsValid() {
			return nil, inField(string(name), &FieldError{Field: "value", Problem: "occurs twice"})
		}
		if rest, err = decodeValue(tail, item, depth-1); err != nil {
			return nil, inField(string(name), err)
		}
		v.SetMapIndex(key, item)
	}
	return rest, nil
}

func decodeStruct(b []byte, v reflect.Value, depth int) (rest []byte, err error) {
	n, rest, err := readMapHeader(b)
	if err != nil {
		return nil, wantError(err, "an object")
	}
	if depth == 0 {
		return nil, ErrDepth
	}
	l := layoutOf(v.Type())
	seen, next := make([]bool, len(l.members)), 0
	for range n {
		name, tail, err := readKey(rest)
		if err != nil {
			return nil, err
		}
		i, ok := next, next < len(l.members) && l.members[next].name == string(name) // names are in order, mostly
		if !ok {
			i, ok = l.byName[string(name)]
		}
		if !ok {
			if rest, err = skipValue(tail); err != nil {
				return nil, err
			}
			continue
		}
		if seen[i] {
			return nil, inField(string(name), &FieldError{Field: "value", Problem: "occurs twice"})
		}
		seen[i], next = true, i+1
		if rest, err = decodeValue(tail, v.FieldByIndex(l.members[i].index), depth-1); err != nil {
			return nil, inField(string(name), err)
		}
	}
	return rest, nil
}

// readKey reads the key of a map, which is a part of b.
func readKey(b []byte) (name, rest []byte, err error) {
	name, rest, err = readString(b)
	switch {
	case errors.Is(err, errKind):
		return nil, nil, errKey
	case err != nil:
		return nil, nil, errEnd
	case !utf8.Valid(name):
		return nil, nil, errUTF8
	}
	return name, rest, nil
}

// Items returns the items of a list, nil of anything else.
func (r Raw) Items() []Raw {
	var items []Raw
	if len(r) == 0 || Unmarshal(r, &items) != nil {
		return nil
	}
	return items
}
