// Package jsonata evaluates expressions in JSONata under a budget.
//
// The parser, and the functions that format numbers and times, are those of
// github.com/blues/jsonata-go. Its evaluator isn't used: it has no bound, state that all
// evaluations share, and no order of fields. See docs/adr/0018-expressions-have-a-budget.md.
package jsonata

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/blues/jsonata-go/jparse"
)

// Data is what the names of an expression stand for.
type Data interface {
	Get(name string) (any, bool)
	All() map[string]any
}

// Scope is what an expression is evaluated in.
type Scope struct {
	Data Data
	Vars map[string]any
	Now  int64 // Unix ms
	*Budget
}

// Eval returns the value of an expression: nil, bool, float64, string, []any or map[string]any. ok is
// false if it has none.
func Eval(node jparse.Node, s Scope) (v any, ok bool, err error) {
	defer s.catchPanic(&err)
	m := &machine{Scope: s, language: language()}
	root := &frame{}
	for name, v := range s.Vars {
		root.bind(name, v)
	}
	if v, err = m.eval(node, s.Data, root); err != nil || isAbsent(v) {
		return nil, false, err
	}
	v, err = m.copyPlain(m.wholeData(v), 0)
	return v, err == nil, err
}

// machine is one evaluation.
type machine struct {
	Scope
	language map[string]*builtin
	calls    int // of lambdas, within each other
}

// frame is the variables of a block or of a call of a function.
type frame struct {
	parent *frame
	names  []string
	values []any
}

func (f *frame) bind(name string, v any) {
	if i := slices.Index(f.names, name); i >= 0 {
		f.values[i] = v
		return
	}
	f.names, f.values = append(f.names, name), append(f.values, v)
}

func (f *frame) lookup(name string) any {
	for ; f != nil; f = f.parent {
		if i := slices.Index(f.names, name); i >= 0 {
			return f.values[i]
		}
	}
	return nothing{}
}

var errFunction = errors.New("comes to a function, which is no value")

// wholeData is the value itself where an expression means all data, alone or in the list that objects make
// of their context.
func (m *machine) wholeData(v any) any {
	switch v := v.(type) {
	case Data:
		return v.All()
	case []any:
		if len(v) == 1 {
			if data, ok := v[0].(Data); ok {
				return []any{data.All()}
			}
		}
	}
	return v
}

// eval returns the value of a node in a context.
func (m *machine) eval(node jparse.Node, at any, f *frame) (any, error) {
	m.countSteps(1)
	switch n := node.(type) {
	case *jparse.StringNode:
		return n.Value, nil
	case *jparse.NumberNode:
		return n.Value, nil
	case *jparse.BooleanNode:
		return n.Value, nil
	case *jparse.NullNode:
		return nil, nil
	case *jparse.RegexNode:
		return &function{name: n.Value.String(), pattern: n.Value}, nil
	case *jparse.VariableNode:
		return m.evalVariable(n.Name, at, f), nil
	case *jparse.NameNode:
		return m.fieldOf(n.Value, at), nil
	case *jparse.PathNode:
		return m.evalPath(n, at, f)
	case *jparse.NegationNode:
		return m.evalNegation(n, at, f)
	case *jparse.RangeNode:
		return m.evalRange(n, at, f)
	case *jparse.ArrayNode:
		return m.evalList(n, at, f)
	case *jparse.ObjectNode:
		return m.evalObject(n, at, f)
	case *jparse.GroupNode:
		items, err := m.eval(n.Expr, at, f)
		if err != nil {
			return nil, err
		}
		return m.evalObject(n.ObjectNode, items, f)
	case *jparse.BlockNode:
		return m.evalBlock(n, at, f)
	case *jparse.PredicateNode:
		return m.evalPredicate(n, at, f)
	case *jparse.SortNode:
		return m.evalSort(n, at, f)
	case *jparse.ConditionalNode:
		return m.evalConditional(n, at, f)
	case *jparse.AssignmentNode:
		v, err := m.eval(n.Value, at, f)
		if err == nil {
			f.bind(n.Name, v)
		}
		return v, err
	case *jparse.LambdaNode:
		return &function{name: "lambda", lambda: n, at: at, frame: f}, nil
	case *jparse.TypedLambdaNode:
		return &function{name: "lambda", lambda: n.LambdaNode, types: n.In, at: at, frame: f}, nil
	case *jparse.FunctionCallNode:
		return m.evalCall(n, nil, at, f)
	case *jparse.FunctionApplicationNode:
		return m.evalChain(n, at, f)
	case *jparse.NumericOperatorNode:
		return m.evalArithmetic(n, at, f)
	case *jparse.ComparisonOperatorNode:
		return m.evalComparison(n, at, f)
	case *jparse.BooleanOperatorNode:
		return m.evalLogic(n, at, f)
	case *jparse.StringConcatenationNode:
		return m.evalConcatenation(n, at, f)
	}
	return nil, fmt.Errorf("%s is not supported", node)
}

