package view

import (
	"sync"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// foldedKinds are the kinds that the fold needs; text and deltas don't change the
// state of a run.
var foldedKinds = []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}

// Feed hands the messages of a stream to the subscriptions of their run. A runner
// process has one for events and one for commands: a consumer per run would
// exceed the stream's limit of consumers and slow down its ingest.
type Feed struct {
	mu   sync.Mutex
	subs map[string]map[*Subscription]bool // by run; those of commands by the run's subject
}

// NewFeed returns a feed without subscriptions.
func NewFeed() *Feed {
	return &Feed{subs: map[string]map[*Subscription]bool{}}
}

// Deliver hands a message to the subscriptions of its run.
func (f *Feed) Deliver(e eventlog.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs[e.RunID] {
		s.pushEntry(e)
	}
}

// Subscribe begins to collect the messages of a run. A caller that subscribes,
// reads the stream, and takes from the subscription what lies behind that
// misses nothing.
func (f *Feed) Subscribe(run string) *Subscription {
	return f.SubscribeInto(run, make(chan struct{}, 1))
}

// SubscribeInto is [Feed.Subscribe] with a channel that several subscriptions
// share.
func (f *Feed) SubscribeInto(run string, more chan struct{}) *Subscription {
	s := &Subscription{feed: f, run: run, more: more}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subs[run] == nil {
		f.subs[run] = map[*Subscription]bool{}
	}
	f.subs[run][s] = true
	return s
}

// Subscription is a queue of a run's messages. It grows as long as its caller
// takes nothing.
type Subscription struct {
	feed *Feed
	run  string
	more chan struct{} // holds a token when the queue isn't empty

	mu    sync.Mutex
	queue []eventlog.Entry
	call  func() // see OnMore
}

func (s *Subscription) pushEntry(e eventlog.Entry) {
	s.mu.Lock()
	s.queue = append(s.queue, e)
	call := s.call
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
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

// More holds a token when the queue isn't empty.
func (s *Subscription) More() <-chan struct{} { return s.more }

// Close ends the subscription.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	delete(s.feed.subs[s.run], s)
	if len(s.feed.subs[s.run]) == 0 {
		delete(s.feed.subs, s.run)
	}
}
