package eventlog

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// Consumer says how a service reads the stream.
type Consumer struct {
	Durable string        // the durable consumer, made by `wake init`: it shows how far the service is
	From    wire.Position // the last position that the service has saved; its Seq 0: none
	Kinds   []wire.Kind   // of the events that are handed over; none: all
	Batch   int           // entries per call of handle at most, default 500
	Wait    time.Duration // how long to wait for more after the first, default 100 ms; with Ahead an eighth of that behind each, once there are many
	// Ahead lets entries be gathered while handle is at work, up to this many: then
	// it is called with Batch or more, at most Ahead or 8 MiB of them. 0: while it is
	// at work, nothing is read.
	Ahead int
}

// Consume hands the entries after c.From to handle, in order and without gap. It
// returns when ctx ends, with the error of handle, with [ErrIncarnation] if c.From
// isn't a position of this stream, or with [ErrBeyond]. A durable consumer that is missing,
// or was changed, is made again as `wake init` makes it.
//
// What counts is the position that the service itself has saved. It reads by a
// consumer of its own, so what other processes do with the durable one changes
// nothing, and several processes of a service are each handed everything: what
// they save must be guarded, as by a revision. The durable consumer is set to
// where the service is from time to time, for people and for `wake doctor`.
func (l *Log) Consume(ctx context.Context, c Consumer, handle func(context.Context, []Entry) error) error {
	c.Batch, c.Wait = cmp.Or(c.Batch, 500), cmp.Or(c.Wait, 100*time.Millisecond)
	if c.From.Seq > 0 && c.From.Incarnation != l.incarnation {
		return fmt.Errorf("eventlog: consume %s: %w: it is %q, the position is of %q", c.Durable, ErrIncarnation, l.incarnation, c.From.Incarnation)
	}
	want, known := topology.Durable(l.names, c.Durable)
	if !known {
		return fmt.Errorf("eventlog: consume %s: %w", c.Durable, jetstream.ErrConsumerNotFound)
	}
	s := consumption{log: l, c: c, handle: handle, pos: c.From.Seq, durable: want}
	for wait := newPauses(l.o.MaxBackoff); ; {
		pull.AwaitConnection(ctx, l.nc)
		before := s.pos
		err := s.runSession(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that is how it ends
		case l.nc.IsClosed():
			return fmt.Errorf("eventlog: consume %s: %w", c.Durable, nats.ErrConnectionClosed)
		case s.over, errors.Is(err, ErrIncarnation), errors.Is(err, ErrBeyond):
			return fmt.Errorf("eventlog: consume %s: %w", c.Durable, err)
		case s.pos > before:
			wait = newPauses(l.o.MaxBackoff)
		}
		l.logger.Info("reader begins again", slog.String("consumer", c.Durable), slog.Uint64("position", s.pos), slog.Any("error", err))
		if wait.pauseNext(ctx) != nil {
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

	durable jetstream.ConsumerConfig // as `wake init` makes it

	tolerated uint64 // position before which events are missing: they aged out

	shown    time.Time // when the durable consumer was last set to where the service is
	shownPos uint64    // where that was
	sure     bool      // it is there, the server said so

	// Of the session.
	in     *pull.Puller
	last   uint64 // position of the last message
	behind uint64 // messages behind it
}

// runSession reads with a consumer of its own until something is wrong.
func (s *consumption) runSession(ctx context.Context) error {
	if err := s.log.checkPosition(ctx, s.log.names.EventsStream(), s.pos); err != nil {
		return err
	}
	stream := s.log.names.EventsStream()
	s.repairDurable(ctx)
	reader, err := s.log.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Name:              s.c.Durable + readerInfix + rand.Text(),
		Description:       s.durable.Description + ", read by a process",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       s.pos + 1,
		AckPolicy:         jetstream.AckNonePolicy,
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
	defer s.log.deleteConsumer(ctx, stream, name)
	if s.in, err = pull.New(s.log.nc, stream, name, most); err != nil {
		return err
	}
	defer s.in.Stop()
	s.last = s.pos
	connected, release := pull.Connected(ctx, s.log.nc)
	defer release()
	if err = s.showPosition(); err == nil && s.c.Ahead > 0 {
		return s.readWhileHandling(ctx, connected)
	}
	for err == nil {
		err = s.handleBatch(ctx, connected)
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

// handleBatch waits for entries while connected and handles what comes within Wait.
func (s *consumption) handleBatch(ctx, connected context.Context) error {
	entries, err := s.gatherEntries(connected)
	if s.isIdle(connected, err) {
		s.settlePosition(connected)
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
	return s.noteHandled(s.last, s.behind)
}

// noteHandled notes that all up to a position is handled, and shows that now and then, and
// when it has caught up with much.
func (s *consumption) noteHandled(pos, behind uint64) error {
	s.pos, s.sure = pos, false
	if time.Since(s.shown) >= s.log.o.ShowEvery || behind == 0 && pos >= s.shownPos+showAfter {
		return s.showPosition()
	}
	return nil
}

// gatherEntries returns the next entries. If the durable consumer may not be where the
// service is, it doesn't wait for ever.
func (s *consumption) gatherEntries(ctx context.Context) (entries []Entry, err error) {
	first, cancel := ctx, context.CancelFunc(func() {})
	if !s.sure {
		first, cancel = context.WithTimeout(ctx, time.Until(s.shown.Add(s.log.o.ShowEvery)))
	}
	defer cancel()
	if entries, err = s.nextEntry(first, nil); err != nil {
		return nil, err
	}
	wait, stop := context.WithTimeout(ctx, s.c.Wait)
	defer stop()
	for len(entries) < s.c.Batch {
		more, err := s.nextEntry(wait, entries)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		entries = more
	}
	return entries, nil
}

// nextEntry waits for a message and appends its entry, if it is wanted.
func (s *consumption) nextEntry(ctx context.Context, entries []Entry) ([]Entry, error) {
	m, err := s.in.Next(ctx)
	if err != nil {
		return entries, err
	}
	return s.addMessage(m, entries)
}

// addMessage appends the entry of a message, if it is wanted.
func (s *consumption) addMessage(m pull.Message, entries []Entry) ([]Entry, error) {
	switch {
	case m.Pos <= s.last: // a replica that lags doesn't know better
		return entries, pull.ErrGap
	case m.Pos != s.last+1 && m.Pos != s.tolerated:
		s.tolerated = m.Pos // if it is the next one to a new consumer too, those between are gone
		return entries, pull.ErrGap
	}
	s.last, s.behind = m.Pos, m.Pending
	if !isOfKinds(m.Subject, s.c.Kinds) {
		return entries, nil
	}
	e := s.log.storedEntry(messageOf(m))
	e.Behind = m.Pending
	if errors.Is(e.Err, seal.ErrNoKey) {
		s.over = true
		return entries, fmt.Errorf("event %d: %w", m.Pos, e.Err)
	}
	return append(entries, e), nil
}

// showAfter is after how many events the durable consumer is set before its time, if nothing
// more is to be read: a caller that waits for a service far behind looks there.
const showAfter = 5000

// showPosition sets the durable consumer to where the service is, without waiting for the
// answer: reading doesn't depend on it.
func (s *consumption) showPosition() error {
	s.shown, s.shownPos = time.Now(), s.pos
	subject := "$JS.API.CONSUMER.RESET." + s.log.names.EventsStream() + "." + s.c.Durable
	return s.log.nc.PublishRequest(subject, s.log.nc.NewInbox(), fmt.Appendf(nil, `{"seq":%d}`, s.pos+1))
}

// isIdle reports whether nothing came, with err, for a while.
func (s *consumption) isIdle(connected context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && connected.Err() == nil
}

// settlePosition shows where the service is and makes sure of it, when there is nothing
// to read. If that fails, it is done again before long.
func (s *consumption) settlePosition(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, repairWait)
	defer cancel()
	s.shown, s.shownPos = time.Now(), s.pos
	shown, err := s.log.js.ResetConsumerToSequence(wait, s.log.names.EventsStream(), s.c.Durable, s.pos+1)
	if err != nil || len(topology.Altered(s.durable, shown.Config)) > 0 {
		s.repairDurable(ctx) // of one that is missing, the server says nothing
		return
	}
	s.sure = true
}

// repairWait bounds an attempt to make the durable consumer as it should be.
const repairWait = 5 * time.Second

// repairDurable makes the durable consumer as it should be. Reading doesn't depend on it, so if that
// fails it is done again later.
func (s *consumption) repairDurable(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, repairWait)
	defer cancel()
	done, err := topology.Repair(wait, s.log.js, s.log.names, s.c.Durable)
	switch {
	case err != nil && ctx.Err() == nil:
		s.log.logger.Warn("durable consumer may not be as it should be", slog.String("consumer", s.c.Durable), slog.Any("error", err))
	case err == nil && done != topology.Unchanged:
		s.log.logger.Warn("a client has deleted or changed the durable consumer: it is as it should be again",
			slog.String("consumer", s.c.Durable), slog.String("action", string(done)))
	}
}

// Bounds of what is read ahead.
const (
	maxPull    = 4096    // messages that are asked for at once
	aheadBytes = 8 << 20 // of the entries that wait for handle
)

// gatheredBatch is what handle is called with.
type gatheredBatch struct {
	entries []Entry
	last    uint64 // position of the last message
	behind  uint64 // messages behind it
	size    int    // bytes of all messages
}

// readWhileHandling reads while connected, as batch does, but gathers the next entries
// while those before are handled.
func (s *consumption) readWhileHandling(ctx, connected context.Context) error {
	reading, stop := context.WithCancelCause(connected)
	defer stop(nil)
	work, handled := make(chan *gatheredBatch), make(chan error, 1)
	go func() { handled <- s.handleAll(ctx, reading, stop, work) }()
	err := s.readAhead(reading, work)
	close(work)
	if failed := <-handled; failed != nil {
		return failed
	}
	return err
}

// handleAll handles what is gathered, and shows where the service is, until there
// is no more. If something fails it says stop.
func (s *consumption) handleAll(ctx, reading context.Context, stop context.CancelCauseFunc, work <-chan *gatheredBatch) (err error) {
	idle := time.NewTicker(s.log.o.ShowEvery)
	defer idle.Stop()
	for {
		select {
		case g, ok := <-work:
			if !ok {
				return err
			}
			if err != nil {
				continue
			}
			if err = s.handleGathered(ctx, g); err != nil {
				stop(err)
			}
		case <-idle.C:
			if err == nil && !s.sure {
				s.settlePosition(reading)
			}
		}
	}
}

// handleGathered handles what was gathered.
func (s *consumption) handleGathered(ctx context.Context, g *gatheredBatch) error {
	if len(g.entries) > 0 {
		if err := s.handle(ctx, g.entries); err != nil {
			s.over = true
			return err
		}
	}
	return s.noteHandled(g.last, g.behind)
}

// readAhead hands over entries as soon as there are enough, or have been waited
// for, and the handler has time for them.
func (s *consumption) readAhead(ctx context.Context, work chan<- *gatheredBatch) error {
	last := 0
	for {
		g := &gatheredBatch{entries: make([]Entry, 0, last)} // as many as the last time, probably
		if err := s.takeMessage(ctx, g); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, s.c.Wait)
		err := s.gatherAhead(ctx, wait, g, work)
		cancel()
		if err != nil {
			return err
		}
		last = len(g.entries)
	}
}

func (s *consumption) gatherAhead(ctx, wait context.Context, g *gatheredBatch, work chan<- *gatheredBatch) error {
	for ctx.Err() == nil {
		if len(g.entries) >= s.c.Batch {
			select {
			case work <- g:
				return nil
			default: // more of them, then
			}
		}
		err := error(nil)
		switch {
		case len(g.entries) >= s.c.Ahead || g.size >= aheadBytes:
			err = context.DeadlineExceeded
		default:
			err = s.takeMore(wait, g)
		}
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			select {
			case work <- g:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		default:
			return err
		}
	}
	return context.Cause(ctx)
}

// takeMessage waits for a message and adds it.
func (s *consumption) takeMessage(ctx context.Context, g *gatheredBatch) error {
	m, err := s.in.Next(ctx)
	if err != nil {
		return err
	}
	return s.gatherMessage(m, g)
}

// takeMore takes a message that has come, or waits for one.
func (s *consumption) takeMore(ctx context.Context, g *gatheredBatch) error {
	m, ok, err := s.in.Come()
	switch {
	case err != nil:
		return err
	case ok:
		return s.gatherMessage(m, g)
	case len(g.entries) >= max(2, s.c.Batch/32): // the server tells of many at once, and then of none for a while
		silence, cancel := context.WithTimeout(ctx, s.c.Wait/8)
		defer cancel()
		return s.takeMessage(silence, g)
	}
	return s.takeMessage(ctx, g)
}

func (s *consumption) gatherMessage(m pull.Message, g *gatheredBatch) (err error) {
	if g.entries, err = s.addMessage(m, g.entries); err != nil {
		return err
	}
	g.last, g.behind = s.last, m.Pending
	g.size += len(m.Data)
	return nil
}
