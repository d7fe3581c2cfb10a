package index

import "code.wake.dev/wake/pkg/wire"

// Bounds of the events that are held, decoded. They take some times the memory of their data.
const (
	maxHeld     = 64 << 10
	maxHeldSize = 16 << 20
)

// held are the first ones of the events that are recorded and of which nothing is derived yet, so that [Index.Derive] needn't
// read and decode them once more. The archive has them all.
type held struct {
	list  []decoded // those that count, in the order of their positions
	after uint64    // the position behind which they begin: what follows from the events is derived up to there
	upTo  uint64    // the position up to which they are all
	size  int       // bytes of their data
}

// decoded is a recorded event.
type decoded struct {
	pos   uint64
	event *wire.Event
	data  []byte
}

// takes reports whether the next ones are those behind a position.
func (h *held) takes(after, derived uint64) bool {
	return (after == h.upTo || after == derived) && len(h.list) < maxHeld && h.size < maxHeldSize
}

// holdBatch takes the events that were recorded between two positions, unless others are missing before them, or they are too many.
func (h *held) holdBatch(list []decoded, after, upTo, derived uint64) {
	if after == derived {
		*h = held{after: after, upTo: after}
	}
	size := h.size
	for i := range list {
		size += len(list[i].data)
	}
	if after != h.upTo || len(h.list)+len(list) > maxHeld || size > maxHeldSize {
		return
	}
	if cap(h.list)-len(h.list) < len(list) { // room for the most there may be, at once: growing would copy them again and again
		h.list = append(make([]decoded, 0, maxHeld), h.list...)
	}
	h.list, h.upTo, h.size = append(h.list, list...), upTo, size
}

// firstTo returns the events behind the position derived, and up to which position they are all: derived if they aren't held.
func (h *held) firstTo(derived, to uint64) ([]decoded, uint64) {
	if h.after != derived || h.upTo <= derived {
		return nil, derived
	}
	n := 0
	for n < len(h.list) && h.list[n].pos <= to {
		n++
	}
	return h.list[:n], min(to, h.upTo)
}

// dropTo drops the events up to a position: what follows from them is derived.
func (h *held) dropTo(derived uint64) {
	list, _ := h.firstTo(h.after, derived)
	for i := range list {
		h.size -= len(list[i].data)
	}
	clear(list)
	if h.list, h.after = h.list[len(list):], derived; h.upTo <= derived {
		*h = held{}
	}
}
