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
	mu         sync.Mutex
	open       map[string]bool
	changed    chan struct{} // holds one token when a call has ended; nil: nothing waits for that
	isReleased bool          // the agent has been interrupted: it won't begin the calls for which it asks from then on
	released   chan struct{} // closed then; nil: nothing waits for that
}

// newCalls returns the calls that a run's state has of an execution, and that its host has still.
func newCalls(s *wire.State, r *agent.Request) *calls {
	c := new(calls)
	for _, call := range run.OpenCalls(s, r.NodeID, r.ExecID) {
		if call.State == wire.ToolExecuting && (call.Idempotent || r.Host.Has(agentProgram) || r.Host.Has(agent.CallProgram(call.CallID))) {
			c.noteOpen(call.CallID)
		}
	}
	return c
}

func (c *calls) noteOpen(id string) {
	if c.open == nil {
		c.open = map[string]bool{}
	}
	c.open[id] = true
}

func (c *calls) observeEvent(e *wire.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := e.Payload.(type) {
	case *wire.ToolState:
		if p.To == wire.ToolExecuting {
			c.noteOpen(e.CallID)
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
	c.mu.Lock()
	changed := make(chan struct{}, 1)
	c.changed = changed
	c.mu.Unlock()
	for !c.isIdle() {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *calls) releaseWaiters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isReleased = true; c.released != nil {
		close(c.released)
	}
}

// awaitRelease waits until the waiters are released, or ctx ends.
func (c *calls) awaitRelease(ctx context.Context) {
	c.mu.Lock()
	if c.released == nil && !c.isReleased {
		c.released = make(chan struct{})
	}
	released := c.released
	c.mu.Unlock()
	if released == nil {
		return
	}
	select {
	case <-released:
	case <-ctx.Done():
	}
}
