package recorder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"wake/pkg/wire"
)

// progress is a position up to which everything is done.
type progress struct {
	mu    sync.Mutex
	pos   uint64
	full  time.Time     // when there was last much behind it
	moved chan struct{} // closed when pos changes; nil: nobody waits
}

// at returns the position, and whether there is likely to be much behind it.
func (p *progress) at() (pos uint64, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pos, time.Since(p.full) < indexEvery
}

// busy notes whether there is much behind the position.
func (p *progress) busy(much bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = time.Time{}
	if much {
		p.full = time.Now()
	}
}

func (p *progress) to(pos uint64) {
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

// reaches waits until pos is reached or ctx ends.
func (p *progress) reaches(ctx context.Context, pos uint64) {
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

// maxCatchUp is how long a question waits for the recorder at most. A recorder
// that is further behind, since it is being rebuilt for one, answers from what
// it has.
const maxCatchUp = 500 * time.Millisecond

// catchUp waits until what was stored before the question is recorded, or derived
// from: who has seen an event stored finds it in the answer. Else it says how much
// is missing.
func (r *Recorder) catchUp(ctx context.Context, p *progress) wire.Lag {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	_, end, err := r.log.Bounds(ctx)
	if err != nil {
		return wire.Lag{}
	}
	p.reaches(ctx, end)
	if pos, _ := p.at(); pos < end {
		return wire.Lag{Behind: end - pos}
	}
	return wire.Lag{}
}

// early is the error of an answer that lacks something. What wasn't found may be
// in that.
func early(err error, lag wire.Lag) error {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok || lag.Behind == 0 || e.Code != wire.CodeRunNotFound && e.Code != wire.CodeNodeNotFound {
		return err
	}
	said := *e
	said.Hint = fmt.Sprintf("the recorder has %d events to catch up with: ask again in a while", lag.Behind)
	return &said
}
