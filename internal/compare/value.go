package compare

import (
	"bytes"
	"maps"
	"slices"

	"wake/pkg/wire"
)

// pair returns two values if they differ, else nil.
func pair(a, b wire.Raw) *Pair {
	if same(a, b) {
		return nil
	}
	return &Pair{a, b}
}

// same compares values. One that is missing is as good as null.
func same(a, b wire.Raw) bool {
	return bytes.Equal(a, b) || none(a) && none(b)
}

func none(v wire.Raw) bool { return len(v) == 0 || v.Any() == nil }

// timeless is the output of a command without how long it took.
func timeless(output wire.Raw) wire.Raw {
	fields, ok := output.Any().(map[string]any)
	if !ok || fields["exitCode"] == nil || fields["durationMs"] == nil {
		return output
	}
	delete(fields, "durationMs")
	if rest, err := wire.Marshal(fields); err == nil {
		return rest
	}
	return output
}

// maxDepth bounds how far differences of objects are told apart by their fields.
const maxDepth = 6

// values lists the fields in which two values differ, by their paths.
func values(path string, a, b wire.Raw) []ValuePair { return differ(path, a, b, 0) }

func differ(path string, a, b wire.Raw, depth int) []ValuePair {
	if same(a, b) {
		return nil
	}
	fieldsA, okA := a.Any().(map[string]any)
	fieldsB, okB := b.Any().(map[string]any)
	if depth >= maxDepth || !okA && !none(a) || !okB && !none(b) || !okA && !okB {
		return []ValuePair{{path, Pair{a, b}}}
	}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(fieldsA)), maps.Keys(fieldsB))
	slices.Sort(keys)
	var all []ValuePair
	for _, key := range slices.Compact(keys) {
		name := key
		if path != "" {
			name = path + "." + key
		}
		all = append(all, differ(name, a.Get(key), b.Get(key), depth+1)...)
	}
	return all
}
