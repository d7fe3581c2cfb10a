package flow

import (
	"fmt"
	"path"
	"slices"

	"wake/pkg/wire"
)

// maxChildren bounds how deep child flows nest.
const maxChildren = 8

// Embed returns the definition with the child flows that its flow nodes name by
// file put in, so that a run needs its log alone. Files are named relative to
// the file they are named in. read returns the text of a file; a problem of a
// child is one of its own file.
func (d *Definition) Embed(file string, read func(file string) ([]byte, error)) (*Definition, error) {
	whole, changed, err := embed(d, file, read, []string{path.Clean(file)})
	if err != nil || !changed {
		return d, err
	}
	return FromRaw(whole)
}

func embed(d *Definition, file string, read func(string) ([]byte, error), above []string) (wire.Raw, bool, error) {
	def, ok := d.raw.Any().(map[string]any)
	nodes, ok2 := def["nodes"].([]any)
	if !ok || !ok2 {
		return d.raw, false, nil
	}
	changed := false
	for i, n := range d.Nodes {
		name, ok := n.Input.Get("flow").Text()
		if n.Type != TypeFlow || !ok {
			continue
		}
		child, err := loadChild(n.ID, path.Join(path.Dir(file), name), read, above)
		if err != nil {
			return nil, false, err
		}
		nodes[i].(map[string]any)["input"].(map[string]any)["flow"] = child.Any()
		changed = true
	}
	raw, err := wire.Marshal(def)
	return raw, changed, err
}

func loadChild(node, file string, read func(string) ([]byte, error), above []string) (wire.Raw, error) {
	if slices.Contains(above, file) {
		return nil, fmt.Errorf("flow: node %s: %s contains itself", node, file)
	}
	if len(above) >= maxChildren {
		return nil, fmt.Errorf("flow: node %s: flows nest deeper than %d", node, maxChildren)
	}
	src, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("flow: node %s: %w", node, err)
	}
	child, err := Parse(file, src)
	if err != nil {
		return nil, err
	}
	raw, _, err := embed(child, file, read, append(above, file))
	return raw, err
}
