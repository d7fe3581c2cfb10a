package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"wake/internal/seal"
	"wake/pkg/wire"
)

// Query selects events.
type Query struct {
	Run   string      // "": of all runs
	Node  string      // "": of all nodes of the run
	Kinds []wire.Kind // none: all
	From  uint64      // first position; 0: the first there is
	To    uint64      // last position, for Read; 0: the last there is at the time of the call
}

// filters returns the subjects of the query. No two of them overlap.
func (l *Log) filters(q Query) []string {
	if len(q.Kinds) == 0 {
		switch {
		case q.Run == "":
			return []string{l.names.AllEvents()}
		case q.Node == "":
			return []string{l.names.RunEvents(q.Run)}
		default:
			return []string{l.names.NodeEvents(q.Run, q.Node)}
		}
	}
	all := make([]string, len(q.Kinds))
	for i, k := range q.Kinds {
		switch {
		case q.Run == "":
			all[i] = l.names.KindEvents(string(k))
		case q.Node == "":
			all[i] = l.names.RunKindEvents(q.Run, string(k))
		default:
			all[i] = l.names.Event(q.Run, q.Node, string(k))
		}
	}
	return all
}

// Read yields the selected events that the stream held at the time of the call,
// in order, and ends. It is complete: where a replica lags, or right after a
// change of leader, it waits for what the leader has, and always for what this
// process has stored. It retries as long as ctx allows; an error ends it.
func (l *Log) Read(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		sources, err := l.sources(ctx, q)
		if err != nil {
			yield(Entry{}, fmt.Errorf("eventlog: read: %w", err))
			return
		}
		for {
			e, ok, err := earliest(ctx, sources)
			switch {
			case err != nil:
				yield(Entry{}, fmt.Errorf("eventlog: read: %w", err))
				return
			case ok && errors.Is(e.Err, seal.ErrNoKey):
				yield(Entry{}, fmt.Errorf("eventlog: read: event %d: %w", e.Pos, e.Err))
				return
			case !ok || !yield(e, nil):
				return
			}
		}
	}
}

