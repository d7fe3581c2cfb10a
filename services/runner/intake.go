package runner

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// takeRuns becomes the owner of runs that are asked for.
func (r *Runner) takeRuns(ctx context.Context, keeper *lease.Keeper) error {
	c, err := r.consumer(ctx, subjects.RunsConsumer, r.names.QueueRun())
	if err != nil {
		return err
	}
	return r.take(ctx, c, nil, func(m jetstream.Msg, done func()) {
		defer done()
		req, def, err := parseRequest(m.Data())
		if err != nil {
			r.refuse(ctx, m, err)
			return
		}
		o := &owner{runner: r, keeper: keeper, runID: req.RunID, request: req, def: def, taken: func() { r.ack(ctx, m) }}
		switch err := o.run(ctx); {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, lease.ErrHeld):
			r.again(ctx, m, keeper.TTL()) // needless as soon as the run has begun; then it is acknowledged
		default:
			r.logger.Error("run has lost its owner", "run", req.RunID, "error", err)
		}
	})
}

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
	def, err := flow.FromRaw(req.Definition)
	return req, def, err
}

// takeNodes works on nodes that are offered in a pool, as far as there is room.
func (r *Runner) takeNodes(ctx context.Context, keeper *lease.Keeper, pool string) error {
	c, err := r.consumer(ctx, subjects.NodesConsumer(pool), r.names.QueueNode(pool))
	if err != nil {
		return err
	}
	return r.take(ctx, c, r.slots, func(m jetstream.Msg, done func()) {
		defer done()
		var offer wire.NodeOffer
		if err := wire.Unmarshal(m.Data(), &offer); err != nil {
			r.refuse(ctx, m, err)
			return
		}
		w := &worker{runner: r, keeper: keeper, offer: offer, taken: func() { r.ack(ctx, m) }}
		switch err := w.run(ctx); {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, lease.ErrHeld):
			r.again(ctx, m, keeper.TTL())
		default:
			r.logger.Error("node has lost its worker", "run", offer.RunID, "node", offer.NodeID, "exec", offer.ExecID, "error", err)
		}
	})
}

// take hands each message of a queue to a task of its own. With slots it takes
// one only when there is room; the task frees its slot by done.
func (r *Runner) take(ctx context.Context, c jetstream.Consumer, slots chan struct{}, task func(m jetstream.Msg, done func())) error {
	release := func() {
		if slots != nil {
			<-slots
		}
	}
	for ctx.Err() == nil {
		if slots != nil {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
		}
		m, err := r.next(ctx, c)
		if err != nil || m == nil {
			release()
			if err != nil {
				return err
			}
			continue
		}
		r.tasks.Go(func() { task(m, release) })
	}
	return nil
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
		r.logger.Warn("queue is away", "error", err)
		sleep(ctx, time.Second)
	}
	return nil, nil
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
