package runner

import (
	"sync"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// folded are the kinds that the fold needs; text and deltas don't change the
// state of a run.
var folded = []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}

// feed hands the messages of a stream to those who act for their run. A runner
// process has one for events and one for commands: a consumer per run would
// exceed the stream's limit of consumers and slow down its ingest.
type feed struct {
	mu   sync.Mutex
	subs map[string]map[*subscription]bool // by run; those of commands by the run's subject
}

func newFeed() *feed {
	return &feed{subs: map[string]map[*subscription]bool{}}
}

func (f *feed) deliver(e eventlog.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs[e.RunID] {
		s.push(e)
	}
}

// subscribe begins to collect the messages of a run. Who reads the stream
// after subscribing and then takes from the subscription what lies behind it
// misses nothing.
func (f *feed) subscribe(run string) *subscription {
	return f.subscribeInto(run, make(chan struct{}, 1))
}

// subscribeInto is [feed.subscribe] with a channel that several subscriptions
// share.
func (f *feed) subscribeInto(run string, more chan struct{}) *subscription {
	s := &subscription{feed: f, run: run, more: more}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subs[run] == nil {
		f.subs[run] = map[*subscription]bool{}
	}
	f.subs[run][s] = true
	return s
}

// subscription is a queue of a run's messages. It grows as long as nobody takes
// from it.
type subscription struct {
	feed *feed
	run  string
	more chan struct{} // holds a token when the queue isn't empty

	mu    sync.Mutex
	queue []eventlog.Entry
}

func (s *subscription) push(e eventlog.Entry) {
	s.mu.Lock()
	s.queue = append(s.queue, e)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// take returns what has come since the last call.
func (s *subscription) take() []eventlog.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queue
	s.queue = nil
	return queue
}

func (s *subscription) close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	delete(s.feed.subs[s.run], s)
	if len(s.feed.subs[s.run]) == 0 {
		delete(s.feed.subs, s.run)
	}
}
