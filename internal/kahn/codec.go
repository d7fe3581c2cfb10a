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

	"code.wake.dev/wake/pkg/wire"
)

// visitor reads or writes the fields of a line, in its order. Its checks return
// what is wrong, or "".
type visitor interface {
	visitText(name string, p *string, check func(string) string)
	visitOptText(name string, p **string, limit int) // limit in characters; 0: none
	visitAgent(name string, p *string, nullable bool)
	visitCount(name string, p *int64)       // from 0 to maxCount
	visitSeconds(name string, p *float64)   // not negative
	visitOptShare(name string, p **float64) // from 0 to 1
	visitFlag(name string, p *bool)
	visitOptObject(name string, p *json.RawMessage)
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

func checkTime(s string) string {
	if !tsPattern().MatchString(s) {
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
	r := &fieldReader{}
	if problem := r.splitObject(line); problem != "" {
		return nil, &Error{Problems: []string{problem}}
	}
	e := &Event{}
	e.visitHeader(r)
	if e.Body != nil {
		e.Body.visitFields(r)
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

// fieldReader reads the fields of an object.
type fieldReader struct {
	given    []Field
	known    []string
	problems []string
}

// splitObject takes the object apart and returns what is wrong with it.
func (r *fieldReader) splitObject(line []byte) string {
	if !utf8.Valid(line) {
		return "is not UTF-8"
	}
	d := json.NewDecoder(bytes.NewReader(line))
	t, err := d.Token()
	if err != nil {
		return syntaxProblem(err)
	}
	if t != json.Delim('{') {
		return "is no JSON object"
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return syntaxProblem(err)
		}
		name, _ := key.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return syntaxProblem(err)
		}
		if slices.ContainsFunc(r.given, func(f Field) bool { return f.Name == name }) {
			return fmt.Sprintf("%q is there twice", name)
		}
		r.given = append(r.given, Field{name, compactJSON(value)})
	}
	if _, err := d.Token(); err != nil {
		return syntaxProblem(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "has text after the object"
	}
	return ""
}

func syntaxProblem(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "is no JSON: it breaks off"
	}
	return "is no JSON: " + err.Error()
}

func compactJSON(value json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return value
	}
	return b.Bytes()
}

func (r *fieldReader) addProblem(name, what string) { r.problems = append(r.problems, name+" "+what) }

// takeField returns a field; of an absent one nil, which is a problem if the field is
// required.
func (r *fieldReader) takeField(name string, required bool) json.RawMessage {
	r.known = append(r.known, name)
	for _, f := range r.given {
		if f.Name == name {
			return f.Value
		}
	}
	if required {
		r.addProblem(name, "is required")
	}
	return nil
}

func (r *fieldReader) visitText(name string, p *string, check func(string) string) {
	v := r.takeField(name, true)
	if v == nil {
		return
	}
	if v[0] != '"' || json.Unmarshal(v, p) != nil {
		r.addProblem(name, "must be a text")
		return
	}
	if check != nil {
		if what := check(*p); what != "" {
			r.addProblem(name, what)
		}
	}
}

func (r *fieldReader) visitOptText(name string, p **string, limit int) {
	v := r.takeField(name, false)
	if v == nil {
		return
	}
	s := ""
	switch {
	case v[0] != '"' || json.Unmarshal(v, &s) != nil:
		r.addProblem(name, "must be a text")
	case limit > 0 && utf8.RuneCountInString(s) > limit:
		r.addProblem(name, fmt.Sprintf("is longer than %d characters", limit))
	default:
		*p = &s
	}
}

func (r *fieldReader) visitAgent(name string, p *string, nullable bool) {
	if v := r.takeField(name, false); nullable && string(v) == "null" {
		return
	}
	r.visitText(name, p, patternCheck(agentPattern(), agentRule))
}

// readNumber reads a number; !ok is a problem unless the field is absent.
func (r *fieldReader) readNumber(name string, required bool) (x float64, ok bool) {
	v := r.takeField(name, required)
	if v == nil {
		return 0, false
	}
	if v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		r.addProblem(name, "must be a number")
		return 0, false
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		r.addProblem(name, "is out of range")
	}
	return x, err == nil
}

func (r *fieldReader) visitCount(name string, p *int64) {
	if x, ok := r.readNumber(name, true); ok {
		if x != math.Trunc(x) || x < 0 || x > maxCount {
			r.addProblem(name, "must be a whole number, not negative")
		}
		*p = int64(x)
	}
}

