package eventlog

import (
	"errors"
	"sync"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
)

// writerState is what is known of a writer by what stores its events: what it has stored, and whether it is still the writer.
type writerState struct {
	run, node string
	epoch     uint64
	expect    string // the subject of its expectations

	mu      sync.Mutex
	seq     uint64 // of the last event that is known to be stored
	pos     uint64 // its position: what the next one follows; 0: none
	err     error  // why the writer takes no more events
	over    bool   // nothing more is going to be stored
	waiters []waiter

	fenced   chan struct{} // closed once err is an ErrFenced; nil: nothing waits for that
	onFenced func()        // called then
}

func newState(names subjects.Names, run, node string, epoch, seq, pos uint64) *writerState {
	return &writerState{
		run: run, node: node, epoch: epoch, seq: seq, pos: pos,
		expect: names.NodeEvents(run, node),
	}
}

// waiter waits until the event numbered seq is stored.
type waiter struct {
	seq  uint64
	done chan<- appendOutcome
}

type appendOutcome struct {
	pos uint64
	err error
}

// Fenced returns a channel that is closed when another writer writes the node.
// The owner of w must then give the node up.
func (w *writerState) Fenced() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fenced == nil {
		w.fenced = make(chan struct{})
		if errors.Is(w.err, ErrFenced) {
			close(w.fenced)
		}
	}
	return w.fenced
}

// OnFenced has a function called when the channel of Fenced is closed, at once if it is; nil: none. It must take no time.
func (w *writerState) OnFenced(call func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onFenced = call; call != nil && errors.Is(w.err, ErrFenced) {
		call()
	}
}

// Err returns why the writer takes no more events: nil, an [ErrFenced] that names
// what replaced it, or [ErrClosed].
func (w *writerState) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// IsFenced reports whether the channel of Fenced is closed.
func (w *writerState) IsFenced() bool { return errors.Is(w.Err(), ErrFenced) }

// Epoch returns the epoch that was claimed.
func (w *writerState) Epoch() uint64 { return w.epoch }

// Last returns the seq and the position of the last event that is stored.
func (w *writerState) Last() (seq, pos uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seq, w.pos
}

// awaitStored registers done to be told when the event numbered seq is stored.
func (w *writerState) awaitStored(seq uint64, done chan<- appendOutcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case seq <= w.seq:
		done <- appendOutcome{pos: w.pos}
	case w.over:
		done <- appendOutcome{err: w.err}
	default:
		w.waiters = append(w.waiters, waiter{seq, done})
	}
}

// forgetWaiter drops the waiter for an event that wasn't queued after all.
func (w *writerState) forgetWaiter(seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.waiters); n > 0 && w.waiters[n-1].seq == seq {
		w.waiters = w.waiters[:n-1]
	}
}

// noteStored notes that the event numbered seq is at pos.
func (w *writerState) noteStored(seq, pos uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq, w.pos = seq, pos
	n := 0
	for n < len(w.waiters) && w.waiters[n].seq <= seq {
		w.waiters[n].done <- appendOutcome{pos: pos}
		n++
	}
	if w.waiters = w.waiters[n:]; len(w.waiters) == 0 {
		w.waiters = nil // what it was part of holds those that don't wait any more
	}
}

// followPosition makes the writer expect pos, which holds nothing of its own, before its
// next event.
func (w *writerState) followPosition(pos uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pos = pos
}

// failWith makes the writer refuse events. If err is an ErrFenced, waiting callers
// get it too.
func (w *writerState) failWith(err error) {
	w.mu.Lock()
	if errors.Is(w.err, ErrFenced) {
		w.mu.Unlock()
		return
	}
	w.err = err
	isFenced := errors.Is(err, ErrFenced)
	if isFenced {
		if w.fenced != nil {
			close(w.fenced)
		}
		if w.onFenced != nil {
			w.onFenced()
		}
	}
	w.mu.Unlock()
	if isFenced {
		w.releaseWaiters(err)
	}
}

// releaseWaiters tells waiting callers that what they wait for isn't going to happen.
func (w *writerState) releaseWaiters(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.err == nil {
		w.err = err
	}
	for _, wait := range w.waiters {
		wait.done <- appendOutcome{err: err}
	}
	w.waiters = nil
}

// isPredecessor reports whether e is an event of this writer before f: one that a
// process stored and no longer had in its spool when it died. An epoch has one
// writer.
func (w *writerState) isPredecessor(e Entry, f *frame) bool {
	seq, _ := w.Last()
	return e.Event != nil && e.Event.Epoch == w.epoch && e.Event.Seq == seq+1 && e.Event.Seq < f.seq
}

// isVoid reports whether e is void while w is the writer: it isn't an event of
// the node, or it claims nothing and is of an epoch that isn't the writer's, or
// its place is taken. Readers skip it, too. An event that this process has no key
// for may be anything. A writer that hasn't claimed the node yet, see [Log.Begin], goes on behind nothing.
func (w *writerState) isVoid(e Entry) bool {
	seq, _ := w.Last()
	if seq == 0 {
		return false
	}
	if e.Event == nil {
		return !errors.Is(e.Err, seal.ErrNoKey)
	}
	if e.Event.Epoch > w.epoch {
		return !e.Event.Claims()
	}
	return e.Event.Epoch < w.epoch || e.Event.Seq <= seq
}

// writerPart is what a batch holds of one writer.
type writerPart struct {
	w      *writerState
	frames []*frame
}

func partsByWriter(frames []*frame) []*writerPart {
	var all []*writerPart
	of := map[*writerState]*writerPart{}
	for _, f := range frames {
		p := of[f.w]
		if p == nil {
			p = &writerPart{w: f.w}
			of[f.w], all = p, append(all, p)
		}
		p.frames = append(p.frames, f)
	}
	return all
}
