package flow

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// flowReader takes a tree apart and tells what is wrong with it.
type flowReader struct{ *document.Problems }

// fields are the fields of an object. Every field has to be taken; done tells of
// those that the reader didn't take.
type fields struct {
	r     *flowReader
	t     *document.Value
	path  string
	taken []string
	wrong bool // it is no object, which has been told
}

// openObject begins to read an object; anything else is a problem, and empty.
func (r *flowReader) openObject(t *document.Value, path string) *fields {
	o := &fields{r: r, t: t, path: path}
	if t == nil || t.Kind != document.Object {
		if !t.IsAbsent() {
			r.Add(t.At, path, "must be an object, not %s", t.KindName())
		}
		o.t, o.wrong = &document.Value{Kind: document.Object}, !t.IsAbsent()
		if t != nil {
			o.t.At = t.At
		}
	}
	return o
}

// fieldName is the full name of a field.
func (o *fields) fieldName(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// takeField returns a field, nil if it is absent or null.
func (o *fields) takeField(name string) *document.Value {
	o.taken = append(o.taken, name)
	t := o.t.Get(name)
	if t.IsAbsent() {
		return nil
	}
	return t
}

// needField returns a field that has to be there; nil after a problem.
func (o *fields) needField(name string) *document.Value {
	t := o.takeField(name)
	if t == nil && !o.wrong {
		o.r.Add(o.t.At, o.fieldName(name), "is required")
	}
	return t
}

// checkUnknown tells of fields that don't belong here.
func (o *fields) checkUnknown() {
	for _, f := range o.t.Fields {
		if !slices.Contains(o.taken, f.Name) {
			o.r.Add(f.At, o.fieldName(f.Name), "unknown field%s", document.SuggestName(f.Name, o.taken))
		}
	}
}

func (o *fields) takeText(name string) string {
	t := o.takeField(name)
	if t == nil {
		return ""
	}
	s, ok := t.AsText()
	if !ok {
		o.r.Add(t.At, o.fieldName(name), "must be a text, not %s", t.KindName())
	}
	return s
}

// takeOneOf reads a text that is one of the values, or absent.
func (o *fields) takeOneOf(name string, values ...string) string {
	s := o.takeText(name)
	if s != "" && !slices.Contains(values, s) {
		o.r.Add(o.t.Get(name).At, o.fieldName(name), "%q is unknown; it is one of %s%s", s, strings.Join(values, ", "), document.SuggestName(s, values))
		return ""
	}
	return s
}

func (o *fields) takeBool(name string) bool {
	t := o.takeField(name)
	if t == nil {
		return false
	}
	b, ok := t.Scalar.(bool)
	if !ok {
		o.r.Add(t.At, o.fieldName(name), "must be true or false, not %s", t.KindName())
	}
	return b
}

// takeCount reads an integer that is at least low.
func (o *fields) takeCount(name string, low int64) int64 { return o.takeInteger(name, low, maxCount) }

// takeInteger reads an integer from low to high.
func (o *fields) takeInteger(name string, low, high int64) int64 {
	t := o.takeField(name)
	if t == nil {
		return 0
	}
	n, ok := t.AsInteger()
	if !ok || t.Kind != document.Scalar || n < low || n > high {
		o.r.Add(t.At, o.fieldName(name), "must be an integer from %d to %d, not %s", low, high, t.KindName())
		return 0
	}
	return n
}

// maxCount bounds every count: four weeks in milliseconds, or more iterations
// than any log holds.
const maxCount = 28 * 24 * 3600 * 1000

// maxTokens bounds budgets of tokens: more than all models together read in a year.
const maxTokens = 1 << 53

// takeMillis reads a time in milliseconds.
func (o *fields) takeMillis(name string) int64 {
	t := o.t.Get(name)
	if s, ok := t.AsText(); ok {
		o.taken = append(o.taken, name)
		o.r.Add(t.At, o.fieldName(name), "must be milliseconds, such as 600000 for ten minutes, not %q", s)
		return 0
	}
	return o.takeCount(name, 0)
}

// size reads a number of bytes that is at least low, as an integer or as [ParseSize] reads it.
func (o *fields) size(name string, low int64) int64 {
	t := o.takeField(name)
	if t == nil {
		return 0
	}
	n, ok := t.AsInteger()
	what := t.KindName()
	if s, text := t.AsText(); text {
		var err error
		n, err = ParseSize(s)
		ok, what = err == nil, strconv.Quote(s)
	}
	if !ok || t.Kind != document.Scalar || n < low {
		o.r.Add(t.At, o.fieldName(name), "must be a number of bytes from %d on, such as 500MB or 2GiB, not %s", low, what)
		return 0
	}
	return n
}

// ParseSize reads a number of bytes: 1024, 20MB, 1.5GiB.
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "BKMGTPibkmgtp")
	number, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, errSize
	}
	units := map[string]float64{
		"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	}
	unit, ok := units[strings.ToLower(s[len(digits):])]
	if !ok || !(math.Abs(number)*unit <= math.MaxInt64/2) { // NaN is no number either
		return 0, errSize
	}
	return int64(number * unit), nil
}

var errSize = errors.New("want a number of bytes, such as 500MB or 20GiB")

func (o *fields) takeList(name string) []*document.Value {
	t := o.takeField(name)
	if t == nil {
		return nil
	}
	if t.Kind != document.List {
		o.r.Add(t.At, o.fieldName(name), "must be a list, not %s", t.KindName())
	}
	return t.List
}

func (o *fields) takeTexts(name string) []string {
	var out []string
	for i, t := range o.takeList(name) {
		s, ok := t.AsText()
		if !ok {
			o.r.Add(t.At, fmt.Sprintf("%s[%d]", o.fieldName(name), i), "must be a text, not %s", t.KindName())
			continue
		}
		out = append(out, s)
	}
	return out
}

// takeTextMap reads an object of texts.
func (o *fields) takeTextMap(name string) map[string]string {
	t := o.takeField(name)
	if t == nil {
		return nil
	}
	m := map[string]string{}
	for _, f := range o.r.openObject(t, o.fieldName(name)).t.Fields {
		s, ok := f.Value.AsText()
		if !ok {
			o.r.Add(f.Value.At, o.fieldName(name)+"."+f.Name, "must be a text, not %s", f.Value.KindName())
			continue
		}
		m[f.Name] = s
	}
	return m
}

// takeRaw reads any value.
func (o *fields) takeRaw(name string) wire.Raw {
	t := o.takeField(name)
	if t == nil {
		return nil
	}
	v, err := wire.Marshal(t.ToAny())
	if err != nil {
		o.r.Add(t.At, o.fieldName(name), "%v", err)
	}
	return v
}

// takeRawObject reads an object of any shape.
func (o *fields) takeRawObject(name string) wire.Raw {
	if t := o.t.Get(name); !t.IsAbsent() && t.Kind != document.Object {
		o.taken = append(o.taken, name)
		o.r.Add(t.At, o.fieldName(name), "must be an object, not %s", t.KindName())
		return nil
	}
	return o.takeRaw(name)
}

// idPattern is what an id looks like: it is part of subjects, and a name in
// expressions.
var idPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

const idRule = "letters, digits, - and _, at most 64, the first a letter or a digit"

// nodeIDs are the ids that there are, whatever else is wrong.
func nodeIDs(nodes []*document.Value) []string {
	var ids []string
	for _, n := range nodes {
		if id, ok := n.Get("id").AsText(); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// rawFile stands for the file of a definition that has none.
const rawFile = "definition"
