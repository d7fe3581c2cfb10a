package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
)

// followIdle is how long the server keeps the consumer of a follower that is
// gone.
const followIdle = time.Minute

// Follow yields the selected events from q.From on and then each as it is
// stored, in order, without gap or repetition, across reconnects and changes of
// leader. q.To has no meaning. It ends when ctx ends, without an error, with
// [ErrIncarnation] or [ErrBeyond], or when the connection is closed.
//
// Each call has a consumer on the server. A process that follows many runs
// follows all of them once and distributes.
func (l *Log) Follow(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	kinds := q.Kinds
	q.Kinds = nil
	return Entries(messagesOfKinds(l.FollowMessages(ctx, l.Select(q)), kinds), l.names, l.o.Keys)
}

// messagesOfKinds leaves out the events of other kinds.
func messagesOfKinds(messages iter.Seq2[Message, error], kinds []wire.Kind) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for m, err := range messages {
			if (err != nil || isOfKinds(m.Subject, kinds)) && !yield(m, err) {
				return
			}
		}
	}
}

// FollowMessages is [Log.Follow] of messages as they are stored, of any stream.
func (l *Log) FollowMessages(ctx context.Context, s Selection) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		f := follower{log: l, stream: s.Stream, filters: s.Subjects, next: max(s.From, 1), yield: yield}
		for wait := newPauses(l.o.MaxBackoff); ; {
			pull.AwaitConnection(ctx, l.nc)
			before := f.next
			err := f.runSession(ctx)
			switch {
			case f.stopped || ctx.Err() != nil:
				return
			case l.nc.IsClosed():
				yield(Message{}, fmt.Errorf("eventlog: follow: %w", nats.ErrConnectionClosed))
				return
			case errors.Is(err, ErrIncarnation), errors.Is(err, ErrBeyond), isFinal(err):
				yield(Message{}, fmt.Errorf("eventlog: follow: %w", err))
				return
			case f.next > before:
				wait = newPauses(l.o.MaxBackoff)
			}
			l.logger.Debug("follower begins again", slog.Uint64("position", f.next), slog.Any("error", err))
			if wait.pauseNext(ctx) != nil {
				return
			}
		}
	}
}

// follower is a Follow under way.
type follower struct {
	log     *Log
	stream  string
	filters []string
	next    uint64 // position to go on from
	yield   func(Message, error) bool
	stopped bool // yield said so
}

// runSession follows with one consumer until that fails.
func (f *follower) runSession(ctx context.Context) error {
	if err := f.log.checkPosition(ctx, f.stream, f.next-1); err != nil {
		return err
	}
	consumer, err := f.log.js.CreateConsumer(ctx, f.stream, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       f.next,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubjects:    f.filters,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: followIdle,
	})
	if err != nil {
		return err
	}
	name := consumer.CachedInfo().Name
	defer f.log.deleteConsumer(ctx, f.stream, name)
	p, err := pull.New(f.log.nc, f.stream, name, readEvents)
	if err != nil {
		return err
	}
	defer p.Stop()
	connected, release := pull.Connected(ctx, f.log.nc)
	defer release()
	return f.deliverMessages(connected, p)
}

func (f *follower) deliverMessages(ctx context.Context, p *pull.Puller) error {
	for {
		m, err := p.Next(ctx)
		if err != nil {
			return err
		}
		if m.Pos < f.next {
			return pull.ErrGap
		}
		f.next = m.Pos + 1
		if !f.yield(messageOf(m), nil) {
			f.stopped = true
			return nil
		}
	}
}

// deleteConsumer removes a consumer that isn't needed any more. If that fails, the
// server does so after a while.
func (l *Log) deleteConsumer(ctx context.Context, stream, consumer string) {
	if !l.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.ReadWait)
	defer cancel()
	_ = l.js.DeleteConsumer(ctx, stream, consumer)
}

// isOfKinds reports whether a subject is one of events of some kinds; none: of all. Readers of
// all runs ask for everything and drop by this: with filters, the server looks through the more
// subjects for each message the more runs there are.
func isOfKinds(subject string, kinds []wire.Kind) bool {
	return len(kinds) == 0 || slices.Contains(kinds, wire.Kind(subject[strings.LastIndexByte(subject, '.')+1:]))
}
