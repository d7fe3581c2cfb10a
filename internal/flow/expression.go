package flow

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/blues/jsonata-go/jparse"

	"code.wake.dev/wake/internal/jsonata"
	"code.wake.dev/wake/pkg/wire"
)

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
