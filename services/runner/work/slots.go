package work

import (
	"context"
)

// Slots holds a token per agent that runs. Waiting for work takes none: a
// queue without work must not keep a slot from another one.
type Slots chan struct{}

// Await waits until there is room. It reports false if ctx has ended.
func (s Slots) Await(ctx context.Context) bool {
	if s == nil || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	select {
	case s <- struct{}{}:
		<-s
		return true
	case <-ctx.Done():
		return false
	}
}

// Take takes a slot. It reports false if there is none.
func (s Slots) Take() bool {
	if s == nil {
		return true
	}
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Free gives a slot back.
func (s Slots) Free() {
	if s != nil {
		<-s
	}
}
