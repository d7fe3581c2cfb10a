package process

import (
	"io"
	"strings"
	"sync"
)

// tail keeps the end of what a reader gives.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	done chan struct{}
}

// keepTail reads r to its end, which comes with the end of the tree.
func keepTail(r io.ReadCloser, limit int) *tail {
	t := &tail{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer func() { _ = r.Close() }()
		piece := make([]byte, 4<<10)
		for {
			n, err := r.Read(piece)
			t.add(piece[:n], limit)
			if err != nil {
				return
			}
		}
	}()
	return t
}

func (t *tail) add(piece []byte, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, piece...)
	if over := len(t.buf) - limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
}

func (t *tail) wait() { <-t.done }

// String returns what was kept, as text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.buf), "\uFFFD")
}
