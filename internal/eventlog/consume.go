package eventlog

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/pull"
	"wake/internal/seal"
	"wake/pkg/wire"
)

// Consumer says how a service reads the stream.
type Consumer struct {
	Durable string        // the durable consumer, made by `wake init`: it says which events, and shows how far the service is
	From    wire.Position // the last position that the service has saved; its Seq 0: none
	Kinds   []wire.Kind   // none: all that the durable consumer selects
	Batch   int           // entries per call of handle at most, default 500
	Wait    time.Duration // how long to wait for more after the first, default 100 ms
	// Ahead lets entries be gathered while handle is at work, up to this many: then
	// it is called with Batch or more, at most Ahead or 8 MiB of them. 0: while it is
	// at work, nothing is read.
	Ahead int
}

// Consume hands the entries after c.From to handle, in order and without gap. It
// returns when ctx ends, with the error of handle, with [ErrIncarnation] if c.From
// isn't a position of this stream, or if the durable consumer is missing.
//
// What counts is the position that the service itself has saved. It reads by a
// consumer of its own, so whatever others do with the durable one changes
// nothing, and several processes of a service are each handed everything: what
// they save must be guarded, as by a revision. The durable consumer is set to
// where the service is from time to time, for people and for `wake doctor`.
func (l *Log) Consume(ctx context.Context, c Consumer, handle func(context.Context, []Entry) error) error {
	c.Batch, c.Wait = cmp.Or(c.Batch, 500), cmp.Or(c.Wait, 100*time.Millisecond)
	if c.From.Seq > 0 && c.From.Incarnation != l.incarnation {
		return fmt.Errorf("eventlog: consume %s: %w: it is %q, the position is of %q", c.Durable, ErrIncarnation, l.incarnation, c.From.Incarnation)
	}
	s := consumption{log: l, c: c, handle: handle, pos: c.From.Seq}
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
			wait = backoff(l.o.MaxBackoff)
		}
		l.logger.Info("reader begins again", slog.String("consumer", c.Durable), slog.Uint64("position", s.pos), slog.Any("error", err))
		if wait.pause(ctx) != nil {
			return nil //nolint:nilerr // likewise
		}
	}
}

// consumption is a Consume under way.
type consumption struct {
	log    *Log
	c      Consumer
	handle func(context.Context, []Entry) error
	pos    uint64 // of the last entry that was handled
	over   bool   // handle failed

	whole     bool   // every event is wanted
	tolerated uint64 // position before which events are missing: they aged out

	shown time.Time // when the durable consumer was last set to where the service is
	sure  bool      // it is there, the server said so

	// Of the session.
	in   *pull.Puller
	last uint64 // position of the last message
}

// session reads with a consumer of its own until something is wrong.
func (s *consumption) session(ctx context.Context) error {
	if err := s.log.checkPosition(ctx, s.pos); err != nil {
		return err
	}
	stream := s.log.names.EventsStream()
	durable, err := s.log.js.Consumer(ctx, stream, s.c.Durable)
	if err != nil {
		return err
	}
	config := durable.CachedInfo().Config
	s.whole = s.all(config)
	reader, err := s.log.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Name:              s.c.Durable + readerInfix + rand.Text(),
		Description:       config.Description + ", read by a process",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       s.pos + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubject:     config.FilterSubject,
		FilterSubjects:    config.FilterSubjects,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: followIdle,
	})
	if err != nil {
		return err
	}
	most := 2 * s.c.Batch
	if s.c.Ahead > 0 {
		most = min(max(most, s.c.Ahead), maxPull)
	}
	name := reader.CachedInfo().Name
	defer s.log.forget(ctx, stream, name)
	if s.in, err = pull.New(s.log.nc, stream, name, most); err != nil {
		return err
	}
	defer s.in.Stop()
	s.last = s.pos
	connected, release := pull.Connected(ctx, s.log.nc)
	defer release()
	if err = s.show(); err == nil && s.c.Ahead > 0 {
		return s.overlap(ctx, connected)
	}
	for err == nil {
		err = s.batch(ctx, connected)
	}
	return err
}