// evalBoth evaluates the two sides of an operator.
func (m *machine) evalBoth(lhs, rhs jparse.Node, at any, f *frame) (a, b any, err error) {
	if a, err = m.eval(lhs, at, f); err == nil {
		b, err = m.eval(rhs, at, f)
	}
	return a, b, err
}

func (m *machine) evalVariable(name string, at any, f *frame) any {
	switch name {
	case "":
		return m.wholeData(at)
	case "$":
		return m.Data.All()
	}
	if v := f.lookup(name); !isAbsent(v) {
		return v
	}
	if b, ok := m.language[name]; ok {
		return &function{name: name, builtin: b}
	}
	return nothing{}
}

// fieldOf returns a field of an object, or those of all objects of a list.
func (m *machine) fieldOf(name string, at any) any {
	switch at := at.(type) {
	case Data:
		if v, ok := at.Get(name); ok {
			return v
		}
	case map[string]any:
		if v, ok := at[name]; ok {
			return v
		}
	case []any:
		return unwrapSequence(m.listFields(name, at, 0))
	}
	return nothing{}
}

func (m *machine) listFields(name string, list []any, depth int) []any {
	m.countSteps(len(list))
	m.checkDepth(depth)
	var out []any
	for _, item := range list {
		if inner, ok := item.([]any); ok {
			out = append(out, m.listFields(name, inner, depth+1)...)
		} else if v := m.fieldOf(name, item); !isAbsent(v) {
			out = append(out, v)
		}
	}
	m.countBytes(16 * len(out))
	return out
}

// evalPath takes each step for all that the one before has come to.
func (m *machine) evalPath(n *jparse.PathNode, at any, f *frame) (any, error) {
	if len(n.Steps) == 0 {
		return nothing{}, nil
	}
	items, isList := at.([]any)
	if !isList || beginsWithVariable(n.Steps[0]) {
		items = []any{at}
	}
	for i, step := range n.Steps {
		if list, ok := step.(*jparse.ArrayNode); ok && i == 0 {
			v, err := m.evalList(list, items, f)
			if items = elementsOf(v); err != nil || len(items) == 0 {
				return nothing{}, err
			}
			if i == len(n.Steps)-1 {
				return items, nil
			}
			continue
		}
		out, whole, err := m.evalStep(step, items, i == len(n.Steps)-1, f)
		if err != nil || len(out) == 0 {
			return nothing{}, err
		}
		if items = out; whole {
			return items, nil
		}
	}
	if n.KeepArrays {
		return items, nil
	}
	return unwrapSequence(items), nil
}

func beginsWithVariable(step jparse.Node) bool {
	if p, ok := step.(*jparse.PredicateNode); ok {
		step = p.Expr
	}
	_, is := step.(*jparse.VariableNode)
	return is
}

// evalStep evaluates a step for each item. Lists become one; whole reports that the result is a list that
// stands in the data.
func (m *machine) evalStep(step jparse.Node, items []any, last bool, f *frame) (out []any, whole bool, err error) {
	m.countSteps(len(items))
	var results []any
	for _, item := range items {
		v, err := m.eval(step, item, f)
		if err != nil {
			return nil, false, err
		}
		if !isAbsent(v) {
			results = append(results, v)
		}
	}
	if last && len(results) == 1 {
		if list, ok := results[0].([]any); ok {
			return list, true, nil
		}
	}
	if _, made := step.(*jparse.ArrayNode); made {
		return results, false, nil
	}
	return m.flattenLists(results), false, nil
}

// flattenLists puts the items of lists in their place.
func (m *machine) flattenLists(items []any) []any {
	out := make([]any, 0, len(items))
	for _, item := range items {
		if list, ok := item.([]any); ok {
			m.countBytes(16 * len(list))
			out = append(out, list...)
		} else {
			out = append(out, item)
		}
	}
	m.countBytes(16 * len(items))
	return out
}

