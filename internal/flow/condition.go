package flow

import (
	"bytes"
	"fmt"
	"strings"

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

func conditionOf(ps *problems, t *tree, field string, known names) condition {
	if t.isAbsent() {
		return condition{}
	}
	if t.kind == scalar {
		return condition{op: "expr", expr: expressionOf(ps, t, field, known)}
	}
	if t.kind != object || len(t.fields) != 1 {
		ps.addProblem(t.at, field, "must be an expression or one of equals, not, and, or")
		return condition{}
	}
	f := t.fields[0]
	at := field + "." + f.name
	switch f.name {
	case "equals":
		return equalsOf(ps, f.tree, at, known)
	case "not":
		return condition{op: "not", of: []condition{conditionOf(ps, requireCondition(ps, f.tree, at), at, known)}}
	case "and", "or":
		c := condition{op: f.name}
		if f.tree.kind != list {
			ps.addProblem(f.tree.at, at, "must be a list of conditions, not %s", f.tree.kindName())
		}
		for i, item := range f.tree.list {
			at := fmt.Sprintf("%s[%d]", at, i)
			c.of = append(c.of, conditionOf(ps, requireCondition(ps, item, at), at, known))
		}
		return c
	}
	ps.addProblem(f.at, at, "unknown operator%s", suggestName(f.name, operators))
	return condition{}
}

// requireCondition refuses an empty condition inside another: it would be true.
func requireCondition(ps *problems, t *tree, field string) *tree {
	if t.isAbsent() {
		ps.addProblem(t.at, field, "must be a condition")
	}
	return t
}

func equalsOf(ps *problems, t *tree, field string, known names) condition {
	r := reader{problems: ps}
	o := r.openObject(t, field)
	c := condition{op: "equals", expr: expressionOf(ps, o.needField("var"), field+".var", known)}
	value := o.takeField("value")
	if t.kind == object && t.get("value") == nil {
		ps.addProblem(t.at, field+".value", "is required")
	}
	raw, err := value.toRaw()
	if err != nil {
		ps.addProblem(value.at, field+".value", "%v", err)
	}
	c.value = raw
	o.checkUnknown()
	return c
}

// expressionOf compiles an expression; {{ }} around it may be there.
func expressionOf(ps *problems, t *tree, field string, known names) expression {
	if t == nil {
		return expression{}
	}
	src, ok := t.asText()
	if !ok {
		ps.addProblem(t.at, field, "must be an expression, not %s", t.kindName())
		return expression{}
	}
	if inner, ok := strings.CutPrefix(strings.TrimSpace(src), "{{"); ok {
		src = strings.TrimSuffix(inner, "}}")
	}
	x, err := compileExpression(src, known)
	if err != nil {
		ps.addProblem(t.at, field, "%v", err)
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
