package wire

import (
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
	r, err := packWith(func(p *packer) error { return p.putAny(v, MaxDepth) })
	if err != nil {
		return nil, fmt.Errorf("wire: marshal %T: %w", v, err)
	}
	return r, nil
}

// putAny appends v. It spares the usual types a look by reflection.
func (p *packer) putAny(v any, depth int) error {
	switch v := v.(type) {
	case nil:
		p.putNil()
		return nil
	case bool:
		p.putBool(v)
		return nil
	case string:
		p.putString(validString(v))
		return nil
	case int:
		p.putInt(int64(v))
		return nil
	case int64:
		p.putInt(v)
		return nil
	case float64:
		return p.putFinite(v)
	case []any:
		return p.putSlice(reflect.ValueOf(v), depth)
	}
	return p.putValue(reflect.ValueOf(v), depth)
}

func (p *packer) putFinite(x float64) error {
	if !isFinite(x) {
		return errFinite
	}
	p.putNumber(x)
	return nil
}

func (p *packer) putValue(v reflect.Value, depth int) error {
	t := v.Type()
	if t == rawType {
		return p.putRawValue(v.Bytes())
	}
	if k := t.Kind(); k == reflect.Pointer || k == reflect.Interface {
		if v.IsNil() {
			p.putNil()
			return nil
		}
		if k == reflect.Interface || !t.Implements(marshalerType) {
			return p.putAny(v.Elem().Interface(), depth)
		}
		return p.putMarshaler(v.Interface().(json.Marshaler))
	}
	if t.PkgPath() != "" && t.Implements(marshalerType) {
		return p.putMarshaler(v.Interface().(json.Marshaler))
	}
	switch t.Kind() {
	case reflect.Bool:
		p.putBool(v.Bool())
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.putInt(v.Int())
		return nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.putUint(v.Uint())
		return nil
	case reflect.Float32, reflect.Float64:
		return p.putFinite(v.Float())
	case reflect.String:
		p.putString(validString(v.String()))
		return nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			p.putBytes(v.Bytes())
			return nil
		}
		return p.putSlice(v, depth)
	case reflect.Map:
		return p.putMap(v, depth)
	case reflect.Struct:
		return p.putStruct(v, depth)
	}
	return errUnsupported(t)
}

// putRawValue appends a value inside another one; null if it is absent.
func (p *packer) putRawValue(v Raw) error {
	if len(v) == 0 {
		p.putNil()
		return nil
	}
	return p.putRaw(v, maxDocument)
}

func (p *packer) putMarshaler(m json.Marshaler) error {
	text, err := m.MarshalJSON()
	if err != nil {
		return err
	}
	v, err := RawFromJSON(text)
	if err != nil {
		return err
	}
	p.buf = append(p.buf, v...)
	return nil
}

func (p *packer) putSlice(v reflect.Value, depth int) error {
	if depth == 0 {
		return ErrDepth
	}
	p.putArrayLen(v.Len())
	for i := range v.Len() {
		if err := p.putValue(v.Index(i), depth-1); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) putMap(v reflect.Value, depth int) error {
	if v.Type().Key().Kind() != reflect.String {
		return errUnsupported(v.Type())
	}
	if depth == 0 {
		return ErrDepth
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
	p.putMapLen(len(keys))
	for _, key := range keys {
		name := key.String()
		if validString(name) != name {
			return errUTF8
		}
		p.putString(name)
		if err := p.putValue(v.MapIndex(key), depth-1); err != nil {
			return fmt.Errorf("%s: %w", quoteName(name), err)
		}
	}
	return nil
}

func (p *packer) putStruct(v reflect.Value, depth int) error {
	if depth == 0 {
		return ErrDepth
	}
	l := layoutOf(v.Type())
	n := 0
	for i := range l.members {
		if !l.members[i].isOmitted(v.FieldByIndex(l.members[i].index)) {
			n++
		}
	}
	p.putMapLen(n)
	for i := range l.members {
		m := &l.members[i]
		field := v.FieldByIndex(m.index)
		if m.isOmitted(field) {
			continue
		}
		p.putString(m.name)
		if err := p.putValue(field, depth-1); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// RawString returns the value of a string. Invalid UTF-8 is replaced by U+FFFD.
func RawString(s string) Raw {
	r, _ := packWith(func(p *packer) error { p.putString(validString(s)); return nil })
	return r
}

// RawOf encodes a value; [Null] stands for one that has no form, such as one that is nested too deeply.
func RawOf(v any) Raw {
	r, err := Marshal(v)
	if err != nil {
		return Null
	}
	return r
}
