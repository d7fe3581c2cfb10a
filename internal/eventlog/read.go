package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Query selects events.
type Query struct {
	Run   string      // "": of all runs
	Node  string      // "": of all nodes of the run
	Kinds []wire.Kind // none: all
	From  uint64      // first position; 0: the first there is
	To    uint64      // last position, for Read; 0: the last there is at the time of the call
}

// Selection selects messages of a stream as they are stored.
type Selection struct {
	Stream   string
	Subjects []string // no two of them overlap
	From, To uint64   // as in [Query]
	Within   string   // a subject that has all of them; "": none
}

// Select returns where the events of a query are.
func (l *Log) Select(q Query) Selection {
	s := Selection{Stream: l.names.EventsStream(), Subjects: Subjects(l.names, q), From: q.From, To: q.To}
	if len(s.Subjects) > 1 && q.Run != "" {
		s.Within = l.names.RunEvents(q.Run)
	}
	return s
}

// Subjects returns the subjects of a query. No two of them overlap.
func Subjects(names subjects.Names, q Query) []string {
	if len(q.Kinds) == 0 {
		switch {
		case q.Run == "":
			return []string{names.AllEvents()}
		case q.Node == "":
			return []string{names.RunEvents(q.Run)}
		default:
			return []string{names.NodeEvents(q.Run, q.Node)}
		}
	}
	all := make([]string, len(q.Kinds))
	for i, k := range q.Kinds {
		switch {
		case q.Run == "":
			all[i] = names.KindEvents(string(k))
		case q.Node == "":
			all[i] = names.RunKindEvents(q.Run, string(k))
		default:
			all[i] = names.Event(q.Run, q.Node, string(k))
		}
	}
	return all
}

// Read yields the selected events that the stream held at the time of the call,
// in order, and ends. It is complete: where a replica lags, or right after a
// change of leader, it waits for what the leader has, and always for what this
// process has stored. It retries as long as ctx allows; an error ends it.
func (l *Log) Read(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return Entries(l.Messages(ctx, l.Select(q)), l.names, l.o.Keys)
}

// Messages is [Log.Read] of messages as they are stored, of any stream.
func (l *Log) Messages(ctx context.Context, selected Selection) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		sources, err := l.openSources(ctx, selected)
		if err != nil {
			yield(Message{}, fmt.Errorf("eventlog: read: %w", err))
			return
		}
		for {
			m, ok, err := takeEarliest(ctx, sources)
			switch {
			case err != nil:
				yield(Message{}, fmt.Errorf("eventlog: read: %w", err))
				return
			case !ok || !yield(m, nil):
				return
			}
		}
	}
}

