package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/pull"
	"wake/pkg/wire"
)

// Consumer says how a service reads the stream.
type Consumer struct {
	Durable string        // the durable consumer, made by `wake init`
	From    wire.Position // the last position that the service has saved; its Seq 0: none
	Kinds   []wire.Kind   // none: all that the durable consumer delivers
	Batch   int           // entries per call of handle at most, default 500
	Wait    time.Duration // how long to wait for more after the first, default 100 ms
}

// Consume hands the entries after c.From to handle, in order and without gap,
// and acknowledges them when handle returns nil. It returns when ctx ends, with
// the error of handle, with [ErrIncarnation] if c.From isn't a position of this
// stream, or if the durable consumer is missing.
//
// What counts is the position that the service itself has saved. The durable
// consumer is reset to the one after at the start, and whenever it jumps:
// another client of it may have acknowledged what this one never saw. So handle
// may be given again, by another process, what it has saved here.
func (l *Log) Consume(ctx context.Context, c Consumer, handle func(context.Context, []Entry) error) error {
	c.Batch, c.Wait = cmp.Or(c.Batch, 500), cmp.Or(c.Wait, 100*time.Millisecond)
	if c.From.Seq > 0 && c.From.Incarnation != l.incarnation {
		return fmt.Errorf("eventlog: consume %s: %w: it is %q, the position is of %q", c.Durable, ErrIncarnation, l.incarnation, c.From.Incarnation)
	}
	s := consumption{log: l, c: c, handle: handle, pos: c.From.Seq}
	gaps := 0 // in a row
	for wait := backoff(l.o.MaxBackoff); ; {
		pull.AwaitConnection(ctx, l.nc)
		before := s.pos
		err := s.session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that is how it ends
		case l.nc.IsClosed():
			return fmt.Errorf("eventlog: consume %s: %w", c.Durable, nats.ErrConnectionClosed)
		case s.over, errors.Is(err, ErrIncarnation), errors.Is(err, jetstream.ErrConsumerNotFound):
			return fmt.Errorf("eventlog: consume %s: %w", c.Durable, err)
		case s.pos > before:
			wait, gaps = backoff(l.o.MaxBackoff), 0
		case errors.Is(err, pull.ErrGap):
			gaps++
		}
		l.logger.Info("consumer is reset", slog.String("consumer", c.Durable), slog.Uint64("position", s.pos), slog.Any("error", err))
		pause := wait.pause
		if gaps > maxGaps {
			gaps, wait = 0, backoff(l.o.MaxBackoff)
			pause = (&pauses{next: 2 * pull.Expiry}).pause // at least half of it
		}
		if pause(ctx) != nil {
			return nil //nolint:nilerr // likewise
		}
	}
}

// maxGaps is how often a consumer may jump in a row before no more is asked of it
// until all requests have expired. If somebody listens to all inboxes, the server
// takes the requests of former sessions for wanted and gives them what there is;
// each further session would leave one more.
const maxGaps = 3

// consumption is a Consume under way.
type consumption struct {
	log    *Log
	c      Consumer
	handle func(context.Context, []Entry) error
	pos    uint64 // of the last entry that was handled
	over   bool   // handle failed

	whole     bool   // the consumer delivers every event
	tolerated uint64 // position before which events are missing: they aged out

	// Of the session.
	in   *pull.Puller
	last uint64 // position of the last message
}

// session sets the durable consumer to where the service is and reads until
// something is wrong.
func (s *consumption) session(ctx context.Context) error {
	if err := s.log.checkPosition(ctx, s.pos); err != nil {
		return err
	}
	stream := s.log.names.EventsStream()
	// A reset of a consumer that isn't there gets no answer.
	consumer, err := s.log.js.Consumer(ctx, stream, s.c.Durable)
	if err != nil {
		return err
	}
	if _, err := s.log.js.ResetConsumerToSequence(ctx, stream, s.c.Durable, s.pos+1); err != nil {
		return err
	}
	s.whole = s.all(consumer.CachedInfo().Config)
	if s.in, err = pull.New(s.log.nc, stream, s.c.Durable, 2*s.c.Batch); err != nil {
		return err
	}
	defer s.in.Stop()
	s.last = s.pos
	connected, release := pull.Connected(ctx, s.log.nc)
	defer release()
	for err == nil {
		err = s.batch(ctx, connected)
	}
	return err
}

// all reports whether the consumer delivers every event.
func (s *consumption) all(c jetstream.ConsumerConfig) bool {
	filters := c.FilterSubjects
	if c.FilterSubject != "" {
		filters = []string{c.FilterSubject}
	}
	return len(filters) == 0 || slices.Equal(filters, []string{s.log.names.AllEvents()})
}

// batch waits for entries while connected and handles what comes within Wait.
func (s *consumption) batch(ctx, connected context.Context) error {
	entries, newest, err := s.gather(connected)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		if err := s.handle(ctx, entries); err != nil {
			s.over = true
			return err
		}
	}
	s.pos = s.last
	return s.log.nc.Publish(newest.Reply, []byte("+ACK"))
}

// gather returns the next entries and the last of their messages.
func (s *consumption) gather(ctx context.Context) (entries []Entry, newest pull.Message, err error) {
	if entries, newest, err = s.next(ctx, nil); err != nil {
		return nil, pull.Message{}, err
	}
	wait, cancel := context.WithTimeout(ctx, s.c.Wait)
	defer cancel()
	for range s.c.Batch - 1 {
		var m pull.Message
		entries, m, err = s.next(wait, entries)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, pull.Message{}, err
		}
		newest = m
	}
	return entries, newest, nil
}

// next waits for a message and appends its entry, if it is wanted.
func (s *consumption) next(ctx context.Context, entries []Entry) ([]Entry, pull.Message, error) {
	m, err := s.in.Next(ctx)
	if err != nil {
		return entries, pull.Message{}, err
	}
	switch {
	case m.Pos <= s.last && m.Again:
		return entries, m, nil // it took long to acknowledge it
	case m.Pos <= s.last:
		return entries, pull.Message{}, pull.ErrGap
	case s.whole && m.Pos != s.last+1 && m.Pos != s.tolerated:
		s.tolerated = m.Pos // if it comes again after the reset, those between are gone
		return entries, pull.Message{}, pull.ErrGap
	}
	s.last = m.Pos
	e := s.log.entry(m.Pos, m.Time, m.Subject, m.Data)
	if len(s.c.Kinds) == 0 || slices.Contains(s.c.Kinds, e.Kind) {
		entries = append(entries, e)
	}
	return entries, m, nil
}
