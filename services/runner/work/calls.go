package work

import (
	"context"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// calls are the calls of an agent that are at work, as far as it says so.
type calls struct {
	released chan struct{} // closed when the agent has been interrupted: it won't begin the calls for which it asks from then on

	mu      sync.Mutex
	open    map[string]bool
	changed chan struct{} // holds one token when a call has ended
}

// newCalls returns the calls that a run's state has of an execution, and that its host has still.
func newCalls(s *wire.State, r *agent.Request) *calls {
	c := &calls{released: make(chan struct{}), open: map[string]bool{}, changed: make(chan struct{}, 1)}
	for _, call := range run.OpenCalls(s, r.NodeID, r.ExecID) {
		if call.State == wire.ToolExecuting && (call.Idempotent || r.Host.Has(agentProgram) || r.Host.Has(agent.CallProgram(call.CallID))) {
			c.open[call.CallID] = true
		}
	}
	return c
}

func (c *calls) observeEvent(e *wire.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := e.Payload.(type) {
	case *wire.ToolState:
		if p.To == wire.ToolExecuting {
			c.open[e.CallID] = true
		}
	case *wire.AgentTool:
		delete(c.open, e.CallID)
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

func (c *calls) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) == 0
}

// awaitIdle waits until no call is at work, for a bounded time.
func (c *calls) awaitIdle(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !c.isIdle() {
		select {
		case <-c.changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *calls) releaseWaiters() { close(c.released) }
