package recorder

import (
	"context"
	"sync"
	"time"
)

// progress is a position up to which everything is done.
type progress struct {
	mu    sync.Mutex
	pos   uint64
	full  time.Time     // when there was last much behind it
	moved chan struct{} // closed when pos changes; nil: no caller waits
}

// currentPos returns the position, and whether there is likely to be much behind it.
func (p *progress) currentPos() (pos uint64, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pos, time.Since(p.full) < indexEvery
}

// setBusy notes whether there is much behind the position.
func (p *progress) setBusy(much bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = time.Time{}
	if much {
		p.full = time.Now()
	}
}

func (p *progress) moveTo(pos uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pos <= p.pos { // two report what they have done
		return
	}
	p.pos = pos
	if p.moved != nil {
		close(p.moved)
		p.moved = nil
	}
}

// awaitPos waits until pos is reached or ctx ends.
func (p *progress) awaitPos(ctx context.Context, pos uint64) {
	for {
		p.mu.Lock()
		if p.pos >= pos {
			p.mu.Unlock()
			return
		}
		if p.moved == nil {
			p.moved = make(chan struct{})
		}
		moved := p.moved
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// indexEvery is how often lines get into the full text when no caller asks.
const indexEvery = time.Second
