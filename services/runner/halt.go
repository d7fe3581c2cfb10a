package runner

import (
	"sync"

	"wake/pkg/wire"
)

// Why an agent came to a safe point, beside the reasons of a run's pause.
const (
	pauseShutdown = "shutdown" // its runner ends
	pauseForced   = "forced"   // it didn't stop when it was told to, and was ended
)

// halt tells the agent of an execution once to come to a safe point.
type halt struct {
	once   sync.Once
	told   chan struct{} // closed when it is told
	reason string        // set before
}

func (h *halt) begin() { h.told = make(chan struct{}) }

// tell says why. Only the first reason counts.
func (h *halt) tell(reason string) {
	h.once.Do(func() {
		h.reason = reason
		close(h.told)
	})
}

func (h *halt) is() bool {
	select {
	case <-h.told:
		return true
	default:
		return false
	}
}

// interrupts returns why agents at work are to be interrupted, "" if they may go
// on: the run isn't paused, or for something that they needn't wait for.
func interrupts(s *wire.State) string {
	if s.Status != wire.RunPaused {
		return ""
	}
	switch s.Reason {
	case wire.PauseRequiresAction, wire.PauseWorkspaceLost:
		return ""
	case "":
		return wire.PauseOperator
	}
	return s.Reason
}
