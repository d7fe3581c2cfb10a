package compare

import (
	"bytes"
	"maps"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// differingPair returns two values if they differ, else nil.
func differingPair(a, b wire.Raw) *wire.DiffPair {
	if isSame(a, b) {
		return nil
	}
	return &wire.DiffPair{A: a, B: b}
}

// isSame compares values. One that is missing is as good as null.
func isSame(a, b wire.Raw) bool {
	return bytes.Equal(a, b) || isNull(a) && isNull(b)
}

func isNull(v wire.Raw) bool { return len(v) == 0 || v.Any() == nil }

// essentialOutput is the output of a node without what can't be the same twice and says nothing of what came of it: how long it took,
// ids of sessions and runs, and tokens, turns and cost, which are told beside it.
func essentialOutput(output wire.Raw) wire.Raw {
	fields, ok := output.Any().(map[string]any)
	if !ok || !trimOutput(fields, 0) {
		return output
	}
	if rest, err := wire.Marshal(fields); err == nil {
		return rest
	}
	return output
}

// trimOutput makes the fields of an output its essence, and reports whether anything was taken away.
func trimOutput(fields map[string]any, depth int) (trimmed bool) {
	has := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { _, there := fields[name]; return !there })
	}
	drop := func(names ...string) {
		for _, name := range names {
			delete(fields, name)
		}
		trimmed = true
	}
	each := func(v any) {
		if inner, ok := v.(map[string]any); ok && depth < maxDepth {
			trimmed = trimOutput(inner, depth+1) || trimmed
		}
	}
	switch {
	case has("text", "durationMs", "numTurns"): // of an agent
		drop("durationMs", "numTurns", "sessionId", "usage", "modelUsage", "totalCostUsd")
	case has("exitCode", "durationMs"): // of a command
		drop("durationMs")
	case has("runId", "status", "outputs"): // of a run that it has started
		drop("runId")
		if outputs, ok := fields["outputs"].(map[string]any); ok {
			for _, v := range outputs {
				each(v)
			}
		}
	}
	if all, ok := fields["iterations"].([]any); ok { // of a node that was run for each of a list
		for _, v := range all {
			each(v)
		}
	}
	return trimmed
}

// maxDepth bounds how far differences of objects are told apart by their fields.
const maxDepth = 6

func diffValues(path string, a, b wire.Raw, depth int) []wire.DiffValue {
	if isSame(a, b) {
		return nil
	}
	fieldsA, okA := a.Any().(map[string]any)
	fieldsB, okB := b.Any().(map[string]any)
	if depth >= maxDepth || !okA && !isNull(a) || !okB && !isNull(b) || !okA && !okB {
		return []wire.DiffValue{{Name: path, DiffPair: wire.DiffPair{A: a, B: b}}}
	}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(fieldsA)), maps.Keys(fieldsB))
	slices.Sort(keys)
	var all []wire.DiffValue
	for _, key := range slices.Compact(keys) {
		name := key
		if path != "" {
			name = path + "." + key
		}
		all = append(all, diffValues(name, a.Get(key), b.Get(key), depth+1)...)
	}
	return all
}
