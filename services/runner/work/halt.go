package work

import (
	"sync"
)

// halt tells the agent of an execution once to come to a safe point. The zero value hasn't yet.
type halt struct {
	reason string // set before it is told

	mu    sync.Mutex
	told  bool
	order chan struct{} // closed when it is told; nil: nothing waits for that
	act   func()        // called then; nil: nothing is to be done
}

// orderGiven is closed when the agent is told.
func (h *halt) orderGiven() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.order == nil {
		h.order = make(chan struct{})
		if h.told {
			close(h.order)
		}
	}
	return h.order
}

// tellReason says why. Only the first reason counts.
func (h *halt) tellReason(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.told {
		return
	}
	h.reason, h.told = reason, true
	if h.order != nil {
		close(h.order)
	}
	if h.act != nil {
		h.act()
	}
}

// onTold says what is done when the agent is told, at once if it was, nil for nothing any more. It must take no time.
func (h *halt) onTold(act func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.act = act
	if act != nil && h.told {
		act()
	}
}

func (h *halt) isTold() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told
}
