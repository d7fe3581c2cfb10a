package flow

import (
	"bytes"
	"fmt"
	"strings"

	"wake/pkg/wire"
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

func conditionOf(ps *problems, t *tree, field string, known names) condition {
	if t.absent() {
		return condition{}
	}
	if t.kind == scalar {
		return condition{op: "expr", expr: expressionOf(ps, t, field, known)}
	}
	if t.kind != object || len(t.fields) != 1 {
		ps.add(t.at, field, "must be an expression or one of equals, not, and, or")
		return condition{}
	}
	f := t.fields[0]
	at := field + "." + f.name
	switch f.name {
	case "equals":
		return equalsOf(ps, f.tree, at, known)
	case "not":
		return condition{op: "not", of: []condition{conditionOf(ps, required(ps, f.tree, at), at, known)}}
	case "and", "or":
		c := condition{op: f.name}
		if f.tree.kind != list {
			ps.add(f.tree.at, at, "must be a list of conditions, not %s", f.tree.what())
		}
		for i, item := range f.tree.list {
			at := fmt.Sprintf("%s[%d]", at, i)
			c.of = append(c.of, conditionOf(ps, required(ps, item, at), at, known))
		}
		return c
	}
	ps.add(f.at, at, "unknown operator%s", suggest(f.name, operators))
	return condition{}
}

// required refuses an empty condition inside another: it would be true.
func required(ps *problems, t *tree, field string) *tree {
	if t.absent() {
		ps.add(t.at, field, "must be a condition")
	}
	return t
}

func equalsOf(ps *problems, t *tree, field string, known names) condition {
	r := reader{problems: ps}
	o := r.object(t, field)
	c := condition{op: "equals", expr: expressionOf(ps, o.need("var"), field+".var", known)}
	value := o.take("value")
	if t.kind == object && t.get("value") == nil {
		ps.add(t.at, field+".value", "is required")
	}
	raw, err := value.raw()
	if err != nil {
		ps.add(value.at, field+".value", "%v", err)
	}
	c.value = raw
	o.done()
	return c
}

// expressionOf compiles an expression; {{ }} around it may be there.
func expressionOf(ps *problems, t *tree, field string, known names) expression {
	if t == nil {
		return expression{}
	}
	src, ok := t.text()
	if !ok {
		ps.add(t.at, field, "must be an expression, not %s", t.what())
		return expression{}
	}
	if inner, ok := strings.CutPrefix(strings.TrimSpace(src), "{{"); ok {
		src = strings.TrimSuffix(inner, "}}")
	}
	x, err := compile(src, known)
	if err != nil {
		ps.add(t.at, field, "%v", err)
	}
	return x
}

// holds reports whether the condition is true. Nothing equals nothing.
func (c condition) holds(s *scope) (bool, error) {
	switch c.op {
	case "":
		return true, nil
	case "expr":
		v, err := c.expr.eval(s)
		return err == nil && truth(v.Any()), err
	case "equals":
		v, err := c.expr.eval(s)
		return err == nil && v != nil && bytes.Equal(v, c.value), err
	case "not":
		ok, err := c.of[0].holds(s)
		return err == nil && !ok, err
	}
	for _, part := range c.of {
		ok, err := part.holds(s)
		if err != nil || ok == (c.op == "or") {
			return ok && err == nil, err
		}
	}
	return c.op == "and", nil
}
