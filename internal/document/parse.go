package document

import (
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a document.
const (
	MaxDepth  = 256     // values within each other
	maxKeys   = 2000    // of an object
	maxTokens = 200_000 // a flow of 500 nodes has about 15 000
	maxValues = 100_000 // with what aliases stand for
)

// fault is why a text can't be parsed, and where.
type fault struct {
	at      Place
	message string
}

func faultAt(t *token.Token, format string, args ...any) *fault {
	return &fault{placeOfToken(t), fmt.Sprintf(format, args...)}
}

func placeOfToken(t *token.Token) Place {
	if t == nil || t.Position == nil {
		return Place{1, 1}
	}
	return Place{t.Position.Line, t.Position.Column}
}

// parseYAML returns the syntax tree of the one document that there is, nil if there is none.
func parseYAML(src []byte) (root ast.Node, err *fault) {
	defer func() { // a defect of the parser must not end the process
		if recover() != nil {
			root, err = nil, &fault{Place{1, 1}, "malformed YAML"}
		}
	}()
	if err := checkTokens(string(src)); err != nil {
		return nil, err
	}
	file, failed := parser.ParseBytes(src, 0)
	if failed != nil {
		return nil, faultOf(failed)
	}
	for _, d := range file.Docs {
		switch {
		case d.Body == nil || d.Body.Type() == ast.CommentType || d.Body.Type() == ast.CommentGroupType:
		case root != nil:
			return nil, faultAt(d.Body.GetToken(), "a second document; a file has one")
		default:
			root = d.Body
		}
	}
	m := meter{anchors: map[string]int{}}
	m.measureNode(root, 0)
	if m.err != nil {
		return nil, m.err
	}
	return root, nil
}

// faultOf returns an error of the parser without the lines that it would show.
func faultOf(err error) *fault {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		return faultAt(e.GetToken(), "%s", e.GetMessage())
	}
	return &fault{Place{1, 1}, err.Error()}
}

// level is a list or an object that isn't complete yet.
type level struct{ column, keys int } // column 0: within brackets

// checkTokens goes through the tokens and refuses what would be too large to parse.
func checkTokens(src string) *fault {
	var s scanner.Scanner
	s.Init(src)
	c := counter{}
	for {
		tokens, err := s.Scan()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return nil // the parser tells it, with its place
		}
		for _, t := range tokens {
			if err := c.addToken(t); err != nil {
				return err
			}
		}
	}
}

type counter struct {
	open   []level
	tokens int
	before *token.Token
}

func (c *counter) addToken(t *token.Token) *fault {
	column := t.Position.Column
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		c.open = append(c.open, level{})
	case token.SequenceEndType, token.MappingEndType:
		if c.inBrackets() {
			c.open = c.open[:len(c.open)-1]
		}
	case token.SequenceEntryType, token.MappingKeyType:
		c.enterColumn(column)
	case token.MappingValueType:
		if c.before != nil {
			c.enterColumn(c.before.Position.Column)
		}
		if n := len(c.open); n > 0 {
			c.open[n-1].keys++
		}
	case token.DocumentHeaderType, token.DocumentEndType:
		c.open = nil
	default:
		c.leaveColumn(column)
	}
	c.before = t
	c.tokens++
	switch n := len(c.open); {
	case n > MaxDepth:
		return faultAt(t, "nested deeper than %d values", MaxDepth)
	case n > 0 && c.open[n-1].keys > maxKeys:
		return faultAt(t, "an object with more than %d keys", maxKeys)
	case c.tokens > maxTokens:
		return faultAt(t, "more than %d words and signs", maxTokens)
	}
	return nil
}

// inBrackets reports whether what comes next is within brackets, where columns mean nothing.
func (c *counter) inBrackets() bool { return len(c.open) > 0 && c.open[len(c.open)-1].column == 0 }

// leaveColumn ends what stands further to the right.
func (c *counter) leaveColumn(column int) {
	for !c.inBrackets() && len(c.open) > 0 && c.open[len(c.open)-1].column > column {
		c.open = c.open[:len(c.open)-1]
	}
}

// enterColumn begins or goes on with the list or object of a column.
func (c *counter) enterColumn(column int) {
	if c.leaveColumn(column); !c.inBrackets() && (len(c.open) == 0 || c.open[len(c.open)-1].column < column) {
		c.open = append(c.open, level{column: column})
	}
}

// meter measures values with what their aliases stand for.
type meter struct {
	anchors map[string]int
	err     *fault
}

func (m *meter) measureNode(n ast.Node, depth int) int {
	if n == nil || m.err != nil {
		return 0
	}
	size := 1
	if depth > MaxDepth {
		m.err = faultAt(n.GetToken(), "nested deeper than %d values", MaxDepth)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			size += m.measureNode(v, depth)
		}
	case *ast.MappingValueNode:
		size += m.measureNode(n.Key, depth+1) + m.measureNode(n.Value, depth+1)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			size += m.measureNode(v, depth+1)
		}
	case *ast.TagNode:
		size += m.measureNode(n.Value, depth+1)
	case *ast.AnchorNode:
		size += m.measureNode(n.Value, depth)
		m.anchors[n.Name.GetToken().Value] = size
	case *ast.AliasNode:
		size += m.anchors[n.Value.GetToken().Value]
	}
	if size > maxValues && m.err == nil {
		m.err = faultAt(n.GetToken(), "more than %d values, what aliases stand for included", maxValues)
	}
	return size
}