func (m *machine) evalNegation(n *jparse.NegationNode, at any, f *frame) (any, error) {
	v, err := m.eval(n.RHS, at, f)
	if err != nil || isAbsent(v) {
		return nothing{}, err
	}
	x, ok := v.(float64)
	if !ok {
		return nil, fmt.Errorf(`cannot negate "%s", which is no number`, n.RHS)
	}
	return -x, nil
}

// evalRange makes the numbers from one to another.
func (m *machine) evalRange(n *jparse.RangeNode, at any, f *frame) (any, error) {
	a, b, err := m.evalBoth(n.LHS, n.RHS, at, f)
	if err != nil {
		return nil, err
	}
	from, ok1 := a.(float64)
	to, ok2 := b.(float64)
	if !isAbsent(a) && (!ok1 || from != math.Trunc(from)) || !isAbsent(b) && (!ok2 || to != math.Trunc(to)) {
		return nil, errors.New(`both sides of the ".." operator must evaluate to integers`)
	}
	if !ok1 || !ok2 || from > to {
		return nothing{}, nil
	}
	if to-from > maxBytes {
		m.stopExceeded(fmt.Sprintf("%d MiB of memory", maxBytes>>20))
	}
	size := int(to-from) + 1
	m.countBytes(24 * size)
	m.countSteps(size)
	out := make([]any, size)
	for i := range out {
		out[i] = from + float64(i)
	}
	return out, nil
}

// evalList makes a list; lists in it that aren't written as such become part of it.
func (m *machine) evalList(n *jparse.ArrayNode, at any, f *frame) (any, error) {
	out := make([]any, 0, len(n.Items))
	for _, item := range n.Items {
		v, err := m.eval(item, at, f)
		if err != nil {
			return nil, err
		}
		if _, written := item.(*jparse.ArrayNode); written {
			out = append(out, v)
			continue
		}
		values := elementsOf(v)
		m.countBytes(16 * len(values))
		out = append(out, values...)
	}
	m.countBytes(16)
	return out, nil
}

// itemGroup is the items that have a key, and the pair that gives their value.
type itemGroup struct {
	key   string
	pair  int
	items []any
}

// evalObject makes an object: a key that is no literal is evaluated for each item of the context, and items with
// the same key share its value.
func (m *machine) evalObject(n *jparse.ObjectNode, at any, f *frame) (any, error) {
	items, isList := at.([]any)
	if !isList {
		items = []any{at}
	}
	groups, err := m.groupItems(n, items, f)
	if err != nil {
		return nil, err
	}
	m.countBytes(200)
	out := make(map[string]any, len(groups))
	for _, g := range groups {
		var at any = g.items
		if len(g.items) == 1 {
			at = g.items[0]
		}
		v, err := m.eval(n.Pairs[g.pair][1], at, f)
		if err != nil {
			return nil, err
		}
		if !isAbsent(v) {
			m.countBytes(48 + len(g.key))
			out[g.key] = v
		}
	}
	return out, nil
}

func (m *machine) groupItems(n *jparse.ObjectNode, items []any, f *frame) ([]*itemGroup, error) {
	var out []*itemGroup
	byKey := map[string]*itemGroup{}
	for i, pair := range n.Pairs {
		if s, ok := pair[0].(*jparse.StringNode); ok {
			if byKey[s.Value] != nil {
				return nil, duplicateKey(s.Value)
			}
			byKey[s.Value] = &itemGroup{s.Value, i, items}
			out = append(out, byKey[s.Value])
			continue
		}
		for _, item := range items {
			v, err := m.eval(pair[0], item, f)
			if err != nil {
				return nil, err
			}
			key, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("object key %s does not evaluate to a string", pair[0])
			}
			m.countBytes(16)
			g := byKey[key]
			switch {
			case g == nil:
				byKey[key] = &itemGroup{key, i, []any{item}}
				out = append(out, byKey[key])
			case g.pair != i:
				return nil, duplicateKey(key)
			default:
				g.items = append(g.items, item)
			}
		}
	}
	return out, nil
}

func duplicateKey(key string) error {
	return fmt.Errorf("multiple object keys evaluate to the value %q", key)
}

