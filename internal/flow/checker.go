package flow

import (
	"fmt"
	"math"
	"slices"

	"github.com/blues/jsonata-go/jparse"
)

// checker walks the syntax tree of an expression and refuses what would be
// wrong for every run: names that don't exist, and what may not come to an end.
//
// Functions are allowed only where a built-in takes one. They then have no name,
// can't be stored, and nothing but a built-in can be called, so no function can
// reach itself: every evaluation ends.
type checker struct {
	known names
	vars  []string // that are assigned or are parameters
	deep  bool     // within a function, a step or a predicate: evaluated many times
	err   error
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// scopeVars are the variables of a scope.
var scopeVars = []string{"", "$", "iteration", "first", "last", "maxIterations"}

// builtins are the functions that may be called.
var builtins = []string{
	"string", "length", "substring", "substringBefore", "substringAfter", "uppercase", "lowercase", "pad",
	"trim", "contains", "split", "join", "match", "replace", "formatNumber", "formatBase", "base64encode",
	"base64decode", "decodeUrl", "decodeUrlComponent", "encodeUrl", "encodeUrlComponent",
	"number", "abs", "floor", "ceil", "round", "power", "sqrt", "sum", "max", "min", "average",
	"boolean", "not", "exists", "distinct", "count", "reverse", "sort", "zip", "append", "map", "filter", "reduce", "single",
	"each", "sift", "keys", "lookup", "merge", "fromMillis", "toMillis", "type", "error", "now", "millis",
}

// takesFunction tells which argument of a built-in is a function.
var takesFunction = map[string]int{
	"map": 1, "filter": 1, "reduce": 1, "single": 1, "each": 1, "sift": 1, "sort": 1, "replace": 2,
}

// expr checks one node; top is whether names are looked up in the scope itself.
func (c *checker) expr(node jparse.Node, top bool) {
	switch n := node.(type) {
	case *jparse.PathNode:
		c.path(n, top)
	case *jparse.NameNode:
		if top {
			c.root(n.Value)
		}
	case *jparse.VariableNode:
		c.variable(n.Name)
	case *jparse.NegationNode:
		c.expr(n.RHS, top)
	case *jparse.RangeNode:
		c.bounds(n)
	case *jparse.ArrayNode:
		c.each(n.Items, top)
	case *jparse.ObjectNode:
		c.pairs(n, top)
	case *jparse.BlockNode:
		c.block(n, top)
	case *jparse.PredicateNode:
		c.expr(n.Expr, top)
		c.inner(func() { c.each(n.Filters, false) })
	case *jparse.GroupNode:
		c.expr(n.Expr, top)
		c.inner(func() { c.pairs(n.ObjectNode, false) })
	case *jparse.ConditionalNode:
		c.each([]jparse.Node{n.If, n.Then, n.Else}, top)
	case *jparse.AssignmentNode:
		c.assignment(n, top)
	case *jparse.NumericOperatorNode:
		c.each([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.ComparisonOperatorNode:
		c.each([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.BooleanOperatorNode:
		c.each([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.StringConcatenationNode:
		c.each([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.SortNode:
		c.expr(n.Expr, top)
		c.inner(func() {
			for _, term := range n.Terms {
				c.expr(term.Expr, false)
			}
		})
	case *jparse.FunctionCallNode:
		c.call(n, n.Args, top)
	case *jparse.FunctionApplicationNode:
		c.chain(n, top)
	case *jparse.StringNode, *jparse.NumberNode, *jparse.BooleanNode, *jparse.NullNode, *jparse.RegexNode, nil:
	case *jparse.WildcardNode, *jparse.DescendentNode:
		c.fail("* and ** are not supported: fields have no order")
	case *jparse.ObjectTransformationNode:
		c.fail("|…|…| is not supported; $merge makes an object of several")
	case *jparse.LambdaNode, *jparse.TypedLambdaNode, *jparse.PartialNode:
		c.fail("a function can only be written where a built-in such as $map takes one")
	default:
		c.fail("%s is not supported", node)
	}
}

func (c *checker) each(nodes []jparse.Node, top bool) {
	for _, n := range nodes {
		if n != nil {
			c.expr(n, top)
		}
	}
}

// inner checks what is evaluated once per item.
func (c *checker) inner(check func()) {
	before := c.deep
	c.deep = true
	check()
	c.deep = before
}

func (c *checker) pairs(n *jparse.ObjectNode, top bool) {
	for _, p := range n.Pairs {
		c.each(p[:], top)
	}
}

// path checks the first step in its context and, for outputs, the node that the
// second one names.
func (c *checker) path(n *jparse.PathNode, top bool) {
	for i, step := range n.Steps {
		if i == 0 {
			c.expr(step, top)
			continue
		}
		c.inner(func() { c.expr(step, false) })
	}
	if top && len(n.Steps) > 1 && nameOf(n.Steps[0]) == "outputs" {
		if id := nameOf(n.Steps[1]); id != "" && !slices.Contains(c.known.nodes, id) {
			c.fail("outputs has no node %q%s", id, suggest(id, c.known.nodes))
		}
	}
}

// nameOf returns the name that a step consists of, or "".
func nameOf(step jparse.Node) string {
	switch n := step.(type) {
	case *jparse.NameNode:
		return n.Value
	case *jparse.PredicateNode:
		return nameOf(n.Expr)
	case *jparse.PathNode:
		if len(n.Steps) == 1 {
			return nameOf(n.Steps[0])
		}
	}
	return ""
}

func (c *checker) root(name string) {
	if !slices.Contains(c.known.roots, name) {
		c.fail("there is no %q here%s", name, suggest(name, c.known.roots))
	}
}

func (c *checker) variable(name string) {
	switch {
	case slices.Contains(scopeVars, name), slices.Contains(c.vars, name):
	case slices.Contains(builtins, name):
		c.fail("$%s is a function and has to be called", name)
	default:
		c.fail("there is no $%s%s", name, suggest(name, append(slices.Clone(c.vars), scopeVars[2:]...)))
	}
}

// bounds checks a range: what it holds is made at once.
func (c *checker) bounds(n *jparse.RangeNode) {
	from, ok1 := literal(n.LHS)
	to, ok2 := literal(n.RHS)
	if !ok1 || !ok2 || math.Abs(to-from) > maxRange {
		c.fail("the bounds of a range must be numbers at most %d apart", maxRange)
	}
}

func literal(n jparse.Node) (float64, bool) {
	switch n := n.(type) {
	case *jparse.NumberNode:
		return n.Value, true
	case *jparse.NegationNode:
		x, ok := literal(n.RHS)
		return -x, ok
	}
	return 0, false
}

// block checks expressions in order; what one assigns, the following ones see.
func (c *checker) block(n *jparse.BlockNode, top bool) {
	before := len(c.vars)
	c.each(n.Exprs, top)
	c.vars = c.vars[:before]
}

func (c *checker) assignment(n *jparse.AssignmentNode, top bool) {
	c.expr(n.Value, top)
	if slices.Contains(builtins, n.Name) || slices.Contains(scopeVars, n.Name) {
		c.fail("$%s has a meaning already", n.Name)
	}
	c.vars = append(c.vars, n.Name)
}

// call checks the call of a built-in.
func (c *checker) call(n *jparse.FunctionCallNode, args []jparse.Node, top bool) {
	v, ok := n.Func.(*jparse.VariableNode)
	if !ok || !slices.Contains(builtins, v.Name) {
		name := fmt.Sprint(n.Func)
		if ok {
			name = "$" + v.Name + suggest(v.Name, builtins)
		}
		c.fail("there is no function %s", name)
		return
	}
	at, takes := takesFunction[v.Name]
	for i, arg := range args {
		if takes && i == at {
			c.function(arg, top)
		} else {
			c.expr(arg, top)
		}
	}
}

// function checks the argument of a built-in that takes a function.
func (c *checker) function(n jparse.Node, top bool) {
	switch n := n.(type) {
	case *jparse.LambdaNode:
		c.lambda(n, top)
	case *jparse.TypedLambdaNode:
		c.lambda(n.LambdaNode, top)
	case *jparse.VariableNode:
		if _, higher := takesFunction[n.Name]; higher || !slices.Contains(builtins, n.Name) {
			c.fail("$%s can't be used as a function here", n.Name)
		}
	default:
		c.expr(n, top)
	}
}

func (c *checker) lambda(n *jparse.LambdaNode, top bool) {
	before := len(c.vars)
	for _, name := range n.ParamNames {
		if slices.Contains(builtins, name) {
			c.fail("$%s has a meaning already", name)
		}
	}
	c.vars = append(c.vars, n.ParamNames...)
	c.inner(func() { c.expr(n.Body, top) })
	c.vars = c.vars[:before]
}

// chain checks x ~> $f(…) and x ~> $f.
func (c *checker) chain(n *jparse.FunctionApplicationNode, top bool) {
	if c.deep {
		c.fail("~> can't be used within functions, steps and predicates")
		return
	}
	c.expr(n.LHS, top)
	switch f := n.RHS.(type) {
	case *jparse.FunctionCallNode:
		c.call(f, append([]jparse.Node{&jparse.NullNode{}}, f.Args...), top)
	case *jparse.VariableNode:
		if !slices.Contains(builtins, f.Name) {
			c.fail("there is no function $%s%s", f.Name, suggest(f.Name, builtins))
		}
	default:
		c.expr(f, top)
		c.fail("~> wants a call of a built-in on its right")
	}
}
