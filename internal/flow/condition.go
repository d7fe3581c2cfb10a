package flow

import (
	"bytes"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/internal/jsonata"
	"code.wake.dev/wake/pkg/wire"
)

// condition is a compiled `when`: an expression, or a tree of
// {equals: {var, value}}, {not: …}, {and: […]} and {or: […]}. Its zero value is
// always true.
type condition struct {
	op    string // "", expr, equals, not, and or or
	expr  expression
	value wire.Raw
	of    []condition
}

var operators = []string{"equals", "not", "and", "or"}

func conditionOf(ps *document.Problems, t *document.Value, field string, known names) condition {
	if t.IsAbsent() {
		return condition{}
	}
	if t.Kind == document.Scalar {
		return condition{op: "expr", expr: expressionOf(ps, t, field, known)}
	}
	if t.Kind != document.Object || len(t.Fields) != 1 {
		ps.Add(t.At, field, "must be an expression or one of equals, not, and, or")
		return condition{}
	}
	f := t.Fields[0]
	at := field + "." + f.Name
	switch f.Name {
	case "equals":
		return equalsOf(ps, f.Value, at, known)
	case "not":
		return condition{op: "not", of: []condition{conditionOf(ps, requireCondition(ps, f.Value, at), at, known)}}
	case "and", "or":
		c := condition{op: f.Name}
		if f.Value.Kind != document.List {
			ps.Add(f.Value.At, at, "must be a list of conditions, not %s", f.Value.KindName())
		}
		for i, item := range f.Value.List {
			at := fmt.Sprintf("%s[%d]", at, i)
			c.of = append(c.of, conditionOf(ps, requireCondition(ps, item, at), at, known))
		}
		return c
	}
	ps.Add(f.At, at, "unknown operator%s", document.SuggestName(f.Name, operators))
	return condition{}
}

// requireCondition refuses an empty condition inside another: it would be true.
func requireCondition(ps *document.Problems, t *document.Value, field string) *document.Value {
	if t.IsAbsent() {
		ps.Add(t.At, field, "must be a condition")
	}
	return t
}

func equalsOf(ps *document.Problems, t *document.Value, field string, known names) condition {
	r := flowReader{Problems: ps}
	o := r.openObject(t, field)
	c := condition{op: "equals", expr: expressionOf(ps, o.needField("var"), field+".var", known)}
	value := o.takeField("value")
	if t.Kind == document.Object && t.Get("value") == nil {
		ps.Add(t.At, field+".value", "is required")
	}
	raw, err := wire.Marshal(value.ToAny())
	if err != nil {
		ps.Add(value.At, field+".value", "%v", err)
	}
	c.value = raw
	o.checkUnknown()
	return c
}

// expressionOf compiles an expression; {{ }} around it may be there.
func expressionOf(ps *document.Problems, t *document.Value, field string, known names) expression {
	if t == nil {
		return expression{}
	}
	src, ok := t.AsText()
	if !ok {
		ps.Add(t.At, field, "must be an expression, not %s", t.KindName())
		return expression{}
	}
	if inner, ok := strings.CutPrefix(strings.TrimSpace(src), "{{"); ok {
		src = strings.TrimSuffix(inner, "}}")
	}
	x, err := compileExpression(src, known)
	if err != nil {
		ps.Add(t.At, field, "%v", err)
	}
	return x
}

// isTrue reports whether the condition is true. Nothing equals nothing.
func (c condition) isTrue(s *scope) (bool, error) {
	switch c.op {
	case "":
		return true, nil
	case "expr":
		v, err := c.expr.eval(s)
		return err == nil && jsonata.Truth(v.Any()), err
	case "equals":
		v, err := c.expr.eval(s)
		return err == nil && v != nil && bytes.Equal(v, c.value), err
	case "not":
		ok, err := c.of[0].isTrue(s)
		return err == nil && !ok, err
	}
	for _, part := range c.of {
		ok, err := part.isTrue(s)
		if err != nil || ok == (c.op == "or") {
			return ok && err == nil, err
		}
	}
	return c.op == "and", nil
}
