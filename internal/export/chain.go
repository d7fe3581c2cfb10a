package export

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// chainLink is a link of a run's hash chain: it stands for all events up to it. It is
// computed as the recorder's store does, so that a whole run has the same hash in
// both, unless the store marks an event of it as void.
type chainLink [sha256.Size]byte

// firstLink is the one before the first event.
func firstLink(incarnation, run string) chainLink {
	return sha256.Sum256([]byte("wake" + incarnation + run))
}

func (l chainLink) String() string { return hex.EncodeToString(l[:]) }

// chain computes links. The zero value is ready.
type chain struct{ buf []byte }

// nextLink returns the link after an event: the SHA-256 of the link before, the
// event's position and time (Unix ms), and its mark, note and data, each after its
// length; numbers have eight bytes, the highest first. What is exported has
// neither mark nor note.
func (c *chain) nextLink(l chainLink, pos uint64, at int64, data []byte) chainLink {
	b := append(c.buf[:0], l[:]...)
	b = binary.BigEndian.AppendUint64(b, pos)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = binary.BigEndian.AppendUint64(b, 0) // mark
	b = binary.BigEndian.AppendUint64(b, 0) // note
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(data))), data...)
	c.buf = b
	return sha256.Sum256(b)
}
