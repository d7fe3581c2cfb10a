package claude

import (
	"io"
	"sync"

	"code.wake.dev/wake/internal/agent"
)

// outbox writes lines to the program, in order, without making its callers
// wait: a program that doesn't read must not hold up its own output. Lines may be
// put before it begins.
type outbox struct {
	mu     sync.Mutex
	lines  [][]byte
	wake   chan struct{} // holds one token when there is something to do
	began  bool
	busy   bool // lines are being written
	left   bool // the program lives on: its input isn't to be closed
	closed bool
	done   chan struct{} // closed when the writer is gone
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// startWriter starts the writer with the first lines. It ends once the outbox is
// closed and empty, or the program doesn't take any more.
func (o *outbox) startWriter(w io.WriteCloser, first ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines [][]byte
	for _, v := range first {
		if line, err := encodeLine(v); err == nil {
			lines = append(lines, line)
		}
	}
	o.lines = append(lines, o.lines...)
	o.began = true
	o.signalWriter()
	go o.writeLines(w)
}

func (o *outbox) writeLines(w io.WriteCloser) {
	defer close(o.done)
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !o.left {
			_ = w.Close() // the program may be gone
		}
	}()
	for range o.wake {
		lines, last := o.takeLines()
		for _, line := range lines {
			if _, err := w.Write(line); err != nil {
				o.close()
				return
			}
		}
		o.mu.Lock()
		o.busy = false
		o.mu.Unlock()
		if last {
			return
		}
	}
}

// isIdle reports whether the program has been given every line.
func (o *outbox) isIdle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.began && !o.busy && len(o.lines) == 0
}

// dropLines ends the outbox without its lines, and without closing the program's input.
func (o *outbox) dropLines() {
	o.mu.Lock()
	o.lines, o.left = nil, true
	o.mu.Unlock()
	o.close()
}

func (o *outbox) takeLines() (lines [][]byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines, o.lines = o.lines, nil
	o.busy = len(lines) > 0
	return lines, o.closed
}

// putLine adds a line. It fails with [agent.ErrEnded] once the outbox is closed.
func (o *outbox) putLine(v any) error {
	line, err := encodeLine(v)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return agent.ErrEnded
	}
	o.lines = append(o.lines, line)
	o.signalWriter()
	return nil
}

// close lets the writer end after the lines that are there.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		o.signalWriter()
	}
}

// closeAndWait closes the outbox and waits until its writer is gone.
func (o *outbox) closeAndWait() {
	o.close()
	o.mu.Lock()
	began := o.began
	o.mu.Unlock()
	if began {
		<-o.done
	}
}

// signalWriter wakes the writer. It is called under mu.
func (o *outbox) signalWriter() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
