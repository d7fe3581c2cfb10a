package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// value is a value of a JSON text, and where it stands.
type value struct {
	start, end int
	kind       byte // { [ " or any other, by its first byte
	parts      []part
}

// part is a member of an object or an item of an array.
type part struct {
	start int    // of its key, if it has one
	key   string // of a member
	value value
}

func (p part) end() int { return p.value.end }

// parseObject returns the places of a text's values. It fails for what is no object.
func parseObject(text []byte) (value, error) {
	if err := checkJSON(text); err != nil {
		return value{}, err
	}
	r := jsonReader{text: text}
	v := r.readValue()
	if v.kind != '{' {
		return v, errors.New("it is no object")
	}
	return v, nil
}

// checkJSON says where a text isn't JSON.
func checkJSON(text []byte) error {
	var whole json.RawMessage
	err := json.Unmarshal(text, &whole)
	wrong := new(json.SyntaxError)
	if !errors.As(err, &wrong) {
		return err
	}
	at := min(max(int(wrong.Offset)-1, 0), len(text))
	line := 1 + bytes.Count(text[:at], []byte("\n"))
	if at < len(text) && text[at] == '/' {
		return fmt.Errorf("line %d has a comment, which JSON doesn't know", line)
	}
	return fmt.Errorf("line %d isn't JSON: %w", line, wrong)
}

// jsonReader reads values of a text that is JSON.
type jsonReader struct {
	text []byte
	at   int
}

func (r *jsonReader) skipSpace() {
	for r.at < len(r.text) && isSpace(r.text[r.at]) {
		r.at++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func (r *jsonReader) readValue() value {
	r.skipSpace()
	v := value{start: r.at, kind: r.text[r.at]}
	switch v.kind {
	case '{', '[':
		r.readParts(&v)
	case '"':
		r.skipString()
	default:
		for r.at < len(r.text) && !isSpace(r.text[r.at]) && !bytes.ContainsRune([]byte(",]}"), rune(r.text[r.at])) {
			r.at++
		}
	}
	v.end = r.at
	return v
}

// readParts reads the parts of an object or an array.
func (r *jsonReader) readParts(v *value) {
	r.at++
	for {
		r.skipSpace()
		switch r.text[r.at] {
		case '}', ']':
			r.at++
			return
		case ',':
			r.at++
			continue
		}
		p := part{start: r.at}
		if v.kind == '{' {
			r.skipString()
			_ = json.Unmarshal(r.text[p.start:r.at], &p.key) // it is a string
			r.skipSpace()
			r.at++ // the colon
		}
		p.value = r.readValue()
		v.parts = append(v.parts, p)
	}
}

func (r *jsonReader) skipString() {
	for r.at++; r.text[r.at] != '"'; r.at++ {
		if r.text[r.at] == '\\' {
			r.at++
		}
	}
	r.at++
}
