package work

import (
	"sync"
)

// halt tells the agent of an execution once to come to a safe point.
type halt struct {
	order  chan struct{} // closed when the agent is told to
	reason string        // set before

	mu  sync.Mutex
	act func() // called then; nil: nothing is to be done
}

func (h *halt) openOrder() { h.order = make(chan struct{}) }

// tellReason says why. Only the first reason counts.
func (h *halt) tellReason(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isTold() {
		return
	}
	h.reason = reason
	close(h.order)
	if h.act != nil {
		h.act()
	}
}

// onTold says what is done when the agent is told, at once if it was, nil for nothing any more. It must take no time.
func (h *halt) onTold(act func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.act = act
	if act != nil && h.isTold() {
		act()
	}
}

func (h *halt) isTold() bool {
	select {
	case <-h.order:
		return true
	default:
		return false
	}
}
