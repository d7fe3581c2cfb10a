// Package queue takes messages from the streams that runners share, and asks for runs.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// Queue is what a runner takes its work from, and where it asks for runs.
type Queue struct {
	log    *eventlog.Log
	logger *slog.Logger
}

// New returns the queue of a log.
func New(log *eventlog.Log, logger *slog.Logger) *Queue { return &Queue{log, logger} }

// keyAgain is how long a message of a queue waits for a runner that has its key.
const keyAgain = 10 * time.Second

// errChanged says that a consumer has other settings now.
var errChanged = errors.New("another client has changed the consumer")

// Source gives out the messages of a consumer. It belongs to one goroutine.
type Source struct {
	queue    *Queue
	consumer jetstream.Consumer
	ahead    int
	fetch    jetstream.MessageBatch // nil: nothing is asked for
	end      context.CancelFunc     // of that
	came     bool                   // something has, for it
}

// Source returns what gives out the messages of a consumer, of which it asks for so many ahead. To ask costs as much as a message.
func (q *Queue) Source(c jetstream.Consumer, ahead int) *Source {
	return &Source{queue: q, consumer: c, ahead: ahead}
}

// Next waits for the next message. It returns nil when there was
// none for a while, or the server was away, and fails if the consumer was deleted or changed.
func (s *Source) Next(ctx context.Context) (jetstream.Msg, error) {
	m, silent, err := s.tryNext(ctx)
	if m != nil || !silent || err != nil || ctx.Err() != nil {
		return m, err
	}
	// From a consumer that is gone nothing comes, not even an error.
	wait, cancel := context.WithTimeout(ctx, tenure.GiveBack)
	defer cancel()
	was := s.consumer.CachedInfo().Config
	info, err := s.consumer.Info(wait)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, err
	case err == nil && (info.Config.FilterSubject != was.FilterSubject || len(info.Config.FilterSubjects) > 0 || info.Config.AckPolicy != was.AckPolicy):
		return nil, errChanged
	}
	return nil, nil // nothing has come, or the server is away
}

// tryNext reports that it was silent if nothing has come for all that was asked for.
func (s *Source) tryNext(ctx context.Context) (m jetstream.Msg, silent bool, err error) {
	for ; ; s.fetch = nil {
		if s.fetch == nil {
			wait, cancel := context.WithTimeout(ctx, 10*time.Second)
			if s.fetch, err = s.consumer.Fetch(s.ahead, jetstream.FetchContext(wait)); err != nil {
				s.fetch = nil
				cancel()
				return nil, true, s.judgeFailure(ctx, err)
			}
			s.end, s.came = cancel, false
		}
		if m, came := <-s.fetch.Messages(); came {
			s.came = true
			return m, false, nil
		}
		err := s.fetch.Error()
		if s.end(); err != nil || !s.came {
			s.fetch = nil
			return nil, !s.came, s.judgeFailure(ctx, err)
		}
	}
}

// judgeFailure returns why nothing will come any more; nil: it may.
func (s *Source) judgeFailure(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDeleted):
		return err
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages):
		return nil
	}
	if ctx.Err() == nil {
		level := slog.LevelWarn
		if !s.queue.log.Conn().IsConnected() {
			level = slog.LevelDebug // the connection has said so
		}
		s.queue.logger.Log(ctx, level, "queue is away", "error", err)
		pull.Sleep(ctx, time.Second)
	}
	return nil
}

// Close hands back what has come and wasn't taken.
func (s *Source) Close(ctx context.Context) {
	if s.fetch == nil {
		return
	}
	s.end()
	for m := range s.fetch.Messages() {
		s.queue.Again(ctx, m, 0)
	}
	s.fetch = nil
}

// Unseal opens a message of a queue. If its key is missing it stays in the queue, and
// one that was tampered with is refused.
func (q *Queue) Unseal(ctx context.Context, m jetstream.Msg) ([]byte, bool) {
	data, err := q.log.Unseal(m.Subject(), m.Data())
	switch {
	case errors.Is(err, seal.ErrNoKey):
		q.logger.Error("queue message waits for a runner that has its key", "subject", m.Subject(), "error", err)
		q.Again(ctx, m, keyAgain)
	case err != nil:
		q.Refuse(ctx, m, err)
	}
	return data, err == nil
}

