package document

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Decode writes a value into what a pointer points to: structs with yaml or json tags, maps, lists, pointers, texts, numbers,
// true or false, and spans of time such as 5m. What the value doesn't name stays as it is. Anything that doesn't fit
// is a problem, which doesn't quote texts: they may be secrets.
func (ps *Problems) Decode(v *Value, into any) {
	d := decoder{ps}
	d.decodeValue(v, reflect.ValueOf(into).Elem(), "")
}

type decoder struct{ *Problems }

func (d decoder) decodeValue(v *Value, to reflect.Value, path string) {
	if v.IsAbsent() {
		return
	}
	if to.Type() == reflect.TypeFor[time.Duration]() {
		d.decodeSpan(v, to, path)
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
		}
		d.decodeValue(v, to.Elem(), path)
	case reflect.Interface:
		if to.Elem().Kind() == reflect.Pointer { // the caller has set it, and knows what belongs here
			d.decodeValue(v, to.Elem(), path)
			return
		}
		to.Set(reflect.ValueOf(v.ToAny()))
	case reflect.Struct:
		d.decodeStruct(v, to, path)
	case reflect.Map:
		d.decodeMap(v, to, path)
	case reflect.Slice:
		d.decodeList(v, to, path)
	default:
		d.decodeScalar(v, to, path)
	}
}

// wantKind reports whether a value is of a kind, and notes a problem if it isn't.
func (d decoder) wantKind(v *Value, kind Kind, word, path string) bool {
	if v.Kind != kind {
		d.Add(v.At, path, "must be %s", word)
	}
	return v.Kind == kind
}

func (d decoder) decodeStruct(v *Value, to reflect.Value, path string) {
	if !d.wantKind(v, Object, "an object", path) {
		return
	}
	fields := map[string]reflect.Value{}
	var names []string
	for i := range to.NumField() {
		if name := fieldName(to.Type().Field(i)); name != "" {
			fields[name], names = to.Field(i), append(names, name)
		}
	}
	for _, f := range v.Fields {
		field, ok := fields[f.Name]
		if !ok {
			d.Add(f.At, joinPath(path, f.Name), "unknown field%s", SuggestName(f.Name, names))
			continue
		}
		d.decodeValue(f.Value, field, joinPath(path, f.Name))
	}
}

// fieldName is a field's name in files; "" if it isn't one of them.
func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(cmp.Or(f.Tag.Get("yaml"), f.Tag.Get("json")), ",")
	if name == "-" {
		return ""
	}
	return name
}

func joinPath(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

func (d decoder) decodeMap(v *Value, to reflect.Value, path string) {
	if !d.wantKind(v, Object, "an object", path) {
		return
	}
	to.Set(reflect.MakeMap(to.Type()))
	for _, f := range v.Fields {
		item := reflect.New(to.Type().Elem()).Elem()
		d.decodeValue(f.Value, item, joinPath(path, f.Name))
		to.SetMapIndex(reflect.ValueOf(f.Name).Convert(to.Type().Key()), item)
	}
}

func (d decoder) decodeList(v *Value, to reflect.Value, path string) {
	if !d.wantKind(v, List, "a list", path) {
		return
	}
	to.Set(reflect.MakeSlice(to.Type(), len(v.List), len(v.List)))
	for i, item := range v.List {
		d.decodeValue(item, to.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d decoder) decodeSpan(v *Value, to reflect.Value, path string) {
	text, ok := v.AsText()
	span, err := time.ParseDuration(text)
	if n, isNumber := v.AsInteger(); isNumber && n == 0 {
		ok, err = true, nil
	}
	if !ok || err != nil {
		d.Add(v.At, path, "must be a span of time such as 90s, 5m or 24h")
		return
	}
	to.SetInt(int64(span))
}

func (d decoder) decodeScalar(v *Value, to reflect.Value, path string) {
	fits, word := false, "another value"
	switch to.Kind() {
	case reflect.String:
		var text string
		if text, fits = v.AsText(); fits {
			to.SetString(text)
		}
		word = "a text; numbers and such need quotes"
	case reflect.Bool:
		var truth bool
		if truth, fits = v.Scalar.(bool); fits {
			to.SetBool(truth)
		}
		word = "true or false"
	case reflect.Int, reflect.Int64:
		var n int64
		if n, fits = v.AsInteger(); fits {
			to.SetInt(n)
		}
		word = "a whole number"
	case reflect.Float64:
		var x float64
		if x, fits = v.AsNumber(); fits {
			to.SetFloat(x)
		}
		word = "a number"
	}
	if !fits {
		d.Add(v.At, path, "must be %s", word)
	}
}
