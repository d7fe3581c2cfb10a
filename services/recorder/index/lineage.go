package index

import (
	"slices"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// ancestorsOf returns the runs of which the event makes its own, which is in a state then, a fork at any distance, or a child. A name
// that is too long for a run isn't one.
func ancestorsOf(e *wire.Event, state *wire.State) (runs []string) {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		runs = append(runs, p.ParentRun)
	case *wire.RunForked:
		runs = append(runs, p.ParentRun)
		for _, a := range state.Lineage {
			runs = append(runs, a.RunID)
		}
	}
	slices.Sort(runs)
	return slices.DeleteFunc(slices.Compact(runs), func(run string) bool { return run == "" || len(run) > table.MaxKey })
}
