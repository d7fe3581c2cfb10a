package document

import (
	"bytes"
	"math"

	"github.com/goccy/go-yaml/ast"
)

// readYAML returns the one document of a YAML file, nil if it has none.
func readYAML(ps *Problems, src []byte) *Value {
	root, err := parseYAML(src)
	if err != nil {
		ps.Add(err.at, "", "%s%s", err.message, bracesHint(src, err.at.Line))
		return nil
	}
	if root == nil {
		return nil
	}
	r := yamlReader{ps: ps, anchors: map[string]*Value{}}
	t := r.readNode(root)
	if len(ps.list) > 0 {
		return nil
	}
	return t
}

// bracesHint tells of a binding of a flow that YAML takes for an object.
func bracesHint(src []byte, line int) string {
	lines := bytes.SplitN(src, []byte("\n"), line+1)
	if line <= len(lines) && bytes.Contains(lines[line-1], []byte("{{")) {
		return "; a text that begins with {{ needs quotes"
	}
	return ""
}

func placeOf(n ast.Node) Place { return placeOfToken(n.GetToken()) }

// yamlReader turns the syntax tree of YAML into a [Value].
type yamlReader struct {
	ps      *Problems
	anchors map[string]*Value
}

func (r *yamlReader) readNode(n ast.Node) *Value {
	switch n := n.(type) {
	case *ast.MappingNode:
		return r.readMapping(n, n.Values)
	case *ast.MappingValueNode:
		return r.readMapping(n, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		t := &Value{At: placeOf(n), Kind: List, List: make([]*Value, len(n.Values))}
		for i, v := range n.Values {
			t.List[i] = r.readNode(v)
		}
		return t
	case *ast.AnchorNode:
		t := r.readNode(n.Value)
		r.anchors[n.Name.GetToken().Value] = t
		return t
	case *ast.AliasNode:
		return r.readAlias(n)
	case *ast.TagNode:
		r.ps.Add(placeOf(n), "", "tags such as %s are not supported", n.GetToken().Value)
		return &Value{}
	}
	return r.readScalar(n)
}

func (r *yamlReader) readAlias(n *ast.AliasNode) *Value {
	name := n.Value.GetToken().Value
	t, ok := r.anchors[name]
	if !ok {
		r.ps.Add(placeOf(n), "", "unknown alias *%s", name)
		return &Value{}
	}
	return t
}

func (r *yamlReader) readMapping(at ast.Node, values []*ast.MappingValueNode) *Value {
	t := &Value{At: placeOf(at), Kind: Object}
	if len(values) > 0 && values[0].Key != nil {
		t.At = placeOf(values[0].Key)
	}
	var merged []Field
	for _, v := range values {
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			of := r.readNode(v.Value)
			if of.Kind != Object {
				r.ps.Add(placeOf(v.Key), "", "only an object can be merged, not %s", of.KindName())
			}
			merged = append(merged, of.Fields...)
			continue
		}
		name, ok := keyOf(v.Key)
		if !ok {
			r.ps.Add(placeOf(v.Key), "", "a key must be a plain text")
			continue
		}
		if t.Get(name) != nil {
			r.ps.Add(placeOf(v.Key), name, "is there twice")
			continue
		}
		t.Fields = append(t.Fields, Field{Name: name, At: placeOf(v.Key), Value: r.readNode(v.Value)})
	}
	for _, f := range merged { // what the object says itself goes before
		if t.Get(f.Name) == nil {
			t.Fields = append(t.Fields, f)
		}
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

func (r *yamlReader) readScalar(n ast.Node) *Value {
	t := &Value{At: placeOf(n)}
	switch n := n.(type) {
	case *ast.NullNode, nil:
	case *ast.BoolNode:
		t.Scalar = n.Value
	case *ast.IntegerNode:
		t.Scalar = n.Value
		if u, ok := n.Value.(uint64); ok && u <= math.MaxInt64 {
			t.Scalar = int64(u)
		}
	case *ast.FloatNode:
		t.Scalar = n.Value
	case *ast.StringNode:
		t.Scalar = n.Value
	case *ast.LiteralNode:
		t.Scalar = n.Value.Value
	default:
		r.ps.Add(t.At, "", "%q is not supported", n.GetToken().Value)
	}
	return t
}
