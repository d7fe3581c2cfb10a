package run

import (
	"errors"
	"fmt"
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
	path := strings.FieldsFunc(p.Path, func(r rune) bool { return r == '.' })
	value, err := patchValue(state, path, p)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errPatch, p.Path, err)
	}
	out, err := state.SetAt(path, value)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errPatch, p.Path, err)
	}
	if !out.IsMap() {
		return nil, fmt.Errorf("%w: the whole state must be an object", errPatch)
	}
	return out, nil
}

// patchValue returns what is to stand at the path.
func patchValue(state wire.Raw, path []string, p wire.Patch) (wire.Raw, error) {
	switch {
	case p.Op == wire.PatchSet:
		return p.Value, nil
	case p.Op != wire.PatchMerge:
		return nil, fmt.Errorf("unknown operation %q", p.Op)
	case !p.Value.IsMap():
		return nil, errors.New("only an object can be merged")
	}
	return state.At(path...).Merge(p.Value), nil
}
