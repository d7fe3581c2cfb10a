package wire

import (
	"errors"
	"strconv"
	"strings"
)

// MapText decodes an event with f applied to every text of its payload: the
// strings and the keys of maps, at any depth. f gets the names that lead to the
// text, the field of the payload first and without places in lists, and whether
// the text is a key; it must not keep path. The envelope and the references to
// blobs stay as they are, and so does a field that f makes invalid, such as one
// of the few words that a type allows.
func MapText(encoded []byte, f func(path []string, key bool, text string) string) (*Event, error) {
	values, err := eventValues(encoded)
	if err != nil {
		return nil, err
	}
	before := make(map[string][]byte, len(values))
	for name, value := range values {
		if envelopeNames[name] {
			continue
		}
		if _, _, err := scan(value, maxDocument); err != nil {
			return nil, err
		}
		m := textMapper{f: f, path: []string{name}}
		before[name] = value
		values[name], _ = m.value(make([]byte, 0, len(value)), value)
	}
	for {
		small, err := assemble(values)
		if err == nil {
			return Decode(small)
		}
		wrong, ok := errors.AsType[*FieldError](err)
		if !ok {
			return nil, err
		}
		name, _, _ := strings.Cut(wrong.Field, ".")
		name, _, _ = strings.Cut(name, "[")
		if before[name] == nil {
			return nil, err
		}
		values[name] = before[name]
		delete(before, name)
	}
}

// textMapper rewrites the texts of a value that [scan] has accepted.
type textMapper struct {
	f    func(path []string, key bool, text string) string
	path []string
}

func (m *textMapper) value(out, b []byte) (grown, rest []byte) {
	switch c := b[0]; {
	case isString(c):
		s, rest, _ := readString(b)
		return appendString(out, validString(m.f(m.path, false, string(s)))), rest
	case isArray(c):
		n, rest, _ := readArrayHeader(b)
		out = appendArrayHeader(out, n)
		for range n {
			out, rest = m.value(out, rest)
		}
		return out, rest
	case isMap(c):
		return m.object(out, b)
	}
	rest, _ = skip(b)
	return append(out, b[:len(b)-len(rest)]...), rest
}

// object rewrites a map. Keys that become equal get numbers.
func (m *textMapper) object(out, b []byte) (grown, rest []byte) {
	n, rest, _ := readMapHeader(b)
	out = appendMapHeader(out, n)
	used := make(map[string]bool, n)
	for range n {
		k, tail, _ := readString(rest)
		key := validString(m.f(m.path, true, string(k)))
		for base, i := key, 2; used[key]; i++ {
			key = base + "#" + strconv.Itoa(i)
		}
		used[key] = true
		m.path = append(m.path, string(k))
		out, rest = m.value(appendString(out, key), tail)
		m.path = m.path[:len(m.path)-1]
	}
	return out, rest
}
