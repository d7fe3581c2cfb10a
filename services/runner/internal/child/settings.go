package child

import (
	"maps"
	"strings"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// Layers are the settings that were given while the run was under way, as they count
// for a node, the last ones most: those for every agent, those for the node, those for the
// item of a forEach. A node "" has none of its own.
func Layers(given wire.Raw, def *flow.Definition, node string) ([]map[string]wire.Raw, error) {
	if given == nil {
		return nil, nil
	}
	var fields map[string]wire.Raw
	if err := wire.Unmarshal(given, &fields); err != nil {
		return nil, err
	}
	all := []map[string]wire.Raw{maps.Clone(fields)}
	maps.DeleteFunc(all[0], func(name string, v wire.Raw) bool { return def.Node(name) != nil && v.IsMap() })
	ids := []string{node}
	if base, _, isItem := strings.Cut(node, "/"); isItem {
		ids = []string{base, node}
	}
	for _, id := range ids {
		var own map[string]wire.Raw
		if fields[id].IsMap() && wire.Unmarshal(fields[id], &own) == nil {
			all = append(all, own)
		}
	}
	return all, nil
}

// Inherited returns the settings that a run passes on to a child: those for
// every agent, and if an agent of the child stands in for that of a node, the node's.
func Inherited(given wire.Raw, def *flow.Definition, node string) wire.Raw {
	all, err := Layers(given, def, node)
	if err != nil {
		return nil
	}
	merged := map[string]wire.Raw{}
	for _, layer := range all {
		maps.Copy(merged, layer)
	}
	delete(merged, "workspace")
	if len(merged) == 0 {
		return nil
	}
	raw, err := wire.Marshal(merged)
	if err != nil {
		return nil
	}
	return raw
}
