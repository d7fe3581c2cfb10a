package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Offers are the offers that owners make to the runner they are in: these need no server. They are hints like those of a stream, and are lost
// with the process, as its owners are.
type Offers struct {
	mu      sync.Mutex
	waiting []Offer
	news    chan struct{} // holds a token when one may have come
}

// Offer is an offer that waits for a worker.
type Offer struct {
	wire.NodeOffer
	Trace string // that it is part of
	Since time.Time
}

// NewOffers returns none.
func NewOffers() *Offers { return &Offers{news: make(chan struct{}, 1)} }

// Put adds an offer behind the others.
func (o *Offers) Put(offer Offer) {
	o.mu.Lock()
	o.waiting = append(o.waiting, offer)
	o.mu.Unlock()
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// Await waits until there is an offer. It reports false if ctx has ended.
func (o *Offers) Await(ctx context.Context) bool {
	for o.isEmpty() {
		select {
		case <-o.news:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

func (o *Offers) isEmpty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting) == 0
}

// Next takes the oldest offer; there must be one. What is the same and waits behind it goes, too.
func (o *Offers) Next() Offer {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.waiting[0]
	o.waiting = slices.DeleteFunc(o.waiting, func(x Offer) bool { return x.NodeOffer == first.NodeOffer })
	return first
}
