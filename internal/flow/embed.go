package flow

import (
	"fmt"
	"iter"
	"path"
	"slices"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// maxChildren bounds how deep child flows nest.
const maxChildren = 8

// Embed returns the definition with the child flows that its nodes name by file put
// in, be it that a node is one or that its agent may start it, so that a run needs its
// log alone. Files are named relative to the file they are named in. read returns the
// text of a file. The error is an [*Error]; a problem of a child is one of its own file.
func (d *Definition) Embed(file string, read func(file string) ([]byte, error)) (*Definition, error) {
	whole, changed, err := embedFlows(d, file, read, []string{path.Clean(file)})
	if err != nil || !changed {
		return d, err
	}
	return FromRaw(whole)
}

func embedFlows(d *Definition, file string, read func(string) ([]byte, error), above []string) (wire.Raw, bool, error) {
	def, ok := d.raw.Any().(map[string]any)
	nodes, ok2 := def["nodes"].([]any)
	if !ok || !ok2 {
		return d.raw, false, nil
	}
	changed := false
	for i := range nodes {
		for field, holder := range flowHolders(fmt.Sprintf("nodes[%d]", i), nodes[i]) {
			child, err := embedChild(holder["flow"], file, read, above)
			if err != nil {
				return nil, false, asProblem(err, file, field, d.embedded[field])
			}
			if child != nil {
				holder["flow"], changed = child.Any(), true
			}
		}
	}
	raw, err := wire.Marshal(def)
	return raw, changed, err
}

// embedChild returns what a flow within a flow is with all files put in; nil if that
// is what it is.
func embedChild(child any, file string, read func(string) ([]byte, error), above []string) (wire.Raw, error) {
	switch child := child.(type) {
	case string:
		return loadChild(path.Join(path.Dir(file), child), read, above)
	case map[string]any:
		raw, err := wire.Marshal(child)
		if err != nil {
			return nil, err
		}
		d, err := FromRaw(raw)
		if err != nil {
			return nil, err
		}
		whole, changed, err := embedFlows(d, file, read, above)
		if err != nil || !changed {
			return nil, err
		}
		return whole, nil
	}
	return nil, nil
}

// flowHolders yields the objects of a node that hold a flow, by the field that it is.
func flowHolders(path string, node any) iter.Seq2[string, map[string]any] {
	n, _ := node.(map[string]any)
	return func(yield func(string, map[string]any) bool) {
		if input, ok := n["input"].(map[string]any); ok && n["type"] == string(TypeFlow) && !yield(path+".input.flow", input) {
			return
		}
		flows, _ := n["flows"].([]any)
		for i, f := range flows {
			if f, ok := f.(map[string]any); ok && !yield(fmt.Sprintf("%s.flows[%d].flow", path, i), f) {
				return
			}
		}
	}
}

// asProblem makes of an error one of the file that names the child. What is wrong
// within the child is told of its own file.
func asProblem(err error, file, field string, at document.Place) error {
	if _, ok := err.(*document.Error); ok { //nolint:errorlint // it is made here, and not wrapped
		return err
	}
	return &document.Error{Problems: []document.Problem{{File: file, Line: at.Line, Col: at.Col, Field: field, Message: err.Error()}}}
}

func loadChild(file string, read func(string) ([]byte, error), above []string) (wire.Raw, error) {
	if slices.Contains(above, file) {
		return nil, fmt.Errorf("%s contains itself", file)
	}
	if len(above) >= maxChildren {
		return nil, fmt.Errorf("flows nest deeper than %d", maxChildren)
	}
	src, err := read(file)
	if err != nil {
		return nil, err
	}
	child, err := Parse(file, src)
	if err != nil {
		return nil, err
	}
	raw, _, err := embedFlows(child, file, read, append(above, file))
	return raw, err
}
