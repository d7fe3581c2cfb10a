package intake

import (
	"sync"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// dealtCommands remembers which commands are on record, as far as this process has seen
// it: by the subject of the run with the record.
type dealtCommands struct {
	mu      sync.Mutex
	runs    map[string]uint64 // the last one; owners record them in order
	nobodys map[uint64]bool   // those of no owner, in any order
	copies  map[string]bool   // runs that are copies: the commands in their logs have positions of another stream
}

// maxDealt bounds the memory. What is forgotten is looked up in the log.
const maxDealt = 10_000

// noteRecord takes a record from the log.
func (d *dealtCommands) noteRecord(names subjects.Names, e eventlog.Entry) {
	d.noteCopy(e)
	p, ok := command.RecordOf(e)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ok || d.copies[e.RunID] {
		return
	}
	if e.RunID == subjects.NoRun {
		if len(d.nobodys) >= maxDealt {
			clear(d.nobodys)
		}
		d.nobodys[p.AtPos] = true
		return
	}
	if len(d.runs) >= maxDealt {
		clear(d.runs)
	}
	subject := names.Command(e.RunID)
	d.runs[subject] = max(d.runs[subject], p.AtPos)
}

// noteCopy takes the beginning of a run from the log. What is in the log of a copy is added to it in order.
func (d *dealtCommands) noteCopy(e eventlog.Entry) {
	if e.Event == nil {
		return
	}
	isCopy := false
	switch p := e.Event.Payload.(type) {
	case *wire.FlowStart:
		isCopy = p.Imported == wire.ImportedCopy
	case *wire.RunForked: // a state that is too large to be in the event may be that of a copy
		isCopy = p.State.TextAt("runId") == "" || p.State.TextAt("imported") == wire.ImportedCopy
	}
	if !isCopy {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.copies) >= maxDealt {
		clear(d.copies)
	}
	d.copies[e.RunID] = true
}

func (d *dealtCommands) hasRecord(subject string, pos uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nobodys[pos] || d.runs[subject] >= pos
}
