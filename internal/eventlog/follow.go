package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/pull"
	"wake/internal/seal"
)

// followIdle is how long the server keeps the consumer of a follower that is
// gone.
const followIdle = time.Minute

// Follow yields the selected events from q.From on and then each as it is
// stored, in order, without gap or repetition, across reconnects and changes of
// leader. q.To has no meaning. It ends when ctx ends, without an error, with
// [ErrIncarnation], or when the connection is closed.
//
// Each call has a consumer on the server. A process that follows many runs
// follows all of them once and distributes.
func (l *Log) Follow(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f := follower{log: l, filters: l.filters(q), next: max(q.From, 1), yield: yield}
		for wait := backoff(l.o.MaxBackoff); ; {
			pull.AwaitConnection(ctx, l.nc)
			before := f.next
			err := f.session(ctx)
			switch {
			case f.stopped || ctx.Err() != nil:
				return
			case l.nc.IsClosed():
				yield(Entry{}, fmt.Errorf("eventlog: follow: %w", nats.ErrConnectionClosed))
				return
			case errors.Is(err, ErrIncarnation), final(err):
				yield(Entry{}, fmt.Errorf("eventlog: follow: %w", err))
				return
			case f.next > before:
				wait = backoff(l.o.MaxBackoff)
			}
			l.logger.Debug("follower begins again", slog.Uint64("position", f.next), slog.Any("error", err))
			if wait.pause(ctx) != nil {
				return
			}
		}
	}
}

// follower is a Follow under way.
type follower struct {
	log     *Log
	filters []string
	next    uint64 // position to go on from
	yield   func(Entry, error) bool
	stopped bool // yield said so
}

// session follows with one consumer until that fails.
func (f *follower) session(ctx context.Context) error {
	if err := f.log.checkPosition(ctx, f.next-1); err != nil {
		return err
	}
	stream := f.log.names.EventsStream()
	consumer, err := f.log.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
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
	defer f.log.forget(ctx, stream, name)
	p, err := pull.New(f.log.nc, stream, name, readEvents)
	if err != nil {
		return err
	}
	defer p.Stop()
	connected, release := pull.Connected(ctx, f.log.nc)
	defer release()
	return f.deliver(connected, p)
}

func (f *follower) deliver(ctx context.Context, p *pull.Puller) error {
	for {
		m, err := p.Next(ctx)
		if err != nil {
			return err
		}
		if m.Pos < f.next {
			return pull.ErrGap
		}
		f.next = m.Pos + 1
		e := f.log.delivered(m)
		if errors.Is(e.Err, seal.ErrNoKey) {
			f.stopped = true
			f.yield(Entry{}, fmt.Errorf("eventlog: follow: event %d: %w", e.Pos, e.Err))
			return nil
		}
		if !f.yield(e, nil) {
			f.stopped = true
			return nil
		}
	}
}

// forget removes a consumer that isn't needed any more. If that fails, the
// server does so after a while.
func (l *Log) forget(ctx context.Context, stream, consumer string) {
	if !l.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.ReadWait)
	defer cancel()
	_ = l.js.DeleteConsumer(ctx, stream, consumer)
}
