package intake

import "sync"

// dealtCommands remembers which commands are on record, as far as this process has seen
// it: by the subject of the run with the record.
type dealtCommands struct {
	mu      sync.Mutex
	runs    map[string]uint64 // the last one; owners record them in order
	nobodys map[uint64]bool   // those of no owner, in any order
}

// maxDealt bounds the memory. What is forgotten is looked up in the log.
const maxDealt = 10_000

// noteOwner takes the record of an owner from the log: the position of a command to the run of a subject.
func (d *dealtCommands) noteOwner(subject string, pos uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.runs) >= maxDealt {
		clear(d.runs)
	}
	d.runs[subject] = max(d.runs[subject], pos)
}

// noteNobody takes the record of a command from the log that no owner has dealt with.
func (d *dealtCommands) noteNobody(pos uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.nobodys) >= maxDealt {
		clear(d.nobodys)
	}
	d.nobodys[pos] = true
}

func (d *dealtCommands) hasRecord(subject string, pos uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nobodys[pos] || d.runs[subject] >= pos
}
