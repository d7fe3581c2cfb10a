package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Session is the value of a session's key.
type Session struct {
	Runner  string `json:"runner"`
	Home    string `json:"home,omitempty"`
	Process string `json:"process"`
	At      int64  `json:"at"`              // when it was renewed, Unix ms
	Runs    int    `json:"runs,omitempty"`  // that it owned then
	Nodes   int    `json:"nodes,omitempty"` // that it worked on then
	// Over says that the process acts for nothing any more, and never will.
	Over bool `json:"over,omitempty"`
}

// ownSession is the state of a holder's own session, under its mu.
type ownSession struct {
	asked    clockMoment   // when the last renewal was asked for: it expires one TTL later; zero: there was none
	spell    uint64        // counts the times in which the session didn't expire
	revision uint64        // of the last renewal
	up       time.Time     // since when the bucket can be written; zero: it can't
	wrote    time.Time     // when that was shown last
	news     chan struct{} // closed when it is renewed
}

// isValid reports whether something new may be begun: it may not from a tenth of the TTL before the session may expire.
func (s *ownSession) isValid(ttl time.Duration) bool {
	return !s.asked.at.IsZero() && s.asked.age() < ttl-ttl/10
}

// clockMoment is a time on two clocks: ours, and that which counts time in which the machine
// was suspended.
type clockMoment struct {
	at time.Time
	up time.Duration
}

func currentMoment() clockMoment { return clockMoment{at: time.Now(), up: process.Uptime()} }

// age returns how long ago the moment is, by the clock that says more.
func (m clockMoment) age() time.Duration {
	return max(time.Since(m.at), process.Uptime()-m.up)
}

// renewSession renews the session, which shows whether the bucket can be written. What happened in a gap in showing it, such
// as that of a process that was stopped, isn't known.
func (h *Holder) renewSession(ctx context.Context) {
	asked := currentMoment()
	revision, err := h.storeSession(ctx, asked, false)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.session
	if err != nil {
		s.up = time.Time{}
		return
	}
	now := time.Now()
	if s.up.IsZero() || now.Sub(s.wrote) > h.ttl {
		s.up = now
	}
	// By the time of the answer: the renewal may have been stored just before it, when others had found the session gone.
	if !s.asked.at.IsZero() && s.asked.age() >= h.ttl {
		s.spell++
		h.logger.Warn("the session had expired: what it holds is claimed again", "leases", len(h.held))
	}
	s.wrote, s.revision, s.asked = now, revision, asked
	close(s.news)
	s.news = make(chan struct{})
	h.proveLeases(ctx)
	for _, l := range h.held {
		l.tellRenewal()
	}
}

// Since returns since when the session has been renewed without a gap, by this process's clock: for others it may have been gone before. Zero:
// it isn't renewed at the moment.
func (h *Holder) Since() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.session.up
}

func (h *Holder) storeSession(ctx context.Context, at clockMoment, over bool) (revision uint64, err error) {
	s := Session{Runner: h.id.Runner, Home: h.id.Home, Process: h.id.Process, At: at.at.UnixMilli(), Over: over}
	s.Runs, s.Nodes = h.countHeld()
	value, err := wire.Marshal(s)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.ttl/3)
	defer cancel()
	return h.kv.Put(ctx, subjects.Default.SessionKey(h.id.Runner, h.id.Process), value)
}

// countHeld counts the runs and the nodes for which this process holds leases.
func (h *Holder) countHeld() (runs, nodes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key := range h.held {
		if key.Node == wire.RunNode {
			runs++
		}
	}
	return runs, len(h.held) - runs
}

// withdrawSession says that the session is over, unless something is held under it that another process must not have yet.
func (h *Holder) withdrawSession(ctx context.Context) {
	h.mu.Lock()
	held := len(h.held) + len(h.left)
	h.mu.Unlock()
	if held > 0 {
		return
	}
	if _, err := h.storeSession(context.WithoutCancel(ctx), currentMoment(), true); err != nil {
		h.logger.Debug("session not withdrawn", "error", err) // it expires
	}
}

// provesAtOnce bounds the leases that are proven at once, however many there are.
const provesAtOnce = 64

// proveLeases begins to prove those leases that are in doubt, under mu, unless it is at it.
func (h *Holder) proveLeases(ctx context.Context) {
	var doubtful []*Lease
	for _, l := range h.held {
		if l.spell != h.session.spell && l.prove != nil {
			doubtful = append(doubtful, l)
		}
	}
	if len(doubtful) == 0 || h.proving {
		return
	}
	h.proving = true
	spell := h.session.spell
	h.tasks.Go(func() {
		places, proofs := make(chan struct{}, provesAtOnce), sync.WaitGroup{}
		for _, l := range doubtful {
			places <- struct{}{}
			proofs.Go(func() {
				h.proveLease(ctx, l, spell)
				<-places
			})
		}
		proofs.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.proving = false
	})
}

// proveLease proves a lease for a spell of the session. What can't be proven yet is tried again with the next renewal.
func (h *Holder) proveLease(ctx context.Context, l *Lease, spell uint64) {
	ctx, cancel := context.WithTimeout(ctx, h.ttl/3)
	defer cancel()
	h.mu.Lock()
	prove := l.prove
	if prove == nil { // it was settled while it waited for its turn
		h.mu.Unlock()
		return
	}
	l.proving = make(chan struct{})
	h.mu.Unlock()
	err := prove(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	close(l.proving)
	l.proving = nil
	switch {
	case err == nil:
		l.spell = spell
		l.tellRenewal()
	case errors.Is(err, ErrLost):
		l.lose(err)
	default:
		h.logger.Debug("lease not proven yet", "key", l.key, "error", err)
	}
}