func (r *fieldReader) visitSeconds(name string, p *float64) {
	if x, ok := r.readNumber(name, true); ok {
		if x < 0 {
			r.addProblem(name, "must not be negative")
		}
		*p = x
	}
}

func (r *fieldReader) visitOptShare(name string, p **float64) {
	if x, ok := r.readNumber(name, false); ok {
		if x < 0 || x > 1 {
			r.addProblem(name, "must be from 0 to 1")
		}
		*p = &x
	}
}

func (r *fieldReader) visitFlag(name string, p *bool) {
	switch v := r.takeField(name, true); string(v) {
	case "true":
		*p = true
	case "false", "":
	default:
		r.addProblem(name, "must be true or false")
	}
}

func (r *fieldReader) visitOptObject(name string, p *json.RawMessage) {
	v := r.takeField(name, false)
	if v != nil && v[0] != '{' {
		r.addProblem(name, "must be an object")
	}
	*p = v
}

// Append appends the line without its end. Its error is an [*Error].
func (e *Event) Append(dst []byte) ([]byte, error) {
	w := &objectWriter{buf: append(dst, '{')}
	if e.Body == nil {
		return nil, &Error{Problems: []string{"event is required"}}
	}
	e.visitHeader(w)
	e.Body.visitFields(w)
	for _, f := range e.Unknown {
		w.writeKey(f.Name)
		w.buf = append(w.buf, f.Value...)
	}
	if len(w.problems) > 0 {
		return nil, &Error{Problems: w.problems}
	}
	return append(w.buf, '}'), nil
}

// objectWriter writes the fields of an object.
type objectWriter struct {
	buf      []byte
	more     bool
	problems []string
}

func (w *objectWriter) addProblem(name, what string) { w.problems = append(w.problems, name+" "+what) }

func (w *objectWriter) writeKey(name string) {
	if w.more {
		w.buf = append(w.buf, ',')
	}
	w.more = true
	w.writeString(name)
	w.buf = append(w.buf, ':')
}

func (w *objectWriter) writeString(s string) {
	value, err := wire.Marshal(strings.ToValidUTF8(s, "\uFFFD"))
	if err == nil {
		w.buf, err = wire.AppendJSON(w.buf, value)
	}
	if err != nil {
		w.addProblem("text", err.Error())
	}
}

func (w *objectWriter) visitText(name string, p *string, check func(string) string) {
	w.writeKey(name)
	if check != nil {
		if what := check(*p); what != "" {
			w.addProblem(name, what)
		}
	}
	w.writeString(*p)
}

func (w *objectWriter) visitOptText(name string, p **string, limit int) {
	if *p == nil {
		return
	}
	w.writeKey(name)
	if limit > 0 && utf8.RuneCountInString(**p) > limit {
		w.addProblem(name, fmt.Sprintf("is longer than %d characters", limit))
	}
	w.writeString(**p)
}

func (w *objectWriter) visitAgent(name string, p *string, nullable bool) {
	if *p == "" && nullable {
		w.writeKey(name)
		w.buf = append(w.buf, "null"...)
		return
	}
	w.visitText(name, p, patternCheck(agentPattern(), agentRule))
}

func (w *objectWriter) visitCount(name string, p *int64) {
	if *p < 0 || *p > maxCount {
		w.addProblem(name, "must be a whole number, not negative")
	}
	w.writeKey(name)
	w.buf = strconv.AppendInt(w.buf, *p, 10)
}

func (w *objectWriter) visitSeconds(name string, p *float64) {
	w.writeNumber(name, *p, math.MaxFloat64)
}

func (w *objectWriter) visitOptShare(name string, p **float64) {
	if *p != nil {
		w.writeNumber(name, **p, 1)
	}
}

// writeNumber writes a number that is told from an integer, as the lines of the
// specification are.
func (w *objectWriter) writeNumber(name string, x, most float64) {
	w.writeKey(name)
	if !(x >= 0 && x <= most) { // NaN is neither
		w.addProblem(name, "is out of range")
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

func (w *objectWriter) visitFlag(name string, p *bool) {
	w.writeKey(name)
	w.buf = strconv.AppendBool(w.buf, *p)
}

func (w *objectWriter) visitOptObject(name string, p *json.RawMessage) {
	if *p == nil {
		return
	}
	w.writeKey(name)
	if len(*p) == 0 || (*p)[0] != '{' || !json.Valid(*p) {
		w.addProblem(name, "must be an object")
		return
	}
	w.buf = append(w.buf, *p...)
}
