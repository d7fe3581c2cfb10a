package flow

import (
	"crypto/sha256"
	"sync"

	"code.wake.dev/wake/pkg/wire"
)

// Library reads definitions as [FromRaw] does, and keeps those that it has read, by their content: many runs are of one flow, and each
// is read by an owner, a worker and for its request. Its zero value is empty.
type Library struct {
	mu    sync.Mutex
	kept  map[[sha256.Size]byte]*Definition
	bytes int // of what they were read from
}

// What a library keeps at most. Beyond that it forgets all, and begins again.
const (
	keptDefinitions = 512
	keptBytes       = 8 << 20
)

// Read returns the definition of a content.
func (l *Library) Read(raw wire.Raw) (*Definition, error) {
	sum := sha256.Sum256(raw)
	l.mu.Lock()
	d := l.kept[sum]
	l.mu.Unlock()
	if d != nil {
		return d, nil
	}
	d, err := FromRaw(raw)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes += len(raw); l.kept == nil || len(l.kept) >= keptDefinitions || l.bytes > keptBytes {
		l.kept, l.bytes = map[[sha256.Size]byte]*Definition{}, len(raw)
	}
	l.kept[sum] = d
	return d, nil
}
