// Package turn lets what waits for something hold no goroutine meanwhile.
package turn

import "sync"

// Loop takes a turn whenever it has been called since the last one began, one at a time, on a goroutine that ends when it
// is called no more: what waits for long holds no stack.
type Loop struct {
	take func() (over bool)

	mu    sync.Mutex
	state loopState
	idle  chan struct{} // closed when no turn is being taken any more; nil: nothing waits for that
}

type loopState uint8

const (
	waiting loopState = iota
	taking            // a turn
	called            // while a turn is being taken
	over
)

// NewLoop returns a loop that has not been called. A turn takes what there is to take and doesn't wait for more. The one
// that reports true is the last.
func NewLoop(take func() (over bool)) *Loop { return &Loop{take: take} }

// NewBegun is [NewLoop] for one whose first turn its maker takes, by [Loop.Run]: what calls the loop before that comes behind it.
func NewBegun(take func() (over bool)) *Loop { return &Loop{take: take, state: taking} }

// Call has a turn begin now, or behind the one that is being taken. It may be called from anywhere and takes no time.
func (l *Loop) Call() {
	if l.begin() {
		go l.takeTurns()
	}
}

// begin notes that the loop was called. It reports whether turns are to be taken.
func (l *Loop) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case waiting:
		l.state = taking
		return true
	case taking:
		l.state = called
	case called, over:
	}
	return false
}

// Take is Call on the goroutine of the caller, which takes the turns: for timers, which have begun one for it.
func (l *Loop) Take() {
	if l.begin() {
		l.takeTurns()
	}
}

// Run takes the first turn of a loop of [NewBegun], on the goroutine of the caller, and others for as long as it is called
// meanwhile. It reports whether the loop is over.
func (l *Loop) Run() (over bool) { return l.takeTurns() }

// Stop waits until no turn is being taken; none is from then on. A turn must not call it.
func (l *Loop) Stop() {
	l.mu.Lock()
	busy := l.state == taking || l.state == called
	l.state = over
	if busy && l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// takeTurns takes turns until the loop waits, or is over.
func (l *Loop) takeTurns() (isOver bool) {
	for {
		ended := l.take()
		if next := l.endTurn(ended); next != taking {
			return next == over
		}
	}
}

// endTurn returns the state behind a turn.
func (l *Loop) endTurn(ended bool) loopState {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == over || ended:
		l.state = over
		if l.idle != nil {
			close(l.idle)
			l.idle = nil
		}
	case l.state == called:
		l.state = taking
	default:
		l.state = waiting
	}
	return l.state
}

// Loops are loops that are called together. The zero value has none.
type Loops struct {
	mu  sync.Mutex
	all map[*Loop]struct{}
}

// Add has a loop called, until Remove.
func (s *Loops) Add(l *Loop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Loop]struct{}{}
	}
	s.all[l] = struct{}{}
}

// Remove is the reverse of Add.
func (s *Loops) Remove(l *Loop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, l)
}

// Call calls each of them.
func (s *Loops) Call() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.all {
		l.Call()
	}
}

// Signal is given once, to channels and to loops.
type Signal struct {
	Loops

	given chan struct{}
}

// NewSignal returns a signal that hasn't been given.
func NewSignal() *Signal { return &Signal{given: make(chan struct{})} }

// Given is closed when the signal is given.
func (s *Signal) Given() <-chan struct{} { return s.given }

// IsGiven reports whether it was.
func (s *Signal) IsGiven() bool {
	select {
	case <-s.given:
		return true
	default:
		return false
	}
}

// Give gives it. It may be called once.
func (s *Signal) Give() {
	close(s.given)
	s.Call()
}
