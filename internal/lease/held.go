package lease

import (
	"context"
	"time"
)

// Lease is the right to act for a run or a node. Its fields are under the mu of its holder.
type Lease struct {
	holder *Holder
	key    Key
	isLost bool
	lost   chan struct{} // closed when it is; nil: nothing waits for that
	onLost func()        // called then
	onEnd  func()        // see [Holder.OnEnd]

	spell   uint64                      // of the session, for which no other process can have claimed
	prove   func(context.Context) error // see [Lease.Claimed]
	proving chan struct{}               // closed when the proof that is under way has ended; nil: none is
	renewed chan struct{}               // holds one token when the lease was renewed; nil: nothing waits for that
	ended   bool
}

// Claimed says that the holder has claimed the run or the node in the log. prove claims it once more, in the same epoch,
// and fails with [ErrLost] if another process has claimed it since. It is called after the session had expired. The claim
// itself is a proof, if it was made while the lease was valid.
func (l *Lease) Claimed(prove func(context.Context) error) {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	l.prove = prove
}

// Settle ends the proofs of the lease, and waits for the one that is under way: none is stored behind what its holder stores
// from then on, such as that it doesn't act any more. In doubt, the lease stays so.
func (l *Lease) Settle() {
	l.holder.mu.Lock()
	l.prove = nil
	proving := l.proving
	l.holder.mu.Unlock()
	if proving != nil {
		<-proving
	}
}

// Lost is closed when another runner has claimed what the lease is for. It isn't closed by Release.
func (l *Lease) Lost() <-chan struct{} {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	if l.lost == nil {
		l.lost = make(chan struct{})
		if l.isLost {
			close(l.lost)
		}
	}
	return l.lost
}

// IsLost reports whether the channel of Lost is closed.
func (l *Lease) IsLost() bool {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	return l.isLost
}

// OnLost has a function called when the channel of Lost is closed, at once if it is; nil: none. It must take no time.
func (l *Lease) OnLost(call func()) {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	if l.onLost = call; call != nil && l.isLost {
		call()
	}
}

// Valid reports whether the holder may begin something new: it is false from a
// tenth of the TTL before the session may expire, and then until the lease is proven.
func (l *Lease) Valid() bool {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	return l.isProven() && l.holder.session.isValid(l.holder.ttl)
}

// isProven reports whether no other process can have claimed, as long as the session hasn't expired.
func (l *Lease) isProven() bool { return !l.ended && l.spell == l.holder.session.spell }

// Renewed holds a token when the lease was renewed since the last one was taken, or since the first call.
func (l *Lease) Renewed() <-chan struct{} {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	if l.renewed == nil {
		l.renewed = make(chan struct{}, 1)
	}
	return l.renewed
}

// Until returns when the lease expires unless it is renewed, on the clock of [process.Uptime]: it
// expires in time in which the machine is suspended, too. It is in the past for a
// lease that was lost or released, or is to be proven.
func (l *Lease) Until() time.Duration {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	if !l.isProven() {
		return 0
	}
	return l.holder.session.asked.up + l.holder.ttl
}

// Await waits until the holder may begin something new. It fails with [ErrLost]
// when another runner has claimed, or the lease was released.
func (l *Lease) Await(ctx context.Context) error {
	for !l.Valid() {
		select {
		case <-l.Lost():
			return ErrLost
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(l.holder.ttl / 20):
		}
		if l.isEnded() {
			return ErrLost
		}
	}
	return nil
}

func (l *Lease) isEnded() bool {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	return l.ended
}

// Release ends the lease. What tells others that the process doesn't act any more is in the log. Releasing a lost lease
// does nothing.
func (l *Lease) Release() {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	l.end()
}

// Abandon ends the lease of what may still act without its holder: no other runner has it before its time is over. This one
// may take it again; if it hasn't by then, give says in the log that the process doesn't act any more.
func (l *Lease) Abandon(give func(context.Context) error) {
	h := l.holder
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.end() {
		h.left[l.key] = leaving{due: h.session.asked.at.Add(h.ttl), give: give}
	}
}

// tellRenewal tells what waits for it that the lease was renewed, under mu.
func (l *Lease) tellRenewal() {
	if !l.isProven() || l.renewed == nil {
		return
	}
	select {
	case l.renewed <- struct{}{}:
	default:
	}
}

func (l *Lease) lose(cause error) {
	if l.end() {
		l.holder.logger.Warn("lease lost", "key", l.key, "cause", cause)
		if l.isLost = true; l.lost != nil {
			close(l.lost)
		}
		if l.onLost != nil {
			l.onLost()
		}
	}
}

// end forgets the lease, under mu. It reports whether it was held.
func (l *Lease) end() bool {
	if l.ended {
		return false
	}
	l.ended = true
	delete(l.holder.held, l.key)
	if l.onEnd != nil {
		l.onEnd()
	}
	return true
}
