package kahn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"wake/pkg/wire"
)

// visitor reads or writes the fields of a line, in its order. Its checks return
// what is wrong, or "".
type visitor interface {
	text(name string, p *string, check func(string) string)
	optText(name string, p **string, limit int) // limit in characters; 0: none
	agent(name string, p *string, nullable bool)
	count(name string, p *int64)       // from 0 to maxCount
	seconds(name string, p *float64)   // not negative
	optShare(name string, p **float64) // from 0 to 1
	flag(name string, p *bool)
	optObject(name string, p *json.RawMessage)
}

// maxCount is the largest integer that every reader of JSON can tell from the
// next one.
const maxCount = 1<<53 - 1

// Error says all that is wrong with a line.
type Error struct{ Problems []string }

// Error joins the problems.
func (e *Error) Error() string { return strings.Join(e.Problems, "; ") }

// timeLayout is the form of times.
const timeLayout = "2006-01-02T15:04:05.000Z"

func timestamp(s string) string {
	if !tsPattern.MatchString(s) {
		return "must be a time like 2026-05-05T09:00:00.000Z"
	}
	if _, err := time.Parse(timeLayout, s); err != nil {
		return "is no date"
	}
	return ""
}

// Time returns TS in Unix milliseconds, 0 if it is none.
func (e *Event) Time() int64 {
	t, err := time.Parse(timeLayout, e.TS)
	if err != nil {
		return 0
	}
	return t.UnixMilli()
}

// Parse reads a line. Its error is an [*Error] that lists every violation of the
// schema.
func Parse(line []byte) (*Event, error) {
	r := &reader{}
	if problem := r.split(line); problem != "" {
		return nil, &Error{Problems: []string{problem}}
	}
	e := &Event{}
	e.base(r)
	if e.Body != nil {
		e.Body.fields(r)
	}
	if len(r.problems) > 0 {
		return nil, &Error{Problems: r.problems}
	}
	for _, f := range r.given {
		if !slices.Contains(r.known, f.Name) {
			e.Unknown = append(e.Unknown, f)
		}
	}
	return e, nil
}

// reader reads the fields of an object.
type reader struct {
	given    []Field
	known    []string
	problems []string
}

// split takes the object apart and returns what is wrong with it.
func (r *reader) split(line []byte) string {
	if !utf8.Valid(line) {
		return "is not UTF-8"
	}
	d := json.NewDecoder(bytes.NewReader(line))
	t, err := d.Token()
	if err != nil {
		return syntax(err)
	}
	if t != json.Delim('{') {
		return "is no JSON object"
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return syntax(err)
		}
		name, _ := key.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return syntax(err)
		}
		if slices.ContainsFunc(r.given, func(f Field) bool { return f.Name == name }) {
			return fmt.Sprintf("%q is there twice", name)
		}
		r.given = append(r.given, Field{name, compact(value)})
	}
	if _, err := d.Token(); err != nil {
		return syntax(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "has text after the object"
	}
	return ""
}

func syntax(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "is no JSON: it breaks off"
	}
	return "is no JSON: " + err.Error()
}

func compact(value json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return value
	}
	return b.Bytes()
}

func (r *reader) problem(name, what string) { r.problems = append(r.problems, name+" "+what) }

// take returns a field; of an absent one nil, which is a problem if the field is
// required.
func (r *reader) take(name string, required bool) json.RawMessage {
	r.known = append(r.known, name)
	for _, f := range r.given {
		if f.Name == name {
			return f.Value
		}
	}
	if required {
		r.problem(name, "is required")
	}
	return nil
}

func (r *reader) text(name string, p *string, check func(string) string) {
	v := r.take(name, true)
	if v == nil {
		return
	}
	if v[0] != '"' || json.Unmarshal(v, p) != nil {
		r.problem(name, "must be a text")
		return
	}
	if check != nil {
		if what := check(*p); what != "" {
			r.problem(name, what)
		}
	}
}

func (r *reader) optText(name string, p **string, limit int) {
	v := r.take(name, false)
	if v == nil {
		return
	}
	s := ""
	switch {
	case v[0] != '"' || json.Unmarshal(v, &s) != nil:
		r.problem(name, "must be a text")
	case limit > 0 && utf8.RuneCountInString(s) > limit:
		r.problem(name, fmt.Sprintf("is longer than %d characters", limit))
	default:
		*p = &s
	}
}

func (r *reader) agent(name string, p *string, nullable bool) {
	if v := r.take(name, false); nullable && string(v) == "null" {
		return
	}
	r.text(name, p, matching(agentPattern, agentRule))
}

// number reads a number; !ok is a problem unless the field is absent.
func (r *reader) number(name string, required bool) (x float64, ok bool) {
	v := r.take(name, required)
	if v == nil {
		return 0, false
	}
	if v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		r.problem(name, "must be a number")
		return 0, false
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		r.problem(name, "is out of range")
	}
	return x, err == nil
}

