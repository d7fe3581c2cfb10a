package flow

import (
	"bytes"
	"errors"
	"math"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"wake/pkg/wire"
)

// maxTree bounds what aliases can make of a small file.
const maxTree = 100_000

// readYAML returns the one document of a YAML file.
func readYAML(ps *problems, src []byte) *tree {
	file, err := parseYAML(src)
	if err != nil {
		at, message := yamlError(err)
		ps.add(at, "", "%s%s", message, bracesHint(src, at.line))
		return nil
	}
	docs := slicesOfBodies(file)
	switch len(docs) {
	case 0:
		ps.add(place{1, 1}, "", "the file is empty")
		return nil
	case 1:
	default:
		ps.add(placeOf(docs[1]), "", "a second document; a flow is one")
		return nil
	}
	r := yamlReader{ps: ps, anchors: map[string]*tree{}}
	t := r.read(docs[0], 0)
	if len(ps.list) > 0 {
		return nil
	}
	return t
}

// parseYAML keeps a defect of the parser from ending the process: a flow file
// may come from anywhere.
func parseYAML(src []byte) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("malformed YAML")
		}
	}()
	return parser.ParseBytes(src, 0)
}

func slicesOfBodies(file *ast.File) []ast.Node {
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType && doc.Body.Type() != ast.CommentGroupType {
			bodies = append(bodies, doc.Body)
		}
	}
	return bodies
}

func yamlError(err error) (place, string) {
	var e yaml.Error
	if !errors.As(err, &e) {
		return place{1, 1}, err.Error()
	}
	at := place{1, 1}
	if t := e.GetToken(); t != nil {
		at = tokenPlace(t)
	}
	return at, e.GetMessage()
}

// bracesHint tells of a binding that YAML takes for an object.
func bracesHint(src []byte, line int) string {
	lines := bytes.SplitN(src, []byte("\n"), line+1)
	if line <= len(lines) && bytes.Contains(lines[line-1], []byte("{{")) {
		return "; a text that begins with {{ needs quotes"
	}
	return ""
}

func tokenPlace(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{1, 1}
	}
	return place{t.Position.Line, t.Position.Column}
}

func placeOf(n ast.Node) place { return tokenPlace(n.GetToken()) }

// yamlReader turns the syntax tree of YAML into a [tree].
type yamlReader struct {
	ps      *problems
	anchors map[string]*tree
	count   int
	tooMany bool
}

func (r *yamlReader) read(n ast.Node, depth int) *tree {
	if r.count++; r.count > maxTree || depth > wire.MaxDepth {
		if !r.tooMany {
			r.ps.add(placeOf(n), "", "nested too deep or too large")
		}
		r.tooMany = true
		return &tree{}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return r.mapping(n, n.Values, depth)
	case *ast.MappingValueNode:
		return r.mapping(n, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		t := &tree{at: placeOf(n), kind: list, list: make([]*tree, len(n.Values))}
		for i, v := range n.Values {
			t.list[i] = r.read(v, depth+1)
		}
		return t
	case *ast.AnchorNode:
		t := r.read(n.Value, depth+1)
		r.anchors[n.Name.GetToken().Value] = t
		return t
	case *ast.AliasNode:
		return r.alias(n)
	case *ast.TagNode:
		r.ps.add(placeOf(n), "", "tags such as %s are not supported", n.GetToken().Value)
		return &tree{}
	}
	return r.scalar(n)
}

func (r *yamlReader) alias(n *ast.AliasNode) *tree {
	name := n.Value.GetToken().Value
	t, ok := r.anchors[name]
	if !ok {
		r.ps.add(placeOf(n), "", "unknown alias *%s", name)
		return &tree{}
	}
	r.count += size(t, maxTree)
	return t
}

// size counts the values of t, up to limit.
func size(t *tree, limit int) int {
	n := 1
	for _, item := range t.list {
		if n < limit {
			n += size(item, limit-n)
		}
	}
	for _, f := range t.fields {
		if n < limit {
			n += size(f.tree, limit-n)
		}
	}
	return n
}

func (r *yamlReader) mapping(at ast.Node, values []*ast.MappingValueNode, depth int) *tree {
	t := &tree{at: placeOf(at), kind: object}
	if len(values) > 0 && values[0].Key != nil {
		t.at = placeOf(values[0].Key)
	}
	for _, v := range values {
		name, ok := keyOf(v.Key)
		if !ok {
			r.ps.add(placeOf(v.Key), "", "a key must be a plain text")
			continue
		}
		if t.get(name) != nil {
			r.ps.add(placeOf(v.Key), name, "is there twice")
			continue
		}
		t.fields = append(t.fields, treeField{name: name, at: placeOf(v.Key), tree: r.read(v.Value, depth+1)})
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

func (r *yamlReader) scalar(n ast.Node) *tree {
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
		r.ps.add(t.at, "", "%q is not supported", n.GetToken().Value)
	}
	return t
}
