package run

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// errPatch is what all errors of [Patch] wrap.
var errPatch = errors.New("patch")

// Patch returns the user's state after p. The path is dotted; "" is the whole
// state, which is an object. Objects that are missing on the way are made, and
// what is no object or list gives way to one; in a list a segment is the index
// of an element, or its length to append one.
func Patch(state wire.Raw, p wire.Patch) (wire.Raw, error) {
	value, err := patchValue(state, p)
	if err != nil {
		return nil, err
	}
	root, err := setValueAt(state.Any(), pathSegments(p.Path), value)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errPatch, p.Path, err)
	}
	if _, ok := root.(map[string]any); !ok {
		return nil, fmt.Errorf("%w: the whole state must be an object", errPatch)
	}
	out, err := wire.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errPatch, p.Path, err)
	}
	return out, nil
}

// patchValue returns what is to stand at the path.
func patchValue(state wire.Raw, p wire.Patch) (any, error) {
	switch p.Op {
	case wire.PatchSet:
		return p.Value.Any(), nil
	case wire.PatchMerge:
	default:
		return nil, fmt.Errorf("%w %s: unknown operation %q", errPatch, p.Path, p.Op)
	}
	changes, ok := p.Value.Any().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%w %s: only an object can be merged", errPatch, p.Path)
	}
	merged, ok := valueAt(state.Any(), pathSegments(p.Path)).(map[string]any)
	if !ok {
		return changes, nil
	}
	maps.Copy(merged, changes)
	return merged, nil
}

func pathSegments(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' })
}

func valueAt(v any, path []string) any {
	for _, key := range path {
		switch at := v.(type) {
		case map[string]any:
			v = at[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

// setValueAt returns v with value at path. It may change v.
func setValueAt(v any, path []string, value any) (any, error) {
	if len(path) > wire.MaxDepth {
		return nil, wire.ErrDepth
	}
	if len(path) == 0 {
		return value, nil
	}
	key, rest := path[0], path[1:]
	if list, ok := v.([]any); ok {
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i > len(list) {
			return nil, fmt.Errorf("%q is no index of a list of %d", key, len(list))
		}
		if i == len(list) {
			list = append(list, nil)
		}
		list[i], err = setValueAt(list[i], rest, value)
		return list, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	child, err := setValueAt(object[key], rest, value)
	if err != nil {
		return nil, err
	}
	object[key] = child
	return object, nil
}
