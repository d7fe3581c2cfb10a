package eventlog

import (
	"context"
	"math/rand/v2"
	"time"
)

// minBackoff is the first wait between two attempts.
const minBackoff = 5 * time.Millisecond

// pauses are waits that double, from minBackoff to a limit. Each is shortened by
// up to a half at random, so that processes don't retry in step.
type pauses struct{ next, limit time.Duration }

func newPauses(limit time.Duration) pauses {
	return pauses{next: min(minBackoff, limit), limit: limit}
}

func (p *pauses) nextPause() time.Duration {
	d := p.next
	p.next = min(2*d, p.limit)
	return d/2 + rand.N(d/2+1)
}

// pauseNext waits, or fails if ctx ends first.
func (p *pauses) pauseNext(ctx context.Context) error {
	t := time.NewTimer(p.nextPause())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
