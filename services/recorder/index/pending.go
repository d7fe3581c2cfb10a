package index

import "code.wake.dev/wake/internal/eventlog"

// pending are events that are recorded, and from which nothing is derived yet, as they were decoded to be recorded: what
// deriving finds here it needn't read and decode again. Of a long backlog they are the first ones. The zero value is none.
type pending struct {
	entries []*eventlog.Entry
	to      uint64 // up to here none is missing
	size    int
}

// Bounds of what is pending.
const (
	maxPending   = 32 << 20 // bytes
	decodedBytes = 512      // of an entry and its event, besides what was stored
)

// keepEntries adds what a transaction has recorded and not derived from, if it follows what is there and there is room.
// Before the transaction the record ended at from, and all up to derived was derived.
func (p *pending) keepEntries(w *writer) {
	if p.to <= w.derived {
		*p = pending{to: w.derived}
	}
	if p.to != w.from || p.size > maxPending {
		return
	}
	for i := range w.later {
		p.size += decodedBytes + len(w.later[i].Data)
	}
	p.entries, p.to = append(p.entries, w.later...), w.pos
}

// nextEntries returns the entries up to a position, or up to an earlier one, last, if they are large.
func (p *pending) nextEntries(to uint64) (list []*eventlog.Entry, last uint64) {
	size := 0
	for i, e := range p.entries {
		if e.Pos > to {
			return p.entries[:i], to
		}
		if size += len(e.Data); size > deriveBytes && i > 0 {
			return p.entries[:i], p.entries[i-1].Pos
		}
	}
	return p.entries, min(to, p.to)
}

// dropEntries drops the entries up to a position.
func (p *pending) dropEntries(pos uint64) {
	n := 0
	for ; n < len(p.entries) && p.entries[n].Pos <= pos; n++ {
		p.size -= decodedBytes + len(p.entries[n].Data)
		p.entries[n] = nil
	}
	if p.entries = p.entries[n:]; len(p.entries) == 0 {
		p.entries = nil
	}
}
