// Package chain links the events of a run by hashes: a link stands for all events up to it. What is recorded and what is
// exported have the same links, unless an event has a mark in the store.
package chain

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Link is a link of a run's hash chain.
type Link [sha256.Size]byte

// FirstLink is the one before a run's first event.
func FirstLink(incarnation, run string) Link {
	return sha256.Sum256([]byte("wake" + incarnation + run))
}

func (l Link) String() string { return hex.EncodeToString(l[:]) }

// Linker computes links. The zero value is ready.
type Linker struct{ buf []byte }

// maxBuffer is what is kept for the next event.
const maxBuffer = 1 << 20

// Next returns the link after an event: the SHA-256 of the link before, its position and time (Unix ms), and its mark, note and
// data, each after its length; numbers have eight bytes, the highest first. How the events were cut into batches and segments
// doesn't count.
func (c *Linker) Next(l Link, pos uint64, at int64, mark, note string, data []byte) Link {
	b := append(c.buf[:0], l[:]...)
	b = binary.BigEndian.AppendUint64(b, pos)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(mark))), mark...)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(note))), note...)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(data))), data...)
	if c.buf = b; cap(b) > maxBuffer {
		c.buf = nil
	}
	return sha256.Sum256(b)
}
