package compare

import (
	"bytes"
	"maps"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// differingPair returns two values if they differ, else nil.
func differingPair(a, b wire.Raw) *Pair {
	if isSame(a, b) {
		return nil
	}
	return &Pair{a, b}
}

// isSame compares values. One that is missing is as good as null.
func isSame(a, b wire.Raw) bool {
	return bytes.Equal(a, b) || isNull(a) && isNull(b)
}

func isNull(v wire.Raw) bool { return len(v) == 0 || v.Any() == nil }

// withoutDuration is the output of a command without how long it took.
func withoutDuration(output wire.Raw) wire.Raw {
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

// differingValues lists the fields in which two values differ, by their paths.
func differingValues(path string, a, b wire.Raw) []ValuePair { return diffValues(path, a, b, 0) }

func diffValues(path string, a, b wire.Raw, depth int) []ValuePair {
	if isSame(a, b) {
		return nil
	}
	fieldsA, okA := a.Any().(map[string]any)
	fieldsB, okB := b.Any().(map[string]any)
	if depth >= maxDepth || !okA && !isNull(a) || !okB && !isNull(b) || !okA && !okB {
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
		all = append(all, diffValues(name, a.Get(key), b.Get(key), depth+1)...)
	}
	return all
}
