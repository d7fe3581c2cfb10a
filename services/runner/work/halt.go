package work

import (
	"sync"
)

// halt tells the agent of an execution once to come to a safe point.
type halt struct {
	once   sync.Once
	order  chan struct{} // closed when the agent is told to
	reason string        // set before
}

func (h *halt) openOrder() { h.order = make(chan struct{}) }

// tellReason says why. Only the first reason counts.
func (h *halt) tellReason(reason string) {
	h.once.Do(func() {
		h.reason = reason
		close(h.order)
	})
}

func (h *halt) isTold() bool {
	select {
	case <-h.order:
		return true
	default:
		return false
	}
}
