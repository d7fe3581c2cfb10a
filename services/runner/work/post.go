package work

import (
	"context"
	"sync"

	"code.wake.dev/wake/pkg/wire"
)

// post hands messages of the run to the agent of an execution, one at a time. Between them it holds no goroutine. The zero value
// has no agent.
type post struct {
	mu    sync.Mutex
	give  func(wire.InboxEntry) // begins to give the agent a message; nil: none takes one at the moment
	ready func()                // called when one does
}

// handOver hands a message to the agent. It reports false if there is none, or it hasn't taken the last one yet.
func (p *post) handOver(m wire.InboxEntry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	give := p.give
	if p.give = nil; give == nil {
		return false
	}
	give(m)
	return true
}

// onReady says what is called when an agent takes a message; nil: nothing. It must take no time.
func (p *post) onReady(ready func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = ready
}

// open has an agent take the next message, unless ctx has ended. give must take no time.
func (p *post) open(ctx context.Context, give func(wire.InboxEntry)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	p.give = give
	if p.ready != nil {
		p.ready()
	}
}

// shut has the agent take none. The ctx of open must have ended.
func (p *post) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give = nil
}
