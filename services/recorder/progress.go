package recorder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"code.wake.dev/wake/pkg/wire"
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

// awaitPos waits until pos is reached or ctx ends, unless there is more before it than is recorded meanwhile.
func (p *progress) awaitPos(ctx context.Context, pos uint64) {
	for {
		p.mu.Lock()
		if p.pos >= pos || pos-p.pos > maxBehind {
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

// maxCatchUp is how long a question waits for the recorder at most. A recorder
// that is further behind, for one because it is being rebuilt, answers from what
// it has.
const maxCatchUp = 500 * time.Millisecond

// maxBehind is how many events a recorder may be behind for a question to wait: it takes account of about so many within that time.
const maxBehind = 20_000

// catchUp waits until what was stored before the question is recorded, or derived
// from, of the run that it is about, if it gives its id, or of all: the answer has each event of that that its caller has
// seen stored. Else it says how much is missing.
func (r *Recorder) catchUp(ctx context.Context, p *progress, run string) wire.Lag {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	_, end, err := r.log.Bounds(ctx)
	if err != nil {
		return wire.Lag{}
	}
	if pos, _ := p.currentPos(); pos < end && run != "" {
		if last, err := r.log.LastOf(ctx, run); err == nil && last > 0 { // else it may be another name of a run
			end = min(end, last)
		}
	}
	p.awaitPos(ctx, end)
	if pos, _ := p.currentPos(); pos < end {
		return wire.Lag{Behind: end - pos}
	}
	return wire.Lag{}
}

// catchUpAlerts waits a moment until the alerts that are stored are recorded, too.
func (r *Recorder) catchUpAlerts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	if first, end, err := r.log.BoundsOf(ctx, r.log.Names().AlertsStream()); err == nil && first <= end { // else all have aged out
		r.alerted.awaitPos(ctx, end)
	}
}

// withLagHint is the error of an answer that lacks something. What wasn't found may be
// in that.
func withLagHint(err error, lag wire.Lag) error {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok || lag.Behind == 0 || e.Code != wire.CodeRunNotFound && e.Code != wire.CodeNodeNotFound {
		return err
	}
	said := *e
	said.Hint = fmt.Sprintf("the recorder has %d events to catch up with: ask again in a while", lag.Behind)
	return &said
}
