package flow

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/blues/jsonata-go/jparse"

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

// Verdict is what the goal and the score of a node say of its last execution.
type Verdict struct {
	Met   bool     // the goal holds, or there is none
	Score *float64 // from 0 to 1; nil: the node has none
}

// errScore is the error of a score that is none.
var errScore = errors.New("score: must be a number from 0 to 1")

// Judge evaluates the goal and the score of a node, or of an item of a forEach,
// after its execution has ended at state s; in both, the node's id stands for the
// item's own output. now is Unix ms. A goal that can't be evaluated isn't met, and
// a score that is no number from 0 to 1 is none: the error says why.
func (d *Definition) Judge(s *wire.State, node string, now int64) (Verdict, error) {
	v := d.graph.vertexOf(node)
	if v == nil || v.goal.src == "" && v.score.src == "" {
		return Verdict{Met: true}, nil
	}
	p := &planner{d: d, s: s, now: now, cache: map[*byte]any{}}
	var it *item
	if n := s.Nodes[node]; node != v.ID && n.Index != nil {
		own := *s
		own.Outputs = maps.Clone(s.Outputs)
		own.Outputs[v.ID] = s.Outputs[node]
		p.s = &own
		it = &item{name: v.itemName(s), index: *n.Index, count: n.Count, value: n.Item}
	}
	sc := p.scopeOf(v, it)
	met, goalErr := true, error(nil)
	if v.goal.src != "" {
		if met, goalErr = (condition{op: "expr", expr: v.goal}).isTrue(sc); goalErr != nil {
			met, goalErr = false, fmt.Errorf("goal: %w", goalErr)
		}
	}
	score, scoreErr := v.evalScore(sc)
	return Verdict{Met: met, Score: score}, errors.Join(goalErr, scoreErr)
}

func (v *vertex) evalScore(sc *scope) (*float64, error) {
	if v.score.src == "" {
		return nil, nil
	}
	value, err := v.score.eval(sc)
	if err != nil {
		return nil, fmt.Errorf("score: %w", err)
	}
	var score float64
	switch x := value.Any().(type) {
	case int64:
		score = float64(x)
	case uint64:
		score = float64(x)
	case float64:
		score = x
	default:
		return nil, errScore
	}
	if math.IsNaN(score) || score < 0 || score > 1 {
		return nil, fmt.Errorf("%w, not %v", errScore, score)
	}
	return &score, nil
}

// maxExpression bounds the text of an expression, and with it how deep it nests.
const maxExpression = 4096

// expression is a checked JSONata expression. Its zero value is no expression.
type expression struct {
	src  string
	path []string    // the names of a plain path; its value stays exact
	node jparse.Node // of any other
}

// plainPath matches a path of names. JSONata would read an empty list at its end
// as nothing.
var plainPath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("^(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.]+`)(?:\\.(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.]+`))*$")
})

var keywords = []string{"and", "or", "in", "true", "false", "null", "function"}

// compileExpression checks an expression: that it is one, that its names exist, and that
// it comes to an end.
func compileExpression(src string, known names) (expression, error) {
	src = strings.TrimSpace(src)
	if src == "" {
		return expression{}, errors.New("the expression is empty")
	}
	if len(src) > maxExpression {
		return expression{}, fmt.Errorf("the expression is longer than %d bytes", maxExpression)
	}
	node, err := jsonata.Parse(src)
	if err != nil {
		return expression{}, fmt.Errorf("%s: %w", src, err)
	}
	c := checker{known: known}
	if c.checkNode(node, true); c.err != nil {
		return expression{}, fmt.Errorf("%s: %w%s", src, c.err, unquotedHint(src, known.nodes))
	}
	x := expression{src: src, node: node}
	if plainPath().MatchString(src) && !slices.Contains(keywords, src) {
		for name := range strings.SplitSeq(src, ".") {
			x.path = append(x.path, strings.Trim(name, "`"))
		}
	}
	return x, nil
}

// unquotedHint tells of a node id that JSONata takes for a subtraction.
func unquotedHint(src string, nodes []string) string {
	for _, id := range nodes {
		if strings.Contains(id, "-") && strings.Contains(src, id) && !strings.Contains(src, "`"+id+"`") {
			return fmt.Sprintf("; write `%s` with backticks", id)
		}
	}
	return ""
}

// eval returns the value of the expression, nil if it has none. What it makes counts against the budget
// of the scope.
func (x expression) eval(s *scope) (wire.Raw, error) {
	v, ok := s.walkPath(x.path)
	var err error
	if !ok {
		v, err = x.evalNode(s)
	} else {
		err = s.ensureBudget().Make(len(v))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.src, err)
	}
	return v, nil
}

func (x expression) evalNode(s *scope) (wire.Raw, error) {
	v, ok, err := jsonata.Eval(x.node, jsonata.Scope{Data: s, Vars: s.vars, Now: s.now, Budget: s.ensureBudget()})
	if err != nil || !ok {
		return nil, err
	}
	return wire.Marshal(v)
}
