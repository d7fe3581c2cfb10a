package runner

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/internal/seal"
	"wake/internal/tracing"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// takeRuns becomes the owner of runs that are asked for.
func (r *Runner) takeRuns(ctx, hard context.Context, keeper *lease.Keeper) error {
	c, err := r.consumer(ctx, subjects.RunsConsumer, r.names.QueueRun())
	if err != nil {
		return err
	}
	return r.take(ctx, c, nil, func(m jetstream.Msg, _ *seat) {
		ctx := tracing.Extract(hard, m.Headers())
		data, ok := r.unseal(ctx, m)
		if !ok {
			return
		}
		req, def, err := parseRequest(data)
		if err != nil {
			r.refuse(ctx, m, err)
			return
		}
		o := &owner{runner: r, keeper: keeper, runID: req.RunID, request: req, def: def, asked: true, taken: func() {
			r.metrics.took(ofRuns, m)
			r.ack(ctx, m)
		}}
		var unplaced *noFolderError
		switch err := o.own(ctx); {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, lease.ErrHeld):
			r.again(ctx, m, keeper.TTL())
		case errors.Is(err, errFull), errors.Is(err, errBehind): // that was said
			r.again(ctx, m, roomAgain)
		case errors.As(err, &unplaced):
			r.logger.Warn("folder of the run not made", "run", req.RunID, "again_in", unplaced.after, "error", err)
			r.again(ctx, m, unplaced.after)
		case errors.Is(err, errNothing): // a run that was handed over isn't there
			r.ack(ctx, m)
		case rejected(err):
			r.refuse(ctx, m, err)
		default:
			r.logger.Error("run not begun", "run", req.RunID, "error", err) // the request comes again
		}
	})
}

// roomAgain is how long a request for a run waits for room in the stream.
const roomAgain = 10 * time.Second

func parseRequest(data []byte) (wire.RunRequest, *flow.Definition, error) {
	var req wire.RunRequest
	raw, _, err := wire.ParseAny(data)
	if err != nil {
		return req, nil, err
	}
	if err := wire.Unmarshal(raw, &req); err != nil {
		return req, nil, err
	}
	if err := subjects.CheckID(req.RunID); err != nil {
		return req, nil, err
	}
	if len(req.Definition) == 0 || string(req.Definition) == string(wire.Null) {
		return req, nil, nil // a fork, or a run that has begun
	}
	def, err := flow.FromRaw(req.Definition)
	return req, def, err
}

// takeNodes works on nodes that are offered in a pool, as far as there is room.
func (r *Runner) takeNodes(ctx, hard context.Context, keeper *lease.Keeper, pool string) error {
	c, err := r.consumer(ctx, subjects.NodesConsumer(pool), r.names.QueueNode(pool))
	if err != nil {
		return err
	}
	return r.take(ctx, c, r.slots, func(m jetstream.Msg, seat *seat) {
		ctx := tracing.Extract(hard, m.Headers())
		data, ok := r.unseal(ctx, m)
		if !ok {
			return
		}
		var offer wire.NodeOffer
		if err := wire.Unmarshal(data, &offer); err != nil {
			r.refuse(ctx, m, err)
			return
		}
		id := offer.RunID + "/" + offer.ExecID
		mine := false // else another offer's worker is at work
		w := &worker{runner: r, keeper: keeper, offer: offer, seat: seat, taken: func() {
			if r.working.enter(id) {
				mine = true
				r.metrics.took(ofNodes, m)
			}
			r.ack(ctx, m)
		}}
		defer func() {
			if mine {
				r.working.leave(id)
			}
		}()
		switch err := w.run(ctx); {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, lease.ErrHeld):
			r.again(ctx, m, keeper.TTL())
		default:
			r.logger.Error("node has lost its worker", "run", offer.RunID, "node", offer.NodeID, "exec", offer.ExecID, "error", err)
		}
	})
}

// take hands each message of a queue to a task of its own, as far as there are
// slots; nil is any number.
func (r *Runner) take(ctx context.Context, c jetstream.Consumer, s slots, task func(m jetstream.Msg, seat *seat)) error {
	for s.await(ctx) {
		m, err := r.next(ctx, c)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if !s.take() { // another queue was faster
			r.again(ctx, m, 0)
			continue
		}
		r.tasks.Go(func() {
			seat := newSeat(s, r.resting)
			defer seat.free()
			task(m, seat)
		})
	}
	return nil
}

// slots holds a token per agent that runs. Who only waits for work holds none: a
// queue without work must not keep a slot from another one.
type slots chan struct{}

// await waits until there is room. It reports false if ctx has ended.
func (s slots) await(ctx context.Context) bool {
	if s == nil || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	select {
	case s <- struct{}{}:
		<-s
		return true
	case <-ctx.Done():
		return false
	}
}

func (s slots) take() bool {
	if s == nil {
		return true
	}
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slots) free() {
	if s != nil {
		<-s
	}
}

// next waits for the next message of a queue. It returns nil when there was
// none for a while, or the server was away.
func (r *Runner) next(ctx context.Context, c jetstream.Consumer) (jetstream.Msg, error) {
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	m, err := c.Next(jetstream.FetchContext(wait))
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDeleted):
		return nil, err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages):
		return nil, nil
	}
	if ctx.Err() == nil {
		level := slog.LevelWarn
		if !r.log.Conn().IsConnected() {
			level = slog.LevelDebug // the connection has said so
		}
		r.logger.Log(ctx, level, "queue is away", "error", err)
		sleep(ctx, time.Second)
	}
	return nil, nil
}

// keyAgain is how long a message of a queue waits for a runner that has its key.
const keyAgain = 10 * time.Second

// unseal opens a message of a queue. One whose key is missing stays in the queue, and
// one that was tampered with is refused.
func (r *Runner) unseal(ctx context.Context, m jetstream.Msg) ([]byte, bool) {
	data, err := r.log.Unseal(m.Subject(), m.Data())
	switch {
	case errors.Is(err, seal.ErrNoKey):
		r.logger.Error("queue message waits for a runner that has its key", "subject", m.Subject(), "error", err)
		r.again(ctx, m, keyAgain)
	case err != nil:
		r.refuse(ctx, m, err)
	}
	return data, err == nil
}

// refuse moves a message that can't be used to the dead letters.
func (r *Runner) refuse(ctx context.Context, m jetstream.Msg, reason error) {
	r.logger.Error("queue message refused", "subject", m.Subject(), "error", reason)
	entry := eventlog.Entry{Subject: m.Subject(), Data: m.Data()}
	if meta, err := m.Metadata(); err == nil {
		entry.Pos = meta.Sequence.Stream
	}
	if err := r.log.DeadLetter(ctx, "runner", reason.Error(), entry); err != nil {
		r.logger.Error("dead letter not stored", "subject", m.Subject(), "error", err)
		return // it is delivered again
	}
	r.ack(ctx, m)
}

// tooLarge reports whether the server never takes what was published.
func tooLarge(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && refused.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum
}

// ack removes a message from its queue. If that fails it comes again, and the
// log tells that it is needless.
func (r *Runner) ack(ctx context.Context, m jetstream.Msg) {
	if err := m.DoubleAck(ctx); err != nil && ctx.Err() == nil {
		r.logger.Warn("queue message not acknowledged", "subject", m.Subject(), "error", err)
	}
}

func (r *Runner) again(ctx context.Context, m jetstream.Msg, after time.Duration) {
	if err := m.NakWithDelay(after); err != nil && ctx.Err() == nil {
		r.logger.Warn("queue message not handed back", "subject", m.Subject(), "error", err)
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
