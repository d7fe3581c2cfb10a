package flow

import (
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// template is a value with texts that may hold bindings, {{ expression }}. A text
// that is one binding has the type of its value; in any other text the value
// becomes text: nothing for what there is not, JSON for lists and objects. A
// \{{ is a {{ that begins no binding.
type template struct {
	value  any // what has no bindings
	text   []templatePart
	list   []template
	fields []templateField
	kind   document.Kind
	bound  bool // some text within has a binding or an escape
}

type templateField struct {
	name string
	template
}

// templatePart is a piece of text, or an expression.
type templatePart struct {
	text string
	expr expression
}

func (s templatePart) isExpr() bool { return s.expr.src != "" }

// errBinding is returned for a binding that has no end.
var errBinding = errors.New("{{ without }}")

// splitText takes a text apart. Expressions aren't checked yet.
func splitText(text string) ([]templatePart, error) {
	var out []templatePart
	var plain strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{{")
		if !found {
			plain.WriteString(text)
			break
		}
		if literal, escaped := strings.CutSuffix(before, `\`); escaped {
			plain.WriteString(literal + "{{")
			text = rest
			continue
		}
		end := bindingEnd(rest)
		if end < 0 {
			return nil, errBinding
		}
		plain.WriteString(before)
		if plain.Len() > 0 {
			out = append(out, templatePart{text: plain.String()})
			plain.Reset()
		}
		out = append(out, templatePart{expr: expression{src: rest[:end]}})
		text = rest[end+2:]
	}
	if plain.Len() > 0 || len(out) == 0 {
		out = append(out, templatePart{text: plain.String()})
	}
	return out, nil
}

// bindingEnd finds the }} that ends an expression: not one in a text or within
// braces of the expression's own.
func bindingEnd(s string) int {
	depth := 0
	var quote byte
	for i := 0; i < len(s); i++ {
		switch ch := s[i]; {
		case quote != 0:
			if ch == '\\' && quote != '`' {
				i++
			} else if ch == quote {
				quote = 0
			}
		case ch == '"', ch == '\'', ch == '`':
			quote = ch
		case ch == '{':
			depth++
		case ch == '}' && depth > 0:
			depth--
		case ch == '}' && i+1 < len(s) && s[i+1] == '}':
			return i
		}
	}
	return -1
}

// templateOf compiles a value. Problems are told with their field.
func templateOf(ps *document.Problems, t *document.Value, field string, known names) template {
	switch {
	case t == nil:
		return template{}
	case t.Kind == document.List:
		out := template{kind: document.List}
		for i, item := range t.List {
			v := templateOf(ps, item, fmt.Sprintf("%s[%d]", field, i), known)
			out.list = append(out.list, v)
			out.bound = out.bound || v.bound
		}
		return out
	case t.Kind == document.Object:
		out := template{kind: document.Object}
		for _, f := range t.Fields {
			v := templateOf(ps, f.Value, field+"."+f.Name, known)
			out.fields = append(out.fields, templateField{f.Name, v})
			out.bound = out.bound || v.bound
		}
		return out
	}
	text, ok := t.AsText()
	if !ok || !strings.Contains(text, "{{") {
		return template{value: t.Scalar}
	}
	return textTemplate(ps, t, text, field, known)
}

func textTemplate(ps *document.Problems, t *document.Value, text, field string, known names) template {
	segments, err := splitText(text)
	if err != nil {
		ps.Add(t.At, field, "%v", err)
		return template{}
	}
	out := template{text: segments, bound: true}
	for i, s := range segments {
		if !s.isExpr() {
			continue
		}
		if segments[i].expr, err = compileExpression(s.expr.src, known); err != nil {
			ps.Add(t.At, field, "%v", err)
		}
	}
	return out
}

// resolveValue returns the value with its bindings replaced; ok is false if it is a
// binding of nothing.
func (t template) resolveValue(s *scope) (v any, ok bool, err error) {
	switch {
	case t.kind == document.List:
		return t.resolveList(s)
	case t.kind == document.Object:
		return t.resolveObject(s)
	case len(t.text) == 0:
		return t.value, true, nil
	case len(t.text) == 1 && t.text[0].isExpr():
		raw, err := t.text[0].expr.eval(s)
		return raw, raw != nil, err
	}
	var out strings.Builder
	for _, seg := range t.text {
		text, err := seg.resolveText(s)
		if err != nil {
			return nil, false, err
		}
		out.WriteString(text)
	}
	return out.String(), true, nil
}

// resolveList keeps the places of its items: nothing becomes null.
func (t template) resolveList(s *scope) (any, bool, error) {
	out := make([]any, len(t.list))
	for i, item := range t.list {
		v, ok, err := item.resolveValue(s)
		if err != nil {
			return nil, false, err
		}
		if ok {
			out[i] = v
		}
	}
	return out, true, nil
}

// resolveObject leaves out fields that are bound to nothing.
func (t template) resolveObject(s *scope) (any, bool, error) {
	out := make(map[string]any, len(t.fields))
	for _, f := range t.fields {
		v, ok, err := f.resolveValue(s)
		if err != nil {
			return nil, false, err
		}
		if ok {
			out[f.name] = v
		}
	}
	return out, true, nil
}

// resolveText returns the segment as text.
func (s templatePart) resolveText(sc *scope) (string, error) {
	if !s.isExpr() {
		return s.text, nil
	}
	v, err := s.expr.eval(sc)
	if err != nil || v == nil || v.Any() == nil {
		return "", err
	}
	if text, ok := v.Text(); ok {
		return text, nil
	}
	b, err := wire.AppendJSON(nil, v)
	return string(b), err
}
