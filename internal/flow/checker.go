package flow

import (
	"fmt"
	"math"
	"slices"

	"github.com/blues/jsonata-go/jparse"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/internal/jsonata"
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

// checkNode checks one node; top is whether names are looked up in the scope itself.
func (c *checker) checkNode(node jparse.Node, top bool) {
	switch n := node.(type) {
	case *jparse.PathNode:
		c.checkPath(n, top)
	case *jparse.NameNode:
		if top {
			c.checkRoot(n.Value)
		}
	case *jparse.VariableNode:
		c.checkVariable(n.Name)
	case *jparse.NegationNode:
		c.checkNode(n.RHS, top)
	case *jparse.RangeNode:
		c.checkBounds(n)
	case *jparse.ArrayNode:
		c.checkEach(n.Items, top)
	case *jparse.ObjectNode:
		c.checkPairs(n, top)
	case *jparse.BlockNode:
		c.checkBlock(n, top)
	case *jparse.PredicateNode:
		c.checkNode(n.Expr, top)
		c.checkInner(func() { c.checkEach(n.Filters, false) })
	case *jparse.GroupNode:
		c.checkNode(n.Expr, top)
		c.checkInner(func() { c.checkPairs(n.ObjectNode, false) })
	case *jparse.ConditionalNode:
		c.checkEach([]jparse.Node{n.If, n.Then, n.Else}, top)
	case *jparse.AssignmentNode:
		c.checkAssignment(n, top)
	case *jparse.NumericOperatorNode:
		c.checkEach([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.ComparisonOperatorNode:
		c.checkEach([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.BooleanOperatorNode:
		c.checkEach([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.StringConcatenationNode:
		c.checkEach([]jparse.Node{n.LHS, n.RHS}, top)
	case *jparse.SortNode:
		c.checkNode(n.Expr, top)
		c.checkInner(func() {
			for _, term := range n.Terms {
				c.checkNode(term.Expr, false)
			}
		})
	case *jparse.FunctionCallNode:
		c.checkCall(n, n.Args, top)
	case *jparse.FunctionApplicationNode:
		c.checkChain(n, top)
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

func (c *checker) checkEach(nodes []jparse.Node, top bool) {
	for _, n := range nodes {
		if n != nil {
			c.checkNode(n, top)
		}
	}
}

// checkInner checks what is evaluated once per item.
func (c *checker) checkInner(check func()) {
	before := c.deep
	c.deep = true
	check()
	c.deep = before
}

func (c *checker) checkPairs(n *jparse.ObjectNode, top bool) {
	for _, p := range n.Pairs {
		c.checkEach(p[:], top)
	}
}

// checkPath checks the first step in its context, and the names that a path from there leads over.
func (c *checker) checkPath(n *jparse.PathNode, top bool) {
	for i, step := range n.Steps {
		if i == 0 {
			c.checkNode(step, top)
			continue
		}
		c.checkInner(func() { c.checkNode(step, false) })
	}
	if !top {
		return
	}
	var path []string
	for _, step := range n.Steps {
		name := nameOf(step)
		if name == "" {
			break
		}
		path = append(path, name)
	}
	switch {
	case len(path) == 0:
	case len(path) > 1 && path[0] == "outputs" && !slices.Contains(c.known.nodes, path[1]):
		c.fail("outputs has no node %q%s", path[1], document.SuggestName(path[1], c.known.nodes))
	default:
		c.checkFields(path)
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

func (c *checker) checkRoot(name string) {
	if !slices.Contains(c.known.roots, name) {
		c.fail("there is no %q here%s", name, document.SuggestName(name, c.known.roots))
	}
}

func (c *checker) checkVariable(name string) {
	switch {
	case slices.Contains(scopeVars, name), slices.Contains(c.vars, name):
	case slices.Contains(builtins, name):
		c.fail("$%s is a function and has to be called", name)
	default:
		c.fail("there is no $%s%s", name, document.SuggestName(name, append(slices.Clone(c.vars), scopeVars[2:]...)))
	}
}

// checkBounds checks a range: what it holds is made at once.
func (c *checker) checkBounds(n *jparse.RangeNode) {
	from, ok1 := numberLiteral(n.LHS)
	to, ok2 := numberLiteral(n.RHS)
	if !ok1 || !ok2 || math.Abs(to-from) > maxRange {
		c.fail("the bounds of a range must be written as numbers, such as [0..9], and at most %d apart: a list of a length that isn't known comes from a node", maxRange)
	}
}

func numberLiteral(n jparse.Node) (float64, bool) {
	switch n := n.(type) {
	case *jparse.NumberNode:
		return n.Value, true
	case *jparse.NegationNode:
		x, ok := numberLiteral(n.RHS)
		return -x, ok
	}
	return 0, false
}

// checkBlock checks expressions in order; what one assigns, the following ones see.
func (c *checker) checkBlock(n *jparse.BlockNode, top bool) {
	before := len(c.vars)
	c.checkEach(n.Exprs, top)
	c.vars = c.vars[:before]
}

func (c *checker) checkAssignment(n *jparse.AssignmentNode, top bool) {
	c.checkNode(n.Value, top)
	if slices.Contains(builtins, n.Name) || slices.Contains(scopeVars, n.Name) {
		c.fail("$%s has a meaning already", n.Name)
	}
	c.vars = append(c.vars, n.Name)
}

// checkCall checks the call of a built-in.
func (c *checker) checkCall(n *jparse.FunctionCallNode, args []jparse.Node, top bool) {
	v, ok := n.Func.(*jparse.VariableNode)
	if !ok || !slices.Contains(builtins, v.Name) {
		name := fmt.Sprint(n.Func)
		if ok {
			name = "$" + v.Name + document.SuggestName(v.Name, builtins)
		}
		c.fail("there is no function %s", name)
		return
	}
	at, takes := takesFunction[v.Name]
	for i, arg := range args {
		if takes && i == at {
			c.checkFunction(arg, top)
		} else {
			c.checkNode(arg, top)
		}
	}
}

// checkFunction checks the argument of a built-in that takes a function.
func (c *checker) checkFunction(n jparse.Node, top bool) {
	switch n := n.(type) {
	case *jparse.LambdaNode:
		c.checkLambda(n, top)
	case *jparse.TypedLambdaNode:
		c.checkLambda(n.LambdaNode, top)
	case *jparse.VariableNode:
		if _, higher := takesFunction[n.Name]; higher || !slices.Contains(builtins, n.Name) {
			c.fail("$%s can't be used as a function here", n.Name)
		}
	default:
		c.checkNode(n, top)
	}
}

func (c *checker) checkLambda(n *jparse.LambdaNode, top bool) {
	before := len(c.vars)
	for _, name := range n.ParamNames {
		if slices.Contains(builtins, name) {
			c.fail("$%s has a meaning already", name)
		}
	}
	c.vars = append(c.vars, n.ParamNames...)
	c.checkInner(func() { c.checkNode(n.Body, top) })
	c.vars = c.vars[:before]
}

// checkChain checks x ?? y and x ?: y, and x ~> $f(…) and x ~> $f.
func (c *checker) checkChain(n *jparse.FunctionApplicationNode, top bool) {
	if y, ok := jsonata.Fallback(n); ok {
		c.checkEach([]jparse.Node{n.LHS, y}, top)
		return
	}
	if c.deep {
		c.fail("~> can't be used within functions, steps and predicates")
		return
	}
	c.checkNode(n.LHS, top)
	switch f := n.RHS.(type) {
	case *jparse.FunctionCallNode:
		c.checkCall(f, append([]jparse.Node{&jparse.NullNode{}}, f.Args...), top)
	case *jparse.VariableNode:
		if !slices.Contains(builtins, f.Name) {
			c.fail("there is no function $%s%s", f.Name, document.SuggestName(f.Name, builtins))
		}
	default:
		c.checkNode(f, top)
		c.fail("~> wants a call of a built-in on its right")
	}
}

// maxRange bounds the items of a range with bounds that are written as numbers.
const maxRange = 10_000

// names are what an expression may begin with.
type names struct {
	roots []string // node ids, outputs, state, input and a forEach's item
	nodes []string // the node ids

	shapes map[string]valueShape // of the outputs of nodes, as far as they are known
}
