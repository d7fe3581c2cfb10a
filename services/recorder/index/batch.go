package index

import (
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Batch is what is recorded in one transaction.
type Batch struct {
	Incarnation string           // of the stream
	Entries     []eventlog.Entry // in stream order
	// Blobs holds large fields that the entries refer to, by SHA-256. One that is
	// neither here nor in the file is recorded as missing.
	Blobs map[string][]byte
	// Part says that the entries are of some runs only: positions between them belong
	// to other runs, they aren't lost.
	Part bool
	// Later leaves it to [Index.Derive] to derive from the entries what follows from
	// them. That is so in any case while something is left to it already.
	Later bool
}

// Report says what a batch came to.
type Report struct {
	Position wire.Position // up to here everything is recorded
	Derived  uint64        // up to here what follows from the events is derived
	Events   int           // recorded now
	Void     int           // of those: by fenced writers, or in a place that was taken
	Bad      int           // of those: no events
	Refused  int           // of what was derived now: not allowed by the run's history
	Late     int           // of those: of runs that were deleted, which are not kept
	Gaps     int64         // events missing in a node's sequence
	Lost     int64         // positions that the stream had dropped
	Defects  []Defect      // of those that were refused: the recorder's own fault
}

// Defect is an event from which the recorder couldn't derive all that follows from it.
type Defect struct {
	Entry  eventlog.Entry
	Reason string
}