func (m *machine) evalBlock(n *jparse.BlockNode, at any, f *frame) (any, error) {
	inner := &frame{parent: f}
	var v any = nothing{}
	for _, expr := range n.Exprs {
		var err error
		if v, err = m.eval(expr, at, inner); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (m *machine) evalPredicate(n *jparse.PredicateNode, at any, f *frame) (any, error) {
	v, err := m.eval(n.Expr, at, f)
	if err != nil || isAbsent(v) {
		return nothing{}, err
	}
	items := elementsOf(v)
	for i, filter := range n.Filters {
		if items, err = m.applyFilter(filter, items, f); err != nil || len(items) == 0 {
			return nothing{}, err
		}
		if list, is := items[0].([]any); is && isIndex(filter) && len(items) == 1 && i+1 < len(n.Filters) { // m[0][1] is the second item of the first list
			items = list
		}
	}
	return unwrapSequence(items), nil
}

// isIndex reports whether a filter is a number.
func isIndex(filter jparse.Node) bool {
	if n, is := filter.(*jparse.NegationNode); is {
		filter = n.RHS
	}
	_, is := filter.(*jparse.NumberNode)
	return is
}

// applyFilter returns the items for which a filter is true, and those at the indexes that it gives.
func (m *machine) applyFilter(filter jparse.Node, items []any, f *frame) ([]any, error) {
	var out []any
	for i, item := range items {
		v, err := m.eval(filter, item, f)
		if err != nil {
			return nil, err
		}
		if x, ok := v.(float64); ok {
			v = []any{x}
		}
		m.countBytes(16)
		indexes, ok := typedItems[float64](v)
		if !ok {
			if m.isTrue(v) {
				out = append(out, item)
			}
			continue
		}
		m.countSteps(len(indexes))
		for _, x := range indexes {
			if x = math.Floor(x); x < 0 {
				x += float64(len(items))
			}
			if x == float64(i) {
				m.countBytes(16)
				out = append(out, item)
			}
		}
	}
	return out, nil
}

// evalSort orders items by terms, each of which comes to texts or numbers.
func (m *machine) evalSort(n *jparse.SortNode, at any, f *frame) (any, error) {
	v, err := m.eval(n.Expr, at, f)
	if err != nil || isAbsent(v) {
		return nothing{}, err
	}
	type row struct {
		item any
		keys []any
	}
	rows := []row{}
	kinds := make([]int, len(n.Terms))
	for _, item := range elementsOf(v) {
		r := row{item: item}
		for i, term := range n.Terms {
			key, err := m.eval(term.Expr, item, f)
			if err != nil {
				return nil, err
			}
			if !isOrderable(key) {
				return nil, errors.New("expressions in a sort term must evaluate to strings or numbers")
			}
			if kind := kindOf(key); kinds[i] == 0 {
				kinds[i] = kind
			} else if kind != 0 && kind != kinds[i] {
				return nil, errors.New("expressions in a sort term must have the same type")
			}
			r.keys = append(r.keys, key)
		}
		m.countBytes(64)
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		m.countSteps(len(n.Terms))
		for i, term := range n.Terms {
			c := m.compareValues(a.keys[i], b.keys[i])
			if term.Dir == jparse.SortDescending && !isAbsent(a.keys[i]) && !isAbsent(b.keys[i]) {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	})
	out := make([]any, len(rows))
	for i, r := range rows {
		out[i] = r.item
	}
	return unwrapSequence(out), nil
}

func isOrderable(v any) bool { return isAbsent(v) || kindOf(v) != 0 }

// kindOf tells apart what can be ordered: texts and numbers.
func kindOf(v any) int {
	switch v.(type) {
	case string:
		return 's'
	case float64:
		return 'n'
	}
	return 0
}

// compareValues compares texts or numbers; what there is not comes last.
func (m *machine) compareValues(a, b any) int {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			m.countSteps(min(len(a), len(b)) >> 8)
			return strings.Compare(a, b)
		}
	case float64:
		if b, ok := b.(float64); ok {
			return cmp.Compare(a, b)
		}
	}
	switch {
	case isAbsent(a) && isAbsent(b):
		return 0
	case isAbsent(a):
		return 1
	}
	return -1
}

func (m *machine) evalConditional(n *jparse.ConditionalNode, at any, f *frame) (any, error) {
	v, err := m.eval(n.If, at, f)
	switch {
	case err != nil:
		return nil, err
	case m.isTrue(v):
		return m.eval(n.Then, at, f)
	case n.Else != nil:
		return m.eval(n.Else, at, f)
	}
	return nothing{}, nil
}

func (m *machine) evalArithmetic(n *jparse.NumericOperatorNode, at any, f *frame) (any, error) {
	a, b, err := m.evalBoth(n.LHS, n.RHS, at, f)
	if err != nil {
		return nil, err
	}
	x, ok1 := a.(float64)
	y, ok2 := b.(float64)
	switch {
	case !isAbsent(a) && !ok1:
		return nil, fmt.Errorf("left side of the %q operator must evaluate to a number", n.Type)
	case !isAbsent(b) && !ok2:
		return nil, fmt.Errorf("right side of the %q operator must evaluate to a number", n.Type)
	case !ok1 || !ok2:
		return nothing{}, nil
	}
	switch n.Type {
	case jparse.NumericAdd:
		x += y
	case jparse.NumericSubtract:
		x -= y
	case jparse.NumericMultiply:
		x *= y
	case jparse.NumericDivide:
		x /= y
	case jparse.NumericModulo:
		x = math.Mod(x, y)
	}
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return nil, fmt.Errorf("result of the %q operator is out of range", n.Type)
	}
	return x, nil
}

