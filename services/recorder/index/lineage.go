package index

import (
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// parentOf returns the run of which the event makes its own a fork or a child, or
// "". A name that is too long for a run isn't one.
func parentOf(e *wire.Event) (run string) {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		run = p.ParentRun
	case *wire.RunForked:
		run = p.ParentRun
	}
	if len(run) > table.MaxKey {
		return ""
	}
	return run
}