// sources returns a source for each filter of the query. They all end at one
// position: if each ended where it stands when it is asked, the later ones would
// yield events behind those that the earlier ones leave out.
func (l *Log) sources(ctx context.Context, q Query) ([]*source, error) {
	to, err := l.end(ctx)
	if err != nil {
		return nil, err
	}
	if q.To > 0 {
		to = min(to, q.To)
	}
	var sources []*source
	for _, filter := range l.filters(q) {
		s := &source{log: l, filter: filter, next: max(q.From, 1)}
		if err := s.bound(ctx, to); err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// end returns the position of the last event of all. A leader that was deposed
// may give an old one, but not one before what this process has stored.
func (l *Log) end(ctx context.Context) (end uint64, err error) {
	err = l.retry(ctx, func() error {
		b, err := l.bounds(ctx)
		switch {
		case err != nil:
			return err
		case b.incarnation != l.incarnation:
			return ErrIncarnation
		case b.last < l.stored.Load():
			return fmt.Errorf("%w: the leader lags", errUnanswered)
		}
		end = b.last
		return nil
	})
	return end, err
}

// earliest takes the entry with the lowest position.
func earliest(ctx context.Context, sources []*source) (Entry, bool, error) {
	var best *source
	for _, s := range sources {
		if err := s.fill(ctx); err != nil {
			return Entry{}, false, err
		}
		if len(s.ready) > 0 && (best == nil || s.ready[0].Pos < best.ready[0].Pos) {
			best = s
		}
	}
	if best == nil {
		return Entry{}, false, nil
	}
	e := best.ready[0]
	best.ready = best.ready[1:]
	return e, true, nil
}

// source reads the events of one subject filter.
type source struct {
	log    *Log
	filter string
	next   uint64 // position to go on from
	end    uint64 // last position; 0: nothing to read
	ready  []Entry

	// byLeader is how many more events only the leader is asked for, since nobody
	// else answers.
	byLeader int
}

// bound finds where to stop: at the leader's last event of the filter, and at to.
func (s *source) bound(ctx context.Context, to uint64) error {
	s.end = to
	if to == 0 || s.filter == s.log.names.AllEvents() { // for that the server would look at every subject
		return nil
	}
	return s.log.retry(ctx, func() error {
		last, err := s.log.lastBy(ctx, s.filter)
		if err == nil || errors.Is(err, errNotFound) {
			s.end = min(to, last.Pos)
			return nil
		}
		return err
	})
}

// retry repeats f until it works, ctx ends, the server refuses or f finds that it
// never will.
func (l *Log) retry(ctx context.Context, f func() error) error {
	for wait := backoff(l.o.MaxBackoff); ; {
		err := f()
		if err == nil || final(err) || errors.Is(err, ErrIncarnation) {
			return err
		}
		if e := wait.pause(ctx); e != nil {
			return fmt.Errorf("%w (%w)", e, err)
		}
	}
}

// How much is asked for at once.
const (
	readEvents = 500
	readBytes  = 4 << 20
)

// fill makes sure that an entry is ready unless there are no more.
func (s *source) fill(ctx context.Context) error {
	for len(s.ready) == 0 && s.next <= s.end {
		if s.byLeader == 0 && s.log.direct {
			s.direct(ctx)
		}
		if len(s.ready) > 0 || s.next > s.end {
			return nil
		}
		if err := s.leader(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leader asks the leader for the next event: what a replica couldn't give is
// either further back on that replica, or gone.
func (s *source) leader(ctx context.Context) error {
	return s.log.retry(ctx, func() error {
		m, err := s.log.nextBy(ctx, s.filter, s.next)
		if errors.Is(err, errNotFound) {
			return s.vanished(ctx)
		}
		if err != nil {
			return err
		}
		s.byLeader = max(0, s.byLeader-1)
		s.take(s.log.storedEntry(m))
		return nil
	})
}

// vanished deals with a leader that doesn't have what a leader had: either it
// was deposed, or the rest has aged out.
func (s *source) vanished(ctx context.Context) error {
	b, err := s.log.bounds(ctx)
	switch {
	case err != nil:
		return err
	case b.incarnation != s.log.incarnation:
		return ErrIncarnation
	case b.first > s.end:
		s.next = s.end + 1
		return nil
	}
	return fmt.Errorf("%w: the leader lags", errUnanswered)
}

func (s *source) take(e Entry) {
	s.next = e.Pos + 1
	if e.Pos <= s.end {
		s.ready = append(s.ready, e)
	}
}

// direct asks any replica for the next events and takes what comes.
func (s *source) direct(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, s.log.o.ReadWait)
	defer cancel()
	if err := s.directBatch(wait); err != nil && len(s.ready) == 0 {
		s.byLeader = readEvents
	}
}

func (s *source) directBatch(ctx context.Context) error {
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q,"batch":%d,"max_bytes":%d}`, s.next, s.filter, readEvents, readBytes)
	inbox := s.log.nc.NewInbox()
	sub, err := s.log.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is gone then
	if err := s.log.nc.PublishRequest("$JS.API.DIRECT.GET."+s.log.names.EventsStream(), inbox, request); err != nil {
		return err
	}
	for last := "0"; ; {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		if m.Header.Get("Status") != "" {
			return nil // the end of what this replica has, or nobody answers
		}
		if m.Header.Get("Nats-Last-Sequence") != last {
			return errUnanswered // the one before got lost on the way
		}
		last = m.Header.Get("Nats-Sequence")
		e, err := s.log.directEntry(m)
		if err != nil {
			return err
		}
		s.take(e)
	}
}

func (l *Log) directEntry(m *nats.Msg) (Entry, error) {
	pos, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return Entry{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return Entry{}, err
	}
	return l.entry(pos, at, m.Header.Get("Nats-Subject"), m.Data), nil
}
