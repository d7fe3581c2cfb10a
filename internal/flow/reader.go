package flow

import (
	"fmt"
	"slices"
	"strings"

	"wake/pkg/wire"
)

// reader takes a tree apart and tells what is wrong with it.
type reader struct{ *problems }

// fields are the fields of an object. Every field has to be taken; done tells of
// those that nobody took.
type fields struct {
	r     *reader
	t     *tree
	path  string
	taken []string
	wrong bool // it is no object, which has been told
}

// object begins to read an object; anything else is a problem, and empty.
func (r *reader) object(t *tree, path string) *fields {
	o := &fields{r: r, t: t, path: path}
	if t == nil || t.kind != object {
		if !t.absent() {
			r.add(t.at, path, "must be an object, not %s", t.what())
		}
		o.t, o.wrong = &tree{kind: object}, !t.absent()
		if t != nil {
			o.t.at = t.at
		}
	}
	return o
}

// field is the full name of a field.
func (o *fields) field(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// take returns a field, nil if it is absent or null.
func (o *fields) take(name string) *tree {
	o.taken = append(o.taken, name)
	t := o.t.get(name)
	if t.absent() {
		return nil
	}
	return t
}

// need returns a field that has to be there; nil after a problem.
func (o *fields) need(name string) *tree {
	t := o.take(name)
	if t == nil && !o.wrong {
		o.r.add(o.t.at, o.field(name), "is required")
	}
	return t
}

// done tells of fields that don't belong here.
func (o *fields) done() {
	for _, f := range o.t.fields {
		if !slices.Contains(o.taken, f.name) {
			o.r.add(f.at, o.field(f.name), "unknown field%s", suggest(f.name, o.taken))
		}
	}
}

func (o *fields) text(name string) string {
	t := o.take(name)
	if t == nil {
		return ""
	}
	s, ok := t.text()
	if !ok {
		o.r.add(t.at, o.field(name), "must be a text, not %s", t.what())
	}
	return s
}

// oneOf reads a text that is one of the values, or absent.
func (o *fields) oneOf(name string, values ...string) string {
	s := o.text(name)
	if s != "" && !slices.Contains(values, s) {
		o.r.add(o.t.get(name).at, o.field(name), "%q is unknown; it is one of %s%s", s, strings.Join(values, ", "), suggest(s, values))
		return ""
	}
	return s
}

func (o *fields) yes(name string) bool {
	t := o.take(name)
	if t == nil {
		return false
	}
	b, ok := t.value.(bool)
	if !ok {
		o.r.add(t.at, o.field(name), "must be true or false, not %s", t.what())
	}
	return b
}

// count reads an integer that is at least low.
func (o *fields) count(name string, low int64) int64 {
	t := o.take(name)
	if t == nil {
		return 0
	}
	n, ok := t.whole()
	if !ok || t.kind != scalar || n < low || n > maxCount {
		o.r.add(t.at, o.field(name), "must be an integer from %d to %d, not %s", low, int64(maxCount), t.what())
		return 0
	}
	return n
}

// maxCount bounds every count: four weeks in milliseconds, or more iterations
// than any log holds.
const maxCount = 28 * 24 * 3600 * 1000

// millis reads a time in milliseconds.
func (o *fields) millis(name string) int64 {
	t := o.t.get(name)
	if s, ok := t.text(); ok {
		o.taken = append(o.taken, name)
		o.r.add(t.at, o.field(name), "must be milliseconds, such as 600000 for ten minutes, not %q", s)
		return 0
	}
	return o.count(name, 0)
}

func (o *fields) list(name string) []*tree {
	t := o.take(name)
	if t == nil {
		return nil
	}
	if t.kind != list {
		o.r.add(t.at, o.field(name), "must be a list, not %s", t.what())
	}
	return t.list
}

func (o *fields) texts(name string) []string {
	var out []string
	for i, t := range o.list(name) {
		s, ok := t.text()
		if !ok {
			o.r.add(t.at, fmt.Sprintf("%s[%d]", o.field(name), i), "must be a text, not %s", t.what())
			continue
		}
		out = append(out, s)
	}
	return out
}

// textMap reads an object of texts.
func (o *fields) textMap(name string) map[string]string {
	t := o.take(name)
	if t == nil {
		return nil
	}
	m := map[string]string{}
	for _, f := range o.r.object(t, o.field(name)).t.fields {
		s, ok := f.tree.text()
		if !ok {
			o.r.add(f.tree.at, o.field(name)+"."+f.name, "must be a text, not %s", f.tree.what())
			continue
		}
		m[f.name] = s
	}
	return m
}

// raw reads any value.
func (o *fields) raw(name string) wire.Raw {
	t := o.take(name)
	if t == nil {
		return nil
	}
	v, err := t.raw()
	if err != nil {
		o.r.add(t.at, o.field(name), "%v", err)
	}
	return v
}

// rawObject reads an object of any shape.
func (o *fields) rawObject(name string) wire.Raw {
	if t := o.t.get(name); !t.absent() && t.kind != object {
		o.taken = append(o.taken, name)
		o.r.add(t.at, o.field(name), "must be an object, not %s", t.what())
		return nil
	}
	return o.raw(name)
}
