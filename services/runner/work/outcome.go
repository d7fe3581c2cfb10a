package work

import (
	"errors"

	"code.wake.dev/wake/pkg/wire"
)

var (
	// errWithdrawn ends an execution that the owner has cancelled.
	errWithdrawn = errors.New("withdrawn by the owner")
	// errTimeLimit ends an execution that takes too long.
	errTimeLimit = errors.New("time limit of the node")
	// errLeft ends a worker but not its processes, for a worker that comes back.
	errLeft = errors.New("left to its keeper")
	// errHalted ends an execution before it has begun: the run is paused, or the
	// runner ends.
	errHalted = errors.New("halted")
)

// failure is an outcome of a node, as opposed to a fault of the worker.
type failure struct {
	message, kind string
	retryAt       int64 // see [wire.NodeError.RetryAt]
}

func (f *failure) Error() string { return f.message }

// isOutcome reports whether e ends an execution.
func isOutcome(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.NodeComplete, *wire.NodeError:
		return true
	}
	return false
}

func isTerminal(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
		return true
	}
	return false
}

// isBeginning reports whether the agent begins something once e has been taken.
func isBeginning(e *wire.Event) bool {
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		return true
	case *wire.ToolState:
		return p.To == wire.ToolExecuting
	}
	return false
}
