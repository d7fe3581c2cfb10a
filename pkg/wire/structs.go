package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// layout is how a struct type is encoded: its fields by name, as its `json`
// tags tell.
type layout struct {
	members []member // ordered by name
	byName  map[string]int
}

type member struct {
	name      string
	index     []int
	omitEmpty bool
	omitZero  bool
}

// layouts holds the layout of every struct type that was met.
var layouts sync.Map // a cache: types don't change

// layoutOf returns the layout of a struct type. Embedded structs without a name
// of their own lend their fields, as in encoding/json.
func layoutOf(t reflect.Type) *layout {
	if l, ok := layouts.Load(t); ok {
		return l.(*layout)
	}
	l := &layout{byName: map[string]int{}}
	for _, f := range reflect.VisibleFields(t) {
		if m, ok := memberOf(t, f); ok {
			l.members = append(l.members, m)
		}
	}
	slices.SortFunc(l.members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	for i, m := range l.members {
		l.byName[m.name] = i
	}
	actual, _ := layouts.LoadOrStore(t, l)
	return actual.(*layout)
}

func memberOf(t reflect.Type, f reflect.StructField) (member, bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if !f.IsExported() || name == "-" || f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
		return member{}, false
	}
	for i := 1; i < len(f.Index); i++ { // what it is embedded in must be inlined too
		outer := t.FieldByIndex(f.Index[:i])
		if outer.Type.Kind() != reflect.Struct || outer.Tag.Get("json") != "" {
			return member{}, false
		}
	}
	name = cmp.Or(name, f.Name)
	list := strings.Split(options, ",")
	return member{
		name:      name,
		index:     f.Index,
		omitEmpty: slices.Contains(list, "omitempty"),
		omitZero:  slices.Contains(list, "omitzero"),
	}, true
}

func (m *member) isOmitted(v reflect.Value) bool {
	return m.omitEmpty && isEmpty(v) || m.omitZero && isZero(v)
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}

func isZero(v reflect.Value) bool {
	if z, ok := reflect.TypeAssert[interface{ IsZero() bool }](v); ok {
		return z.IsZero()
	}
	return v.IsZero()
}

var (
	rawType         = reflect.TypeFor[Raw]()
	marshalerType   = reflect.TypeFor[json.Marshaler]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
)

func errUnsupported(t reflect.Type) error {
	return fmt.Errorf("type %s is not supported", t)
}
