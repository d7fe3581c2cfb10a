package work

import (
	"context"
	"sync"
)

// Seat is the place of an execution among those that the runner works on at once. It is
// given to others while the agent can't go on: it waits for runs that it has started, which
// need places themselves, or for a person. It is taken again before the agent goes on, so
// that never more agents work than there are places; an agent that waits to go on comes
// before one that has not begun.
type Seat struct {
	slots   Slots
	resting Slots // of agents that wait for a person and have no place; full: the next ones keep theirs
	halt    *halt // for coming to a safe point the agent needs no place; nil: it isn't told to yet

	mu    sync.Mutex
	turn  chan struct{} // see turnToken; nil: no caller has wanted it
	lent  int           // calls that wait for runs
	rests bool          // the agent waits for a person
	held  bool          // changed by the caller with the turn
}

// NewSeat returns the seat of an execution that has a slot. Nil slots are any number.
func NewSeat(s, resting Slots) *Seat {
	return &Seat{slots: s, resting: resting, held: true}
}

// turnToken has a token while a caller takes the place or gives it away.
func (s *Seat) turnToken() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == nil {
		s.turn = make(chan struct{}, 1)
	}
	return s.turn
}

// halted is closed when the agent is told to come to a safe point.
func (s *Seat) halted() <-chan struct{} {
	if s.halt == nil {
		return nil
	}
	return s.halt.orderGiven()
}

// Free gives the place back when the execution is over.
func (s *Seat) Free() {
	s.turnToken() <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rests {
		s.resting.Free()
	}
	if s.held {
		s.slots.Free()
	}
}

// setResting says whether the agent waits for a person. When it doesn't any more, rest returns
// once it has its place again; it fails if ctx ends before, or the agent is halted.
func (s *Seat) setResting(ctx context.Context, rests bool) error {
	s.mu.Lock()
	switch {
	case rests && !s.rests:
		s.rests = s.resting.Take()
	case !rests && s.rests:
		s.rests = false
		s.resting.Free()
	}
	s.mu.Unlock()
	return s.settlePlace(ctx)
}

// lendPlace gives the place to others while a call of the agent waits for a run of its own. The
// returned function takes it again, for which it waits.
func (s *Seat) lendPlace(ctx context.Context) (back func()) {
	add := func(n int) {
		s.mu.Lock()
		s.lent += n
		s.mu.Unlock()
		_ = s.settlePlace(ctx) // else the call is being ended
	}
	add(1)
	return func() { add(-1) }
}

// settlePlace takes the place or gives it away, as it is wanted. A caller that is to give it away
// doesn't wait for another's turn: the other looks again.
func (s *Seat) settlePlace(ctx context.Context) error {
	for {
		wanted, held := s.placeState()
		if wanted == held {
			return nil
		}
		if !wanted {
			select {
			case s.turnToken() <- struct{}{}:
			default:
				return nil
			}
			s.leavePlace()
			<-s.turnToken()
			continue
		}
		select {
		case s.turnToken() <- struct{}{}:
		case <-s.halted():
			return errHalted
		case <-ctx.Done():
			return ctx.Err()
		}
		err := s.takePlace(ctx)
		<-s.turnToken()
		if err != nil {
			return err
		}
	}
}

// placeState returns whether the place is wanted, and whether it is held.
func (s *Seat) placeState() (wanted, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent == 0 && !s.rests, s.held
}

// leavePlace gives the place away, if it isn't wanted still. It has the turn.
func (s *Seat) leavePlace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held && (s.lent > 0 || s.rests) {
		s.held = false
		s.slots.Free()
	}
}

// takePlace waits for a place. It has the turn.
func (s *Seat) takePlace(ctx context.Context) error {
	if wanted, held := s.placeState(); held || !wanted {
		return nil
	}
	select {
	case s.slots <- struct{}{}:
	case <-s.halted():
		return errHalted
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	return nil
}
