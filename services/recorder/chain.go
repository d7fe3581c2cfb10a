package recorder

import (
	"crypto/sha256"
	"encoding/binary"

	"wake/pkg/wire"
)

// stored is a message of the stream as it is kept.
type stored struct {
	pos  uint64
	time int64  // Unix ms, when the stream stored it
	mark string // '', void, bad or recorder
	note string // why it is marked
	data []byte
	link link // of the chain, after it; of an event in a segment zero
}

// kind is what the event's type says, or "" of what is no event.
func (s *stored) kind() wire.Kind {
	if s.mark == markBad {
		return ""
	}
	t, _ := wire.Raw(s.data).Get("type").Text()
	return wire.Type(t).Kind()
}

// link is a link of a run's hash chain: it stands for the run's events up to it.
type link [sha256.Size]byte

// firstLink is the one before a run's first event.
func firstLink(incarnation, run string) link {
	return sha256.Sum256([]byte("wake" + incarnation + run))
}

// chain computes links. The zero value is ready.
type chain struct{ buf []byte }

// next returns the link after an event: the SHA-256 of the link before, its
// position and time, and its mark, note and data, each after its length; numbers
// have eight bytes, the highest first. How the events were cut into batches and
// segments doesn't count.
func (c *chain) next(l link, s *stored) link {
	b := append(c.buf[:0], l[:]...)
	b = binary.BigEndian.AppendUint64(b, s.pos)
	b = binary.BigEndian.AppendUint64(b, uint64(s.time))
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(s.mark))), s.mark...)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(s.note))), s.note...)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(s.data))), s.data...)
	if c.buf = b; cap(b) > maxChainBuffer {
		c.buf = nil
	}
	return sha256.Sum256(b)
}

// maxChainBuffer is what is kept for the next event.
const maxChainBuffer = 1 << 20
