package pipe

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"code.wake.dev/wake/internal/agent"
)

// Outbox writes lines to the program, in order, without making its callers
// wait: a program that doesn't read must not hold up its own output. Lines may be
// put before it begins.
type Outbox struct {
	mu     sync.Mutex
	lines  [][]byte
	wake   chan struct{} // holds one token when there is something to do
	began  bool
	busy   bool // lines are being written
	left   bool // the program lives on: its input isn't to be closed
	closed bool
	done   chan struct{} // closed when the writer is gone
}

// NewOutbox returns one that hasn't begun to write.
func NewOutbox() *Outbox {
	return &Outbox{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Start starts the writer with the first lines. It ends once the outbox is
// closed and empty, or the program doesn't take any more.
func (o *Outbox) Start(w io.WriteCloser, first ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines [][]byte
	for _, v := range first {
		if line, err := EncodeLine(v); err == nil {
			lines = append(lines, line)
		}
	}
	o.lines = append(lines, o.lines...)
	o.began = true
	o.signalWriter()
	go o.writeLines(w)
}

func (o *Outbox) writeLines(w io.WriteCloser) {
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
				o.Close()
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

// IsIdle reports whether the program has been given every line.
func (o *Outbox) IsIdle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.began && !o.busy && len(o.lines) == 0
}

// Drop ends the outbox without its lines, and without closing the program's input.
func (o *Outbox) Drop() {
	o.mu.Lock()
	o.lines, o.left = nil, true
	o.mu.Unlock()
	o.Close()
}

func (o *Outbox) takeLines() (lines [][]byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines, o.lines = o.lines, nil
	o.busy = len(lines) > 0
	return lines, o.closed
}

// Put adds a line. It fails with [agent.ErrEnded] once the outbox is closed.
func (o *Outbox) Put(v any) error {
	line, err := EncodeLine(v)
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

// Close lets the writer end after the lines that are there.
func (o *Outbox) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		o.signalWriter()
	}
}

// CloseAndWait closes the outbox and waits until its writer is gone.
func (o *Outbox) CloseAndWait() {
	o.Close()
	o.mu.Lock()
	began := o.began
	o.mu.Unlock()
	if began {
		<-o.done
	}
}

// signalWriter wakes the writer. It is called under mu.
func (o *Outbox) signalWriter() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// EncodeLine returns v as a line.
func EncodeLine(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("pipe: encode %T: %w", v, err)
	}
	return append(b, '\n'), nil
}
