package flow

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"code.wake.dev/wake/pkg/wire"
)

// readJSON returns the value of a JSON file. YAML would read most of it too, but
// not its escapes.
func readJSON(ps *problems, src []byte) *tree {
	r := jsonReader{ps: ps, src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	r.dec.UseNumber()
	t := r.readValue(0)
	if t == nil {
		return nil
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		ps.addProblem(r.nextPlace(), "", "unexpected text after the flow")
		return nil
	}
	return t
}

type jsonReader struct {
	ps  *problems
	src []byte
	dec *json.Decoder
}

// nextPlace is where the next token begins.
func (r *jsonReader) nextPlace() place {
	at := int(r.dec.InputOffset())
	for at < len(r.src) && bytes.IndexByte([]byte(" \t\r\n,:"), r.src[at]) >= 0 {
		at++
	}
	before := r.src[:at]
	return place{1 + bytes.Count(before, []byte("\n")), at - bytes.LastIndexByte(before, '\n')}
}

// readValue returns the next value; nil after a problem.
func (r *jsonReader) readValue(depth int) *tree {
	t := &tree{at: r.nextPlace()}
	tok, err := r.dec.Token()
	if err != nil || depth > wire.MaxDepth {
		r.ps.addProblem(t.at, "", "malformed JSON: %s", jsonProblem(err))
		return nil
	}
	switch v := tok.(type) {
	case json.Delim:
		if v == '[' {
			return r.readList(t, depth)
		}
		return r.readObject(t, depth)
	case json.Number:
		t.value = parseNumber(string(v))
	default:
		t.value = v
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

func (r *jsonReader) readList(t *tree, depth int) *tree {
	t.kind = list
	for r.dec.More() {
		item := r.readValue(depth + 1)
		if item == nil {
			return nil
		}
		t.list = append(t.list, item)
	}
	return r.closeValue(t)
}

func (r *jsonReader) readObject(t *tree, depth int) *tree {
	t.kind = object
	for r.dec.More() {
		at := r.nextPlace()
		tok, err := r.dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			r.ps.addProblem(at, "", "malformed JSON: %s", jsonProblem(err))
			return nil
		}
		if t.get(name) != nil {
			r.ps.addProblem(at, name, "is there twice")
			return nil
		}
		value := r.readValue(depth + 1)
		if value == nil {
			return nil
		}
		t.fields = append(t.fields, treeField{name: name, at: at, tree: value})
	}
	return r.closeValue(t)
}

func (r *jsonReader) closeValue(t *tree) *tree {
	at := r.nextPlace()
	if _, err := r.dec.Token(); err != nil {
		r.ps.addProblem(at, "", "malformed JSON: %s", jsonProblem(err))
		return nil
	}
	return t
}
