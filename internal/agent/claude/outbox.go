package claude

import (
	"io"
	"sync"

	"wake/internal/agent"
)

// outbox writes lines to the program, in order, without making its callers
// wait: a program that doesn't read must not hold up its own output. Lines may be
// put before it begins.
type outbox struct {
	mu     sync.Mutex
	lines  [][]byte
	wake   chan struct{} // holds one token when there is something to do
	began  bool
	closed bool
	done   chan struct{} // closed when the writer is gone
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// begin starts the writer with the first lines. It ends once the outbox is
// closed and empty, or the program doesn't take any more.
func (o *outbox) begin(w io.WriteCloser, first ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines [][]byte
	for _, v := range first {
		if line, err := encode(v); err == nil {
			lines = append(lines, line)
		}
	}
	o.lines = append(lines, o.lines...)
	o.began = true
	o.signal()
	go o.write(w)
}

func (o *outbox) write(w io.WriteCloser) {
	defer close(o.done)
	defer func() { _ = w.Close() }() // the program may be gone
	for range o.wake {
		lines, last := o.take()
		for _, line := range lines {
			if _, err := w.Write(line); err != nil {
				o.close()
				return
			}
		}
		if last {
			return
		}
	}
}

func (o *outbox) take() (lines [][]byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines, o.lines = o.lines, nil
	return lines, o.closed
}

// put adds a line. It fails with [agent.ErrEnded] once the outbox is closed.
func (o *outbox) put(v any) error {
	line, err := encode(v)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return agent.ErrEnded
	}
	o.lines = append(o.lines, line)
	o.signal()
	return nil
}

// close lets the writer end after the lines that are there.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		o.signal()
	}
}

// end closes the outbox and waits until its writer is gone.
func (o *outbox) end() {
	o.close()
	o.mu.Lock()
	began := o.began
	o.mu.Unlock()
	if began {
		<-o.done
	}
}

// signal wakes the writer. It is called under mu.
func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