// openSources returns a source for each filter of the query. They all end at one
// position: if each ended where it stands when it is asked, the later ones would
// yield events behind those that the earlier ones leave out.
func (l *Log) openSources(ctx context.Context, q Selection) ([]*source, error) {
	b, err := l.lastBounds(ctx, q.Stream, q.Within)
	if err != nil {
		return nil, err
	}
	to := b.last
	if q.To > 0 {
		to = min(to, q.To)
	}
	var sources []*source
	for _, filter := range q.filters(b) {
		s := &source{log: l, stream: q.Stream, filter: filter, next: max(q.From, 1)}
		if err := s.findEnd(ctx, to); err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// fewSubjects bounds how many subjects are read each by itself, for each one of the selection: each costs two questions.
const fewSubjects = 2

// filters returns what to ask for. A subject that is spelled out is found where its messages are; for one with a
// wildcard the server looks through the messages of blocks. One that has no messages is left out.
func (q Selection) filters(b bounds) []string {
	if q.Within == "" || b.many {
		return q.Subjects
	}
	there := slices.Sorted(maps.Keys(b.subjects))
	var wild, spelled []string
	for _, filter := range q.Subjects {
		before := len(spelled)
		for _, subject := range there {
			if subjects.Matches(filter, subject) {
				spelled = append(spelled, subject)
			}
		}
		if len(spelled) > before {
			wild = append(wild, filter)
		}
	}
	if len(spelled) > fewSubjects*len(q.Subjects) {
		return wild
	}
	return spelled
}

// lastBounds returns the bounds of a stream with the position of the last event of all. A leader that was deposed
// may give an old one, but not one before what this process has stored.
func (l *Log) lastBounds(ctx context.Context, stream, within string) (b bounds, err error) {
	err = l.retryRead(ctx, func() (err error) {
		b, err = l.boundsWithin(ctx, stream, within)
		switch {
		case err != nil:
			return err
		case l.isOtherStream(stream, b):
			return ErrIncarnation
		case stream == l.names.EventsStream() && b.last < l.stored.Load():
			return fmt.Errorf("%w: the leader lags", errUnanswered)
		}
		return nil
	})
	return b, err
}

// takeEarliest takes the message with the lowest position.
func takeEarliest(ctx context.Context, sources []*source) (Message, bool, error) {
	var best *source
	for _, s := range sources {
		if err := s.fillReady(ctx); err != nil {
			return Message{}, false, err
		}
		if len(s.ready) > 0 && (best == nil || s.ready[0].Pos < best.ready[0].Pos) {
			best = s
		}
	}
	if best == nil {
		return Message{}, false, nil
	}
	e := best.ready[0]
	best.ready = best.ready[1:]
	if len(sources) > 1 {
		e.Behind = 0 // it knows of its own subject only
	}
	return e, true, nil
}

// source reads the messages of one subject filter.
type source struct {
	log    *Log
	stream string
	filter string
	next   uint64 // position to go on from
	end    uint64 // last position; 0: nothing to read
	ready  []Message

	// byLeader is how many more events only the leader is asked for, since no
	// replica answers.
	byLeader int
}

// findEnd finds where to stop: at the leader's last event of the filter, and at to.
func (s *source) findEnd(ctx context.Context, to uint64) error {
	s.end = to
	if to == 0 || s.filter == s.log.names.AllEvents() { // for that the server would look at every subject
		return nil
	}
	return s.log.retryRead(ctx, func() error {
		last, err := s.log.getFrom(ctx, s.stream, getRequest{LastBy: s.filter, NoHdr: true})
		if err == nil || errors.Is(err, errNotFound) {
			s.end = min(to, last.Pos)
			return nil
		}
		return err
	})
}

// How much is asked for at once.
const (
	readEvents = 500
	readBytes  = 4 << 20
)

// fillReady makes sure that an entry is ready unless there are no more.
func (s *source) fillReady(ctx context.Context) error {
	for len(s.ready) == 0 && s.next <= s.end {
		if s.byLeader == 0 && s.log.direct {
			s.readDirect(ctx)
		}
		if len(s.ready) > 0 || s.next > s.end {
			return nil
		}
		if err := s.readFromLeader(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readFromLeader asks the leader for the next event: what a replica couldn't give is
// either further back on that replica, or gone.
func (s *source) readFromLeader(ctx context.Context) error {
	return s.log.retryRead(ctx, func() error {
		m, err := s.log.getFrom(ctx, s.stream, getRequest{Seq: s.next, NextBy: s.filter, NoHdr: true})
		if errors.Is(err, errNotFound) {
			return s.handleVanished(ctx)
		}
		if err != nil {
			return err
		}
		s.byLeader = max(0, s.byLeader-1)
		s.addMessage(m)
		return nil
	})
}

// handleVanished deals with a leader that doesn't have what a leader had: either it
// was deposed, or the rest has aged out.
func (s *source) handleVanished(ctx context.Context) error {
	b, err := s.log.boundsOf(ctx, s.stream)
	switch {
	case err != nil:
		return err
	case s.log.isOtherStream(s.stream, b):
		return ErrIncarnation
	case b.first > s.end:
		s.next = s.end + 1
		return nil
	}
	return fmt.Errorf("%w: the leader lags", errUnanswered)
}

func (s *source) addMessage(e Message) {
	s.next = e.Pos + 1
	if e.Pos <= s.end {
		s.ready = append(s.ready, e)
	}
}

// readDirect asks any replica for the next events and takes what comes.
func (s *source) readDirect(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, s.log.o.ReadWait)
	defer cancel()
	if err := s.directBatch(wait); err != nil && len(s.ready) == 0 {
		s.byLeader = readEvents
	}
}

func (s *source) directBatch(ctx context.Context) error {
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q,"batch":%d,"max_bytes":%d}`, s.next, s.filter, readEvents, readBytes)
	inbox, in := s.log.nc.NewInbox(), make(chan *nats.Msg, readEvents+1) // a batch and the message that ends it; the client's own channel has 512 kB
	sub, err := s.log.nc.ChanSubscribe(inbox, in)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is gone then
	if err := s.log.nc.PublishRequest("$JS.API.DIRECT.GET."+s.stream, inbox, request); err != nil {
		return err
	}
	for last := "0"; ; {
		var m *nats.Msg
		select {
		case m = <-in:
		case <-ctx.Done():
			return ctx.Err()
		}
		if m.Header.Get("Status") != "" {
			return nil // the end of what this replica has, or no replica answers
		}
		if m.Header.Get("Nats-Last-Sequence") != last {
			return errUnanswered // the one before got lost on the way
		}
		last = m.Header.Get("Nats-Sequence")
		e, err := directMessage(m)
		if err != nil {
			return err
		}
		s.addMessage(e)
	}
}

func directMessage(m *nats.Msg) (Message, error) {
	pos, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return Message{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return Message{}, err
	}
	behind, _ := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64) // absent where one message was asked for
	return Message{Subject: m.Header.Get("Nats-Subject"), Pos: pos, Data: m.Data, Time: at, Behind: behind}, nil
}

// lastBy returns the last message with a subject that matches filter, or
// [errNotFound]. It is the leader's answer; a leader that was just deposed may
// give an old one.
func (l *Log) lastBy(ctx context.Context, filter string) (Message, error) {
	return l.getMessage(ctx, getRequest{LastBy: filter, NoHdr: true})
}

// nextBy returns the first message at or behind position from with a subject that
// matches filter, or [errNotFound].
func (l *Log) nextBy(ctx context.Context, filter string, from uint64) (Message, error) {
	return l.getMessage(ctx, getRequest{Seq: max(from, 1), NextBy: filter, NoHdr: true})
}

func (l *Log) getMessage(ctx context.Context, r getRequest) (Message, error) {
	return l.getFrom(ctx, l.names.EventsStream(), r)
}

// lastOnly returns the last message with a subject that matches filter, or [errNotFound], with its headers, as the only replica of a
// stream has it: to ask that directly costs a third of asking it as a leader. Where there are several, it is unanswered.
func (l *Log) lastOnly(ctx context.Context, stream, filter string) (Message, nats.Header, error) {
	if l.replicas != 1 || !l.direct || !l.nc.IsConnected() {
		return Message{}, nil, errUnanswered
	}
	wait, cancel := context.WithTimeout(ctx, l.o.ReadWait)
	defer cancel()
	answer, err := l.nc.RequestWithContext(wait, "$JS.API.DIRECT.GET."+stream+"."+filter, nil)
	switch {
	case ctx.Err() != nil:
		return Message{}, nil, ctx.Err()
	case err != nil:
		return Message{}, nil, fmt.Errorf("%w: %w", errUnanswered, err)
	case answer.Header.Get("Status") == "404":
		return Message{}, nil, errNotFound
	case answer.Header.Get("Status") != "":
		return Message{}, nil, errUnanswered
	}
	m, err := directMessage(answer)
	if err != nil {
		return Message{}, nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return m, answer.Header, nil
}

// IsUnknown reports whether the log surely has nothing of a run at the moment.
func (l *Log) IsUnknown(ctx context.Context, run string) bool {
	_, _, err := l.lastOnly(ctx, l.names.EventsStream(), l.names.RunEvents(run))
	return errors.Is(err, errNotFound)
}

// A position is believed to be beyond the end of the stream when one leader has said so for
// this long and this often, without a break: one that was deposed answers for a while, and
// one that was elected may yet learn what it lacks.
const (
	steadyTime    = 30 * time.Second
	steadyAnswers = 10
)

// checkPosition waits until the stream has position pos. It fails with [ErrIncarnation] if
// that is none of this stream, and with [ErrBeyond].
func (l *Log) checkPosition(ctx context.Context, stream string, pos uint64) error {
	var leader string
	var since time.Time
	answers := 0
	for wait := newPauses(l.o.MaxBackoff); ; {
		b, err := l.boundsOf(ctx, stream)
		switch {
		case err != nil && (ctx.Err() != nil || isFinal(err)):
			return err
		case err != nil:
			answers = 0
		case l.isOtherStream(stream, b):
			return fmt.Errorf("%w: it is %q, the position is of %q", ErrIncarnation, b.incarnation, l.incarnation)
		case pos <= b.last:
			return nil
		case answers == 0 || b.leader != leader:
			leader, since, answers = b.leader, time.Now(), 1
		default:
			answers++
			if answers >= steadyAnswers && time.Since(since) >= steadyTime {
				return fmt.Errorf("%w: it is %d, the last one is %d", ErrBeyond, pos, b.last)
			}
		}
		if err := wait.pauseNext(ctx); err != nil {
			return err
		}
	}
}

// isOtherStream reports whether the stream of events isn't the one that was opened. The
// incarnation of other streams isn't looked at.
func (l *Log) isOtherStream(stream string, b bounds) bool {
	return stream == l.names.EventsStream() && b.incarnation != l.incarnation
}

// messageOf is what a consumer delivered.
func messageOf(m pull.Message) Message {
	return Message{Subject: m.Subject, Pos: m.Pos, Data: m.Data, Time: m.Time, Trace: tracing.Parent(m.Header)}
}

func (l *Log) storedEntry(m Message) Entry { return EntryOf(m, l.names, l.o.Keys) }