func (m *machine) evalComparison(n *jparse.ComparisonOperatorNode, at any, f *frame) (any, error) {
	a, b, err := m.evalBoth(n.LHS, n.RHS, at, f)
	if err != nil {
		return nil, err
	}
	switch n.Type {
	case jparse.ComparisonEqual, jparse.ComparisonNotEqual, jparse.ComparisonIn:
		if isAbsent(a) || isAbsent(b) {
			return false, nil
		}
		if n.Type == jparse.ComparisonIn {
			return slices.ContainsFunc(elementsOf(b), func(v any) bool { return m.equalValues(a, v, 0) }), nil
		}
		return m.equalValues(a, b, 0) == (n.Type == jparse.ComparisonEqual), nil
	default:
	}
	switch {
	case !isOrderable(a):
		return nil, fmt.Errorf("left side of the %q operator must evaluate to a number or string", n.Type)
	case !isOrderable(b):
		return nil, fmt.Errorf("right side of the %q operator must evaluate to a number or string", n.Type)
	case isAbsent(a) || isAbsent(b):
		return false, nil
	case kindOf(a) != kindOf(b):
		return nil, fmt.Errorf("both sides of the %q operator must have the same type", n.Type)
	}
	c := m.compareValues(a, b)
	switch n.Type {
	case jparse.ComparisonLess:
		return c < 0, nil
	case jparse.ComparisonLessEqual:
		return c <= 0, nil
	case jparse.ComparisonGreater:
		return c > 0, nil
	default:
		return c >= 0, nil
	}
}

// evalLogic evaluates both sides, so that a mistake in one doesn't depend on the other.
func (m *machine) evalLogic(n *jparse.BooleanOperatorNode, at any, f *frame) (any, error) {
	a, b, err := m.evalBoth(n.LHS, n.RHS, at, f)
	if err != nil {
		return nil, err
	}
	if n.Type == jparse.BooleanAnd {
		return m.isTrue(a) && m.isTrue(b), nil
	}
	return m.isTrue(a) || m.isTrue(b), nil
}

func (m *machine) evalConcatenation(n *jparse.StringConcatenationNode, at any, f *frame) (any, error) {
	a, b, err := m.evalBoth(n.LHS, n.RHS, at, f)
	if err != nil {
		return nil, err
	}
	x, y := m.textOf(a), m.textOf(b)
	m.countBytes(len(x) + len(y))
	return x + y, nil
}

// evalCall calls a function with its arguments, which first come before.
func (m *machine) evalCall(n *jparse.FunctionCallNode, first []any, at any, f *frame) (any, error) {
	v, err := m.eval(n.Func, at, f)
	if err != nil {
		return nil, err
	}
	callee, ok := v.(*function)
	if !ok {
		return nil, fmt.Errorf("cannot call non-function %s", n.Func)
	}
	args := slices.Clone(first)
	for _, arg := range n.Args {
		v, err := m.eval(arg, at, f)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	return m.callFunction(callee, args, at)
}

// evalChain is x ~> $f(…) and x ~> $f.
func (m *machine) evalChain(n *jparse.FunctionApplicationNode, at any, f *frame) (any, error) {
	if y, ok := Fallback(n); ok {
		return m.evalFallback(n, y, at, f)
	}
	lhs, err := m.eval(n.LHS, at, f)
	if err != nil {
		return nil, err
	}
	if call, ok := n.RHS.(*jparse.FunctionCallNode); ok {
		return m.evalCall(call, []any{lhs}, at, f)
	}
	rhs, err := m.eval(n.RHS, at, f)
	if err != nil {
		return nil, err
	}
	callee, ok := rhs.(*function)
	if !ok {
		return nil, fmt.Errorf("cannot use function application with non-function %s", n.RHS)
	}
	return m.callFunction(callee, []any{lhs}, at)
}
