package index

import "testing"

// Events are held as long as none is missing before them, and not without bounds; what is derived isn't held any more.
func TestHeld(t *testing.T) {
	event := func(pos uint64, size int) decoded { return decoded{pos: pos, data: make([]byte, size)} }
	var h held
	check := func(when string, derived, to uint64, want int, upTo uint64) {
		t.Helper()
		list, last := h.firstTo(derived, to)
		if len(list) != want || last != upTo {
			t.Errorf("%s: %d events up to %d, want %d up to %d", when, len(list), last, want, upTo)
		}
	}
	h.holdBatch([]decoded{event(6, 1)}, 5, 9, 0)
	check("others are missing before them", 0, 9, 0, 0)
	h.holdBatch([]decoded{event(6, 1), event(8, 1)}, 5, 9, 5)
	h.holdBatch([]decoded{event(10, 9<<20)}, 9, 12, 5)
	check("two batches", 5, 20, 3, 12)
	check("part of them", 5, 8, 2, 8)
	check("as of another position", 6, 8, 0, 6)
	if h.takes(11, 5) || !h.takes(12, 5) {
		t.Error("it takes what others are missing before, or not what follows")
	}
	h.holdBatch([]decoded{event(13, 9<<20)}, 12, 13, 5)
	h.holdBatch([]decoded{event(14, 1)}, 13, 14, 5)
	check("too large", 5, 20, 3, 12)
	h.dropTo(8)
	check("derived", 8, 20, 1, 12)
	if h.size != 9<<20 {
		t.Errorf("they have %d bytes", h.size)
	}
	h.dropTo(13)
	check("all", 13, 20, 0, 13)
	h.holdBatch([]decoded{event(14, 1)}, 13, 14, 13)
	check("anew", 13, 20, 1, 14)
	h.holdBatch(make([]decoded, maxHeld), 14, 14+maxHeld, 13)
	check("too many", 13, 20, 1, 14)
}