// Refuse moves a message that can't be used to the dead letters.
func (q *Queue) Refuse(ctx context.Context, m jetstream.Msg, reason error) {
	q.logger.Error("queue message refused", "subject", m.Subject(), "error", reason)
	entry := eventlog.Entry{Subject: m.Subject(), Data: m.Data()}
	if meta, err := m.Metadata(); err == nil {
		entry.Pos = meta.Sequence.Stream
	}
	if err := q.log.DeadLetter(ctx, "runner", reason.Error(), entry); err != nil {
		q.logger.Error("dead letter not stored", "subject", m.Subject(), "error", err)
		return // it is delivered again
	}
	q.Ack(ctx, m)
}

// Ack removes a message from its queue. If that fails it comes again, and the
// log tells that it is needless.
func (q *Queue) Ack(ctx context.Context, m jetstream.Msg) {
	if err := m.Ack(); err != nil && ctx.Err() == nil {
		q.logger.Warn("queue message not acknowledged", "subject", m.Subject(), "error", err)
	}
}

// Again hands a message back: it is delivered again after a while.
func (q *Queue) Again(ctx context.Context, m jetstream.Msg, after time.Duration) {
	if err := m.NakWithDelay(after); err != nil && ctx.Err() == nil {
		q.logger.Warn("queue message not handed back", "subject", m.Subject(), "error", err)
	}
}

// TooLargeError says that no server takes a request for a run.
type TooLargeError struct{ Bytes int }

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the request for a run is %d bytes, more than the server takes", e.Bytes)
}

// AskOnce asks for a run that others ask for, too: the server takes one request for it.
func (q *Queue) AskOnce(ctx context.Context, request wire.RunRequest) error {
	return q.AskRun(ctx, request, jetstream.WithMsgID(request.RunID))
}

// AskRun asks for a run. It fails with a [TooLargeError] for one that no server takes.
func (q *Queue) AskRun(ctx context.Context, request wire.RunRequest, o ...jetstream.PublishOpt) error {
	data, err := wire.Marshal(request)
	if err != nil {
		return err
	}
	_, err = q.log.Send(ctx, q.log.Names().QueueRun(), data, o...)
	refused, ok := errors.AsType[*jetstream.APIError](err)
	if errors.Is(err, nats.ErrMaxPayload) || ok && refused.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum {
		return &TooLargeError{len(data)}
	}
	return err
}

// HandOver asks for another owner of a run. It is a hint: a runner that sweeps finds
// the run too.
func (q *Queue) HandOver(ctx context.Context, run string) {
	ctx, cancel := tenure.Rest(ctx)
	defer cancel()
	if err := q.AskRun(ctx, wire.RunRequest{V: wire.Version, RunID: run}); err != nil {
		q.logger.Warn("run not handed over, the runner that sweeps next finds it", "run", run, "error", err)
	}
}

// Share returns a durable consumer that all runners take from, and makes it if need be. It is in the server's memory,
// where handing out and acknowledging cost no sync; it is gone when the server ends, and a runner that needs it makes
// it again, as c says. One on disk, as earlier versions made it, is made anew unless a runner takes from it now.
func (q *Queue) Share(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c.MemoryStorage = true
	there, err := q.shared(ctx, stream, c.Durable)
	if err == nil && there != nil && !there.Config.MemoryStorage && there.NumWaiting == 0 {
		if err = q.log.JetStream().DeleteConsumer(ctx, stream, c.Durable); errors.Is(err, jetstream.ErrConsumerNotFound) {
			err = nil
		}
		there = nil
	}
	if there != nil { // what can't be changed stays
		was := there.Config
		c.MemoryStorage, c.DeliverPolicy, c.OptStartSeq = was.MemoryStorage, was.DeliverPolicy, was.OptStartSeq
	}
	var made jetstream.Consumer
	if err == nil {
		made, err = q.log.JetStream().CreateOrUpdateConsumer(ctx, stream, c)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", c.Durable, err)
	}
	return made, nil
}

// shared returns a consumer as it is, or nil if there is none.
func (q *Queue) shared(ctx context.Context, stream, durable string) (*jetstream.ConsumerInfo, error) {
	c, err := q.log.JetStream().Consumer(ctx, stream, durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}