func (r *reader) count(name string, p *int64) {
	if x, ok := r.number(name, true); ok {
		if x != math.Trunc(x) || x < 0 || x > maxCount {
			r.problem(name, "must be a whole number, not negative")
		}
		*p = int64(x)
	}
}

func (r *reader) seconds(name string, p *float64) {
	if x, ok := r.number(name, true); ok {
		if x < 0 {
			r.problem(name, "must not be negative")
		}
		*p = x
	}
}

func (r *reader) optShare(name string, p **float64) {
	if x, ok := r.number(name, false); ok {
		if x < 0 || x > 1 {
			r.problem(name, "must be from 0 to 1")
		}
		*p = &x
	}
}

func (r *reader) flag(name string, p *bool) {
	switch v := r.take(name, true); string(v) {
	case "true":
		*p = true
	case "false", "":
	default:
		r.problem(name, "must be true or false")
	}
}

func (r *reader) optObject(name string, p *json.RawMessage) {
	v := r.take(name, false)
	if v != nil && v[0] != '{' {
		r.problem(name, "must be an object")
	}
	*p = v
}

// Append appends the line without its end. Its error is an [*Error].
func (e *Event) Append(dst []byte) ([]byte, error) {
	w := &writer{buf: append(dst, '{')}
	if e.Body == nil {
		return nil, &Error{Problems: []string{"event is required"}}
	}
	e.base(w)
	e.Body.fields(w)
	for _, f := range e.Unknown {
		w.key(f.Name)
		w.buf = append(w.buf, f.Value...)
	}
	if len(w.problems) > 0 {
		return nil, &Error{Problems: w.problems}
	}
	return append(w.buf, '}'), nil
}

// writer writes the fields of an object.
type writer struct {
	buf      []byte
	more     bool
	problems []string
}

func (w *writer) problem(name, what string) { w.problems = append(w.problems, name+" "+what) }

func (w *writer) key(name string) {
	if w.more {
		w.buf = append(w.buf, ',')
	}
	w.more = true
	w.string(name)
	w.buf = append(w.buf, ':')
}

func (w *writer) string(s string) {
	value, err := wire.Marshal(strings.ToValidUTF8(s, "\uFFFD"))
	if err == nil {
		w.buf, err = wire.AppendJSON(w.buf, value)
	}
	if err != nil {
		w.problem("text", err.Error())
	}
}

func (w *writer) text(name string, p *string, check func(string) string) {
	w.key(name)
	if check != nil {
		if what := check(*p); what != "" {
			w.problem(name, what)
		}
	}
	w.string(*p)
}

func (w *writer) optText(name string, p **string, limit int) {
	if *p == nil {
		return
	}
	w.key(name)
	if limit > 0 && utf8.RuneCountInString(**p) > limit {
		w.problem(name, fmt.Sprintf("is longer than %d characters", limit))
	}
	w.string(**p)
}

func (w *writer) agent(name string, p *string, nullable bool) {
	if *p == "" && nullable {
		w.key(name)
		w.buf = append(w.buf, "null"...)
		return
	}
	w.text(name, p, matching(agentPattern, agentRule))
}

func (w *writer) count(name string, p *int64) {
	if *p < 0 || *p > maxCount {
		w.problem(name, "must be a whole number, not negative")
	}
	w.key(name)
	w.buf = strconv.AppendInt(w.buf, *p, 10)
}

func (w *writer) seconds(name string, p *float64) { w.number(name, *p, math.MaxFloat64) }

func (w *writer) optShare(name string, p **float64) {
	if *p != nil {
		w.number(name, **p, 1)
	}
}

// number writes a number that is told from an integer, as the lines of the
// specification are.
func (w *writer) number(name string, x, most float64) {
	w.key(name)
	if !(x >= 0 && x <= most) { // NaN is neither
		w.problem(name, "is out of range")
		return
	}
	format := byte('f')
	if x != 0 && x < 1e-6 || x >= 1e21 {
		format = 'e'
	}
	start := len(w.buf)
	w.buf = strconv.AppendFloat(w.buf, x, format, -1, 64)
	if !bytes.ContainsAny(w.buf[start:], ".e") {
		w.buf = append(w.buf, ".0"...)
	}
}

func (w *writer) flag(name string, p *bool) {
	w.key(name)
	w.buf = strconv.AppendBool(w.buf, *p)
}

func (w *writer) optObject(name string, p *json.RawMessage) {
	if *p == nil {
		return
	}
	w.key(name)
	if len(*p) == 0 || (*p)[0] != '{' || !json.Valid(*p) {
		w.problem(name, "must be an object")
		return
	}
	w.buf = append(w.buf, *p...)
}
