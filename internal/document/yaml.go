package flow

import (
	"bytes"
	"errors"
	"math"

	"github.com/goccy/go-yaml/ast"

	"code.wake.dev/wake/internal/document"
)

// readYAML returns the one document of a YAML file.
func readYAML(ps *problems, src []byte) *tree {
	root, err := document.Parse(src)
	if e, ok := errors.AsType[*document.Error](err); ok {
		ps.addProblem(place{e.Line, e.Col}, "", "%s%s", e.Message, bracesHint(src, e.Line))
		return nil
	}
	if root == nil {
		ps.addProblem(place{1, 1}, "", "the file is empty")
		return nil
	}
	r := yamlReader{ps: ps, anchors: map[string]*tree{}}
	t := r.readNode(root)
	if len(ps.list) > 0 {
		return nil
	}
	return t
}

// bracesHint tells of a binding that YAML takes for an object.
func bracesHint(src []byte, line int) string {
	lines := bytes.SplitN(src, []byte("\n"), line+1)
	if line <= len(lines) && bytes.Contains(lines[line-1], []byte("{{")) {
		return "; a text that begins with {{ needs quotes"
	}
	return ""
}

func placeOf(n ast.Node) place {
	line, col := document.Place(n.GetToken())
	return place{line, col}
}

// yamlReader turns the syntax tree of YAML into a [tree].
type yamlReader struct {
	ps      *problems
	anchors map[string]*tree
}

func (r *yamlReader) readNode(n ast.Node) *tree {
	switch n := n.(type) {
	case *ast.MappingNode:
		return r.readMapping(n, n.Values)
	case *ast.MappingValueNode:
		return r.readMapping(n, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		t := &tree{at: placeOf(n), kind: list, list: make([]*tree, len(n.Values))}
		for i, v := range n.Values {
			t.list[i] = r.readNode(v)
		}
		return t
	case *ast.AnchorNode:
		t := r.readNode(n.Value)
		r.anchors[n.Name.GetToken().Value] = t
		return t
	case *ast.AliasNode:
		return r.readAlias(n)
	case *ast.TagNode:
		r.ps.addProblem(placeOf(n), "", "tags such as %s are not supported", n.GetToken().Value)
		return &tree{}
	}
	return r.readScalar(n)
}

func (r *yamlReader) readAlias(n *ast.AliasNode) *tree {
	name := n.Value.GetToken().Value
	t, ok := r.anchors[name]
	if !ok {
		r.ps.addProblem(placeOf(n), "", "unknown alias *%s", name)
		return &tree{}
	}
	return t
}

func (r *yamlReader) readMapping(at ast.Node, values []*ast.MappingValueNode) *tree {
	t := &tree{at: placeOf(at), kind: object}
	if len(values) > 0 && values[0].Key != nil {
		t.at = placeOf(values[0].Key)
	}
	for _, v := range values {
		name, ok := keyOf(v.Key)
		if !ok {
			r.ps.addProblem(placeOf(v.Key), "", "a key must be a plain text")
			continue
		}
		if t.get(name) != nil {
			r.ps.addProblem(placeOf(v.Key), name, "is there twice")
			continue
		}
		t.fields = append(t.fields, treeField{name: name, at: placeOf(v.Key), tree: r.readNode(v.Value)})
	}
	return t
}

func keyOf(key ast.MapKeyNode) (string, bool) {
	switch k := key.(type) {
	case *ast.StringNode:
		return k.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return k.GetToken().Value, true
	}
	return "", false
}

func (r *yamlReader) readScalar(n ast.Node) *tree {
	t := &tree{at: placeOf(n)}
	switch n := n.(type) {
	case *ast.NullNode, nil:
	case *ast.BoolNode:
		t.value = n.Value
	case *ast.IntegerNode:
		t.value = n.Value
		if u, ok := n.Value.(uint64); ok && u <= math.MaxInt64 {
			t.value = int64(u)
		}
	case *ast.FloatNode:
		t.value = n.Value
	case *ast.StringNode:
		t.value = n.Value
	case *ast.LiteralNode:
		t.value = n.Value.Value
	default:
		r.ps.addProblem(t.at, "", "%q is not supported", n.GetToken().Value)
	}
	return t
}
