package view

import (
	"slices"
	"sync"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Feed hands the messages of a stream to the subscriptions of their run. A runner
// process has one for events and one for commands: a consumer per run would
// exceed the stream's limit of consumers and slow down its ingest.
type Feed struct {
	mu   sync.Mutex
	runs map[string]*runFeed // by run; of commands by the run's subject
}

// runFeed is what a feed has for one run.
type runFeed struct {
	subs   []*Subscription
	packed *packed          // the state that was packed last, since the last message
	shared *wire.State      // the state that a view has shared; nobody changes it
	behind []eventlog.Entry // what has come since then
}

// maxBehind is how many messages may come behind a shared state; with more, no view begins with it any more.
const maxBehind = 64

// NewFeed returns a feed without subscriptions.
func NewFeed() *Feed {
	return &Feed{runs: map[string]*runFeed{}}
}

// Deliver hands a message to the subscriptions of its run.
func (f *Feed) Deliver(e eventlog.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.runs[e.RunID]
	if r == nil {
		return
	}
	r.packed = nil
	switch {
	case r.shared == nil:
	case len(r.behind) == maxBehind:
		r.shared, r.behind = nil, nil
	default:
		r.behind = append(r.behind, e)
	}
	for _, s := range r.subs {
		s.pushEntry(e)
	}
}

// Subscribe begins to collect the messages of a run. A caller that subscribes,
// reads the stream, and takes from the subscription what lies behind that
// misses nothing.
func (f *Feed) Subscribe(run string) *Subscription {
	return f.SubscribeInto(run, nil)
}

// SubscribeInto is [Feed.Subscribe] with a channel that several subscriptions
// share.
func (f *Feed) SubscribeInto(run string, more chan struct{}) *Subscription {
	s := &Subscription{feed: f, run: run, more: more}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.runs[run]
	if r == nil {
		r = new(runFeed)
		f.runs[run] = r
	}
	r.subs = append(r.subs, s)
	return s
}

// SubscribeBehind begins to collect the messages of a run behind the state that a view has shared; nil: none has.
func (f *Feed) SubscribeBehind(run string) (*Subscription, *wire.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.runs[run]
	if r == nil || r.shared == nil {
		return nil, nil
	}
	s := &Subscription{feed: f, run: run, queue: slices.Clone(r.behind)}
	r.subs = append(r.subs, s)
	return s, r.shared
}

// Subscription is a queue of a run's messages. It grows as long as its caller
// takes nothing.
type Subscription struct {
	feed *Feed
	run  string
	more chan struct{} // holds a token when the queue isn't empty; nil: nothing waits for that

	mu    sync.Mutex
	queue []eventlog.Entry
	call  func() // see OnMore
}

func (s *Subscription) pushEntry(e eventlog.Entry) {
	s.mu.Lock()
	s.queue = append(s.queue, e)
	call, more := s.call, s.more
	s.mu.Unlock()
	select {
	case more <- struct{}{}:
	default:
	}
	if call != nil {
		call()
	}
}

// OnMore has a function called when the queue isn't empty, at once if it isn't; nil: none.
func (s *Subscription) OnMore(call func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call = call
	if call != nil && len(s.queue) > 0 {
		call()
	}
}

// Take returns what has come since the last call.
func (s *Subscription) Take() []eventlog.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queue
	s.queue = nil
	return queue
}

// HasMore reports whether the queue isn't empty.
func (s *Subscription) HasMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
}

// More holds a token when the queue isn't empty.
func (s *Subscription) More() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		if s.more = make(chan struct{}, 1); len(s.queue) > 0 {
			s.more <- struct{}{}
		}
	}
	return s.more
}

// packedAt returns the state of the run at a position as a view has packed it; nil: none has.
func (s *Subscription) packedAt(at wire.Position) *packed {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if r := s.feed.runs[s.run]; r != nil && r.packed != nil && r.packed.position == at {
		return r.packed
	}
	return nil
}

// sharePacked has other views of the run find a packed state.
func (s *Subscription) sharePacked(p *packed) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if r := s.feed.runs[s.run]; r != nil {
		r.packed, r.shared, r.behind = p, nil, nil
	}
}

// shareState has other views of the run begin with a state, unless it lacks a message that has come.
func (s *Subscription) shareState(state *wire.State) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if r := s.feed.runs[s.run]; r != nil && !s.HasMore() {
		r.shared, r.behind = state, nil
	}
}

// dropShared has no view begin with a shared state.
func (s *Subscription) dropShared() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if r := s.feed.runs[s.run]; r != nil {
		r.shared, r.behind = nil, nil
	}
}

// isShared reports whether a view of the run has shared its state since the last message.
func (s *Subscription) isShared() bool {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	r := s.feed.runs[s.run]
	return r != nil && r.shared != nil && len(r.behind) == 0
}

// dropMore forgets the channel of More: most subscriptions rarely want it.
func (s *Subscription) dropMore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more = nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	r := s.feed.runs[s.run]
	if r == nil {
		return
	}
	if r.subs = slices.DeleteFunc(r.subs, func(o *Subscription) bool { return o == s }); len(r.subs) == 0 {
		delete(s.feed.runs, s.run)
	}
}
