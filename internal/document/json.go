package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// readJSON returns the value of a JSON file. YAML would read most of it too, but
// not its escapes.
func readJSON(ps *Problems, src []byte) *Value {
	r := jsonReader{ps: ps, src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	r.dec.UseNumber()
	t := r.readValue(0)
	if t == nil {
		return nil
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		ps.Add(r.nextPlace(), "", "unexpected text after the value")
		return nil
	}
	return t
}

type jsonReader struct {
	ps  *Problems
	src []byte
	dec *json.Decoder
}

// nextPlace is where the next token begins.
func (r *jsonReader) nextPlace() Place {
	at := int(r.dec.InputOffset())
	for at < len(r.src) && bytes.IndexByte([]byte(" \t\r\n,:"), r.src[at]) >= 0 {
		at++
	}
	before := r.src[:at]
	return Place{1 + bytes.Count(before, []byte("\n")), at - bytes.LastIndexByte(before, '\n')}
}

// readValue returns the next value; nil after a problem.
func (r *jsonReader) readValue(depth int) *Value {
	t := &Value{At: r.nextPlace()}
	tok, err := r.dec.Token()
	if err != nil || depth > MaxDepth {
		r.ps.Add(t.At, "", "malformed JSON: %s", jsonProblem(err))
		return nil
	}
	switch v := tok.(type) {
	case json.Delim:
		if v == '[' {
			return r.readList(t, depth)
		}
		return r.readObject(t, depth)
	case json.Number:
		t.Scalar = parseNumber(string(v))
	default:
		t.Scalar = v
	}
	return t
}

func jsonProblem(err error) string {
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return "nested too deep"
	case errors.As(err, &syntax):
		return syntax.Error()
	}
	return "unexpected end"
}

func parseNumber(s string) any {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return s
	}
	return x
}

func (r *jsonReader) readList(t *Value, depth int) *Value {
	t.Kind = List
	for r.dec.More() {
		item := r.readValue(depth + 1)
		if item == nil {
			return nil
		}
		t.List = append(t.List, item)
	}
	return r.closeValue(t)
}

func (r *jsonReader) readObject(t *Value, depth int) *Value {
	t.Kind = Object
	for r.dec.More() {
		at := r.nextPlace()
		tok, err := r.dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			r.ps.Add(at, "", "malformed JSON: %s", jsonProblem(err))
			return nil
		}
		if t.Get(name) != nil {
			r.ps.Add(at, name, "is there twice")
			return nil
		}
		value := r.readValue(depth + 1)
		if value == nil {
			return nil
		}
		t.Fields = append(t.Fields, Field{Name: name, At: at, Value: value})
	}
	return r.closeValue(t)
}

func (r *jsonReader) closeValue(t *Value) *Value {
	at := r.nextPlace()
	if _, err := r.dec.Token(); err != nil {
		r.ps.Add(at, "", "malformed JSON: %s", jsonProblem(err))
		return nil
	}
	return t
}