// readerInfix stands between the name of a service and what tells its readers
// apart.
const readerInfix = "-"

// IsReader reports whether a consumer of the stream of events is one by which a
// process of the service of a durable consumer reads.
func IsReader(consumer, durable string) bool {
	return strings.HasPrefix(consumer, durable+readerInfix)
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
	entries, behind, err := s.gather(connected)
	if s.idle(connected, err) {
		s.settle(connected)
		return nil
	}
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		if err := s.handle(ctx, entries); err != nil {
			s.over = true
			return err
		}
	}
	s.pos, s.sure = s.last, false
	if behind == 0 || time.Since(s.shown) >= showEvery {
		return s.show()
	}
	return nil
}

// gather returns the next entries and how many are behind them. If the durable
// consumer may not be where the service is, it doesn't wait for ever.
func (s *consumption) gather(ctx context.Context) (entries []Entry, behind uint64, err error) {
	first, cancel := ctx, context.CancelFunc(func() {})
	if !s.sure {
		first, cancel = context.WithTimeout(ctx, showEvery)
	}
	defer cancel()
	entries, m, err := s.next(first, nil)
	if err != nil {
		return nil, 0, err
	}
	wait, stop := context.WithTimeout(ctx, s.c.Wait)
	defer stop()
	for range s.c.Batch - 1 {
		more, next, err := s.next(wait, entries)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		entries, m = more, next
	}
	return entries, m.Pending, nil
}

// next waits for a message and appends its entry, if it is wanted.
func (s *consumption) next(ctx context.Context, entries []Entry) ([]Entry, pull.Message, error) {
	m, err := s.in.Next(ctx)
	if err != nil {
		return entries, m, err
	}
	entries, err = s.got(m, entries)
	return entries, m, err
}

// got appends the entry of a message, if it is wanted.
func (s *consumption) got(m pull.Message, entries []Entry) ([]Entry, error) {
	switch {
	case m.Pos <= s.last: // a replica that lags doesn't know better
		return entries, pull.ErrGap
	case s.whole && m.Pos != s.last+1 && m.Pos != s.tolerated:
		s.tolerated = m.Pos // if it is the next one to a new consumer too, those between are gone
		return entries, pull.ErrGap
	}
	s.last = m.Pos
	e := s.log.delivered(m)
	e.Behind = m.Pending
	if errors.Is(e.Err, seal.ErrNoKey) {
		s.over = true
		return entries, fmt.Errorf("event %d: %w", m.Pos, e.Err)
	}
	if len(s.c.Kinds) == 0 || slices.Contains(s.c.Kinds, e.Kind) {
		entries = append(entries, e)
	}
	return entries, nil
}

// showEvery is how often the durable consumer is set to where the service is
// while there is more to read.
const showEvery = time.Second

// show sets the durable consumer to where the service is, without waiting for the
// answer: reading doesn't depend on it.
func (s *consumption) show() error {
	s.shown = time.Now()
	subject := "$JS.API.CONSUMER.RESET." + s.log.names.EventsStream() + "." + s.c.Durable
	return s.log.nc.PublishRequest(subject, s.log.nc.NewInbox(), fmt.Appendf(nil, `{"seq":%d}`, s.pos+1))
}

// idle reports whether nothing came, with err, for a while.
func (s *consumption) idle(connected context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && connected.Err() == nil
}

// settle shows where the service is and makes sure of it, when there is nothing
// to read. If that fails, it is done again before long.
func (s *consumption) settle(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, showEvery)
	defer cancel()
	_, err := s.log.js.ResetConsumerToSequence(wait, s.log.names.EventsStream(), s.c.Durable, s.pos+1)
	s.sure = err == nil
}
