package intake

import (
	"sync"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/services/runner/internal/command"
)

// dealtCommands remembers which commands are on record, as far as this process has seen
// it: by the subject of the run with the record.
type dealtCommands struct {
	mu      sync.Mutex
	runs    map[string]uint64 // the last one; owners record them in order
	nobodys map[uint64]bool   // those of no owner, in any order
}

// maxDealt bounds the memory. What is forgotten is looked up in the log.
const maxDealt = 10_000

// noteRecord takes a record from the log.
func (d *dealtCommands) noteRecord(names subjects.Names, e eventlog.Entry) {
	p, ok := command.RecordOf(e)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
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

func (d *dealtCommands) hasRecord(subject string, pos uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nobodys[pos] || d.runs[subject] >= pos
}
