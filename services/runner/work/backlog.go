package work

import (
	"sync"

	"code.wake.dev/wake/pkg/wire"
)

// backlog holds what an agent says while a snapshot of its folder is taken. It is recorded behind that, in order. The zero value
// holds nothing.
type backlog struct {
	task sync.WaitGroup

	mu     sync.Mutex
	isOpen bool
	events []*wire.Event
	err    error
}

// maxHeld bounds what is held, in events.
const maxHeld = 1000

// openBacklog holds events until a task is done, and has them recorded then. It must be closed before; nothing else is recorded meanwhile.
func (b *backlog) openBacklog(task func() error, record func(*wire.Event) error) {
	b.mu.Lock()
	b.isOpen = true
	b.mu.Unlock()
	b.task.Go(func() {
		err := task()
		for e := b.nextHeld(err); e != nil; e = b.nextHeld(err) {
			err = record(e)
		}
	})
}

// nextHeld returns the oldest event that is held; nil if there is none, or what is behind it can't be recorded. Then it is closed.
func (b *backlog) nextHeld(err error) *wire.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || len(b.events) == 0 {
		b.isOpen, b.events, b.err = false, nil, err
		return nil
	}
	e := b.events[0]
	b.events = b.events[1:]
	return e
}

// holdEvent takes an event, if it is open and not full.
func (b *backlog) holdEvent(e *wire.Event) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen || len(b.events) >= maxHeld {
		return false
	}
	b.events = append(b.events, e)
	return true
}

// isEmpty reports whether all that was held is recorded.
func (b *backlog) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isOpen && b.err == nil
}

// wait waits until it is closed and says what couldn't be recorded.
func (b *backlog) wait() error {
	b.task.Wait()
	return b.err
}
