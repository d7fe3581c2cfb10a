package intake

import (
	"context"
	"sync/atomic"
	"time"
)

// precedence has a queue take the next slot, if the last one went elsewhere when the queue had handed out a message: offers of owners are
// always at hand, a message has to be fetched first.
type precedence struct {
	isOwed atomic.Bool
	paid   chan struct{} // holds a token when the queue may have had its slot
}

func newPrecedence() *precedence { return &precedence{paid: make(chan struct{}, 1)} }

// claimSlot says that a queue had no slot for its message.
func (p *precedence) claimSlot() { p.isOwed.Store(true) }

// settleClaim says that a queue has a slot, or has no message any more.
func (p *precedence) settleClaim() {
	if p.isOwed.Swap(false) {
		select {
		case p.paid <- struct{}{}:
		default:
		}
	}
}

// giveWay waits until no queue has precedence, but not for long: another runner may have the message by now.
func (p *precedence) giveWay(ctx context.Context) {
	if !p.isOwed.Load() {
		return
	}
	limit := time.NewTimer(lookAgain)
	defer limit.Stop()
	for p.isOwed.Load() {
		select {
		case <-p.paid:
		case <-limit.C:
			p.isOwed.Store(false)
		case <-ctx.Done():
			return
		}
	}
}
