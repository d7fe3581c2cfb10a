package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// errGap means that a consumer skipped or repeated something: it has to be set
// to where its reader is.
var errGap = errors.New("the consumer jumped")

// How a follower pulls. A consumer that is silent for two heartbeats is taken
// for lost and made anew.
const (
	followExpiry    = 10 * time.Second
	followHeartbeat = 2 * time.Second
	followIdle      = time.Minute // after which the server forgets the consumer
)

// Follow yields the selected events from q.From on and then each as it is
// stored, in order, without gap or repetition, across reconnects and changes of
// leader. q.To has no meaning. It ends when ctx ends, without an error, or with
// [ErrIncarnation].
//
// Each call has a consumer on the server. A process that follows many runs
// follows all of them once and distributes.
func (l *Log) Follow(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f := follower{log: l, filters: l.filters(q), next: max(q.From, 1), yield: yield}
		for wait := backoff(l.o.MaxBackoff); ; {
			before := f.next
			err := f.session(ctx)
			switch {
			case f.stopped || ctx.Err() != nil:
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
	defer f.log.forget(ctx, stream, consumer.CachedInfo().Name)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(readEvents),
		jetstream.PullExpiry(followExpiry), jetstream.PullHeartbeat(followHeartbeat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	return f.deliver(ctx, messages)
}

func (f *follower) deliver(ctx context.Context, messages jetstream.MessagesContext) error {
	for delivered := uint64(1); ; delivered++ {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != delivered || meta.Sequence.Stream < f.next {
			return errGap
		}
		f.next = meta.Sequence.Stream + 1
		if !f.yield(f.log.entry(meta.Sequence.Stream, meta.Timestamp, m.Subject(), m.Data()), nil) {
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
