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
		if envelope().findField(name) >= 0 {
			continue
		}
		if _, _, err := scanValue(value, maxDocument); err != nil {
			return nil, err
		}
		before[name] = value
		values[name], _ = packWith(func(out *packer) error {
			m := textMapper{f: f, path: []string{name}, out: out}
			m.mapValue(value)
			return nil
		})
	}
	for {
		small, err := assembleEvent(values)
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

// textMapper rewrites the texts of a value that [scanValue] has accepted.
type textMapper struct {
	f    func(path []string, key bool, text string) string
	path []string
	out  *packer
}

func (m *textMapper) mapValue(b []byte) (rest []byte) {
	switch c := b[0]; {
	case isString(c):
		s, rest, _ := readString(b)
		m.out.putString(validString(m.f(m.path, false, string(s))))
		return rest
	case isArray(c):
		n, rest, _ := readArrayHeader(b)
		m.out.putArrayLen(n)
		for range n {
			rest = m.mapValue(rest)
		}
		return rest
	case isMap(c):
		return m.mapObject(b)
	}
	rest, _ = skipValue(b)
	m.out.buf = append(m.out.buf, b[:len(b)-len(rest)]...)
	return rest
}

// mapObject rewrites a map. Keys that become equal get numbers.
func (m *textMapper) mapObject(b []byte) (rest []byte) {
	n, rest, _ := readMapHeader(b)
	m.out.putMapLen(n)
	used, numbers := make(map[string]bool, n), map[string]int{}
	for range n {
		k, tail, _ := readString(rest)
		key := validString(m.f(m.path, true, string(k)))
		for base := key; used[key]; key = base + "#" + strconv.Itoa(numbers[base]+1) {
			numbers[base]++
		}
		used[key] = true
		m.path = append(m.path, string(k))
		m.out.putString(key)
		rest = m.mapValue(tail)
		m.path = m.path[:len(m.path)-1]
	}
	return rest
}
