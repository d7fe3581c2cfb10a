package wire

import (
	"bytes"
	"fmt"
	"strconv"
)

// At returns the value at a path of keys, in arrays of indexes; nil: there is none.
func (r Raw) At(path ...string) Raw {
	for _, key := range path {
		if n, rest, err := readArrayHeader(r); err == nil {
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= n {
				return nil
			}
			before := skipValues(rest, i)
			r = before[:len(before)-len(skipValues(before, 1))]
			continue
		}
		r = r.valueOf(key)
	}
	return r
}

// SetAt returns a copy of the value in which v stands at a path of keys, without one v itself; an absent v is null. Maps that are
// missing on the way are made, and what is neither map nor array gives way to one. In an array a key is the index of an element, or its
// length to append one. It costs a copy, however small the change is. It fails with [ErrDepth] if v would be nested too deep.
func (r Raw) SetAt(path []string, v Raw) (Raw, error) {
	if len(path) > MaxDepth {
		return nil, ErrDepth
	}
	if v.IsZero() {
		v = Null
	}
	v, rest, err := readRaw(v, MaxDepth-len(path))
	switch {
	case err != nil:
		return nil, err
	case len(rest) > 0:
		return nil, ErrTrailing
	}
	return r.putAt(path, v)
}

func (r Raw) putAt(path []string, v Raw) (Raw, error) {
	if len(path) == 0 {
		return v, nil
	}
	key := path[0]
	n, elements, err := readArrayHeader(r)
	if err != nil {
		if v, err = r.valueOf(key).putAt(path[1:], v); err != nil {
			return nil, err
		}
		return r.Merge(mapOf(key, v)), nil
	}
	i, err := strconv.Atoi(key)
	if err != nil || i < 0 || i > n {
		return nil, fmt.Errorf("%q is no index of a list of %d", key, n)
	}
	old := skipValues(elements, i)
	behind := old
	if i < n {
		behind = skipValues(old, 1)
	}
	if v, err = Raw(old[:len(old)-len(behind)]).putAt(path[1:], v); err != nil {
		return nil, err
	}
	return packWith(func(p *packer) error {
		p.putArrayLen(max(n, i+1))
		p.buf = append(append(append(p.buf, elements[:len(elements)-len(old)]...), v...), behind...)
		return nil
	})
}

// skipValues returns what follows the first n values of b, nothing if they can't be read.
func skipValues(b []byte, n int) []byte {
	for range n {
		rest, err := skipValue(b)
		if err != nil {
			return nil
		}
		b = rest
	}
	return b
}

// mapOf returns a map of one field.
func mapOf(key string, v Raw) Raw {
	m, _ := packWith(func(p *packer) error {
		p.putMapLen(1)
		p.putString(key)
		p.buf = append(p.buf, v...)
		return nil
	})
	return m
}

// Merge returns a map with the fields of two: of those with one name that of changes. What is no map has no fields.
func (r Raw) Merge(changes Raw) Raw {
	a, b := firstEntry(r), firstEntry(changes)
	n := 0
	fields, _ := packWith(func(p *packer) error {
		for ; a.ok || b.ok; n++ {
			order := 1
			if a.ok {
				order = -1
			}
			if a.ok && b.ok {
				order = bytes.Compare(a.key, b.key)
			}
			if order < 0 {
				p.buf = append(p.buf, a.bytes...)
			} else {
				p.buf = append(p.buf, b.bytes...)
			}
			if order <= 0 {
				a.nextEntry()
			}
			if order >= 0 {
				b.nextEntry()
			}
		}
		return nil
	})
	merged, _ := packWith(func(p *packer) error {
		p.putMapLen(n)
		p.buf = append(p.buf, fields...)
		return nil
	})
	return merged
}

// entryCursor is at an entry of a map.
type entryCursor struct {
	mapEntry

	ok   bool // false: behind the last one that can be read
	left int
	rest []byte
}

func firstEntry(m Raw) *entryCursor {
	c := &entryCursor{}
	if n, rest, err := readMapHeader(m); err == nil {
		c.left, c.rest = n, rest
	}
	c.nextEntry()
	return c
}

func (c *entryCursor) nextEntry() {
	c.ok = false
	if c.left == 0 {
		return
	}
	key, tail, err := readString(c.rest)
	if err != nil {
		return
	}
	end, err := skipValue(tail)
	if err != nil {
		return
	}
	c.mapEntry = mapEntry{bytes: c.rest[:len(c.rest)-len(end)], key: key}
	c.ok, c.left, c.rest = true, c.left-1, end
}
