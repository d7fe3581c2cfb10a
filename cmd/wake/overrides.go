package main

import (
	"maps"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// parseOverrides makes settings of "key=value" pairs. A key is an option of all
// agents, or that of one behind the id of a node and a dot. A value that is JSON counts
// as such.
func parseOverrides(sets, nodes []string) (wire.Raw, error) {
	if len(sets) == 0 {
		return nil, nil
	}
	all := map[string]any{}
	for _, set := range sets {
		key, text, ok := cutPair(set)
		if !ok {
			return nil, usageError("--set model=opus, or --set NODE.model=opus", "--set: %q has no key and value", set)
		}
		value, err := wire.RawFromJSON([]byte(text))
		if err != nil {
			value = wire.RawString(text)
		}
		path, err := overridePath(key, nodes)
		if err != nil {
			return nil, err
		}
		if err := putField(all, path, value); err != nil {
			return nil, usageError("", "--set %s: %w", set, err)
		}
	}
	return wire.Marshal(all)
}

// overridePath splits the key of an override. Ids of nodes may have dots: the
// longest that fits counts.
func overridePath(key string, nodes []string) ([]string, error) {
	node := ""
	for _, id := range nodes {
		if strings.HasPrefix(key, id+".") && len(id) > len(node) {
			node = id
		}
	}
	var path []string
	rest := key
	if node != "" {
		path, rest = []string{node}, key[len(node)+1:]
	}
	path = append(path, strings.Split(rest, ".")...)
	if slices.Contains(path, "") {
		return nil, usageError("", "--set: %q has an empty part", key)
	}
	if head := path[0]; node == "" && len(path) > 1 && head == "limits" {
		return nil, usageError("--set maxBudgetUsd=5, or --set NODE.maxTurns=50", "--set %s: limits of a run are given at its start and can't be changed", key)
	} else if node == "" && len(path) > 1 {
		return nil, usageError("nodes of the run: "+strings.Join(nodes, ", "), "--set %s: the run has no node %q", key, head)
	}
	return path, nil
}

// nodesOf lists the nodes of a run, without the items of a forEach.
func nodesOf(s *wire.State) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.NodeStatus)), func(id string) bool {
		return id == wire.RunNode || strings.Contains(id, "/")
	})
}
