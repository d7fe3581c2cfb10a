package intake

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/capacity"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/owner"
	"code.wake.dev/wake/services/runner/work"
)

// takeRuns becomes the owner of runs that are asked for.
func (in *Intake) takeRuns(ctx, hard context.Context) error {
	c, err := in.queueConsumer(ctx, subjects.RunsConsumer, in.subjectNames().QueueRun())
	if err != nil {
		return err
	}
	return in.takeMessages(ctx, c, nil, func(m jetstream.Msg) {
		ctx := tracing.Extract(hard, m.Headers())
		data, ok := in.cfg.Queue.Unseal(ctx, m)
		if !ok {
			return
		}
		req, err := parseRequest(data, in.cfg.Runs.Definition)
		if err != nil {
			in.cfg.Queue.Refuse(ctx, m, err)
			return
		}
		if meta, err := m.Metadata(); err == nil {
			req.First = meta.NumDelivered == 1
		}
		req.OnBegin = func() {
			observeWait(in.cfg.RunWait, m)
			in.cfg.Queue.Ack(ctx, m)
		}
		var unplaced *owner.NoFolderError
		switch err := in.cfg.Owners.Own(ctx, req); {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, lease.ErrHeld):
			in.cfg.Queue.Again(ctx, m, in.cfg.Leases.TTL())
		case errors.Is(err, capacity.ErrFull), errors.Is(err, capacity.ErrBehind): // that was said
			in.cfg.Queue.Again(ctx, m, roomAgain)
		case errors.As(err, &unplaced):
			in.cfg.Logger.Warn("folder of the run not made", "run", req.RunID, "again_in", unplaced.After, "error", err)
			in.cfg.Queue.Again(ctx, m, unplaced.After)
		case errors.Is(err, owner.ErrNothing): // a run that was handed over isn't there
			in.cfg.Queue.Ack(ctx, m)
		case command.Rejected(err):
			in.cfg.Queue.Refuse(ctx, m, err)
		default:
			in.cfg.Logger.Error("run not begun", "run", req.RunID, "error", err) // the request comes again
		}
	})
}

// roomAgain is how long a request for a run waits for room in the stream.
const roomAgain = 10 * time.Second

func parseRequest(data []byte, read func(wire.Raw) (*flow.Definition, error)) (*owner.Request, error) {
	req := &owner.Request{Queued: true}
	raw, _, err := wire.ParseAny(data)
	if err != nil {
		return nil, err
	}
	if err := wire.Unmarshal(raw, &req.RunRequest); err != nil {
		return nil, err
	}
	if err := subjects.CheckID(req.RunID); err != nil {
		return nil, err
	}
	if err := ledger.CheckLimits(req.Limits); err != nil {
		return nil, err
	}
	if len(req.RunRequest.Definition) == 0 || string(req.RunRequest.Definition) == string(wire.Null) {
		return req, nil // a fork, or a run that has begun
	}
	req.Definition, err = read(req.RunRequest.Definition)
	return req, err
}

// takeNodes works on nodes that are offered in a pool, as far as there is room.
func (in *Intake) takeNodes(ctx, hard context.Context, pool string) error {
	c, err := in.queueConsumer(ctx, subjects.NodesConsumer(pool), in.subjectNames().QueueNode(pool))
	if err != nil {
		return err
	}
	return in.takeMessages(ctx, c, in.cfg.Slots, func(m jetstream.Msg) { in.takeNode(tracing.Extract(hard, m.Headers()), m) })
}

// takeNode takes an offer that has a slot.
func (in *Intake) takeNode(ctx context.Context, m jetstream.Msg) {
	offer := in.readOffer(ctx, m)
	if offer != nil && in.isLate(ctx, m, offer) {
		in.cfg.Queue.Ack(ctx, m)
		offer = nil
	}
	if offer == nil {
		in.cfg.Slots.Free()
		return
	}
	err := in.takeOffer(ctx, offer, func(first bool) {
		if first {
			observeWait(in.cfg.NodeWait, m)
		}
		in.cfg.Queue.Ack(ctx, m)
	})
	if errors.Is(err, lease.ErrHeld) && ctx.Err() == nil {
		in.cfg.Queue.Again(ctx, m, in.heldAgain())
	}
}

// heldAgain is how long an offer waits while another process may act for its node. A runner that has just begun looks again sooner: for one
// time to live it can't tell which processes are gone, though the other runners can.
func (in *Intake) heldAgain() time.Duration {
	ttl := in.cfg.Leases.TTL()
	if time.Since(in.cfg.Leases.Since()) < 2*ttl {
		return ttl / 10
	}
	return ttl
}

// takeOffer works on an execution that is offered and has a slot, and calls taken when the log has what the offer is for. It fails with
// lease.ErrHeld if another process may act for the node.
func (in *Intake) takeOffer(ctx context.Context, offer *wire.NodeOffer, taken func(first bool)) error {
	seat := work.NewSeat(in.cfg.Slots, in.cfg.Resting)
	worker, err := in.cfg.Workers.Take(ctx, offer, seat, taken)
	if worker == nil {
		seat.Free()
		if !errors.Is(err, lease.ErrHeld) {
			in.logLoss(ctx, offer, err)
		}
		return err
	}
	in.tasks.Go(func() { // what has taken the offer is on no stack any more
		in.logLoss(ctx, offer, worker.Work())
		seat.Free()
	})
	return nil
}

// takeOffers works on nodes that owners of this process offer, as far as there is room.
func (in *Intake) takeOffers(ctx, hard context.Context) error {
	for in.cfg.Offers.Await(ctx) && in.cfg.Slots.Await(ctx) {
		if in.cfg.Capacity.Cramped() {
			pull.Sleep(ctx, lookAgain)
			continue
		}
		if in.queues.giveWay(ctx); !in.cfg.Slots.Take() { // a queue was faster
			continue
		}
		offer := in.cfg.Offers.Next()
		in.tasks.Go(func() {
			err := in.takeOffer(tracing.With(hard, offer.Trace), &offer.NodeOffer, func(first bool) {
				if first {
					in.cfg.NodeWait.Observe(time.Since(offer.Since).Seconds())
				}
			})
			if err != nil { // the owner would offer again, later and later
				pull.Sleep(ctx, in.heldAgain())
				in.cfg.Offers.Put(offer)
			}
		})
	}
	return nil
}

// readOffer returns the offer of a message; nil if it can't be read, and has been dealt with.
func (in *Intake) readOffer(ctx context.Context, m jetstream.Msg) *wire.NodeOffer {
	data, ok := in.cfg.Queue.Unseal(ctx, m)
	if !ok {
		return nil
	}
	offer := new(wire.NodeOffer)
	if err := wire.Unmarshal(data, offer); err != nil {
		in.cfg.Queue.Refuse(ctx, m, err)
		return nil
	}
	return offer
}

// clockGap is how far this machine's clock and the server's may be apart.
const clockGap = time.Minute

// isLate reports whether an offer was made before this runner came back, and the folder of its run has gone elsewhere meanwhile: its owner
// offers the execution to the runner that has the folder.
func (in *Intake) isLate(ctx context.Context, m jetstream.Msg, offer *wire.NodeOffer) bool {
	meta, err := m.Metadata()
	back := in.cfg.Leases.Since()
	if err != nil || !back.IsZero() && meta.Timestamp.After(back.Add(clockGap)) || m.Subject() != in.subjectNames().QueueNode(owner.PoolOf(in.cfg.ID)) {
		return false
	}
	for run := offer.RunID; run != ""; {
		s, err := in.cfg.Runs.State(ctx, run)
		if err != nil {
			return false
		}
		def, err := in.cfg.Runs.Definition(s.Definition)
		if err != nil || !def.IsBound() {
			return false
		}
		reg, _, err := in.cfg.Registry.Load(ctx, run)
		if err != nil || reg.Run == "" {
			return false
		}
		if reg.Folder != in.cfg.ID {
			in.cfg.Logger.Info("an offer is too late: the folder of its run is elsewhere", "run", offer.RunID, "node", offer.NodeID, "runner", reg.Folder)
			return true
		}
		run = s.ParentRun // which may have gone on elsewhere, and the run follows
	}
	return false
}

// logLoss says why a node has lost its worker; nil: it hasn't.
func (in *Intake) logLoss(ctx context.Context, offer *wire.NodeOffer, err error) {
	if err != nil && ctx.Err() == nil {
		in.cfg.Logger.Error("node has lost its worker", "run", offer.RunID, "node", offer.NodeID, "exec", offer.ExecID, "error", err)
	}
}

// offerLeft offers this runner what a former process of it has left to keepers, and waits
// until ctx ends. The owner of such a run may be another runner: it would wait until a
// lease has expired that this runner may take at once, and then any runner may be the first.
func (in *Intake) offerLeft(ctx context.Context) error {
	offers, err := in.cfg.Workers.Left(ctx)
	if err != nil {
		return err
	}
	for _, offer := range offers {
		in.cfg.Offers.Put(queue.Offer{NodeOffer: offer, Since: time.Now()})
	}
	<-ctx.Done()
	return nil
}

// runsAhead is how many requests for runs a runner asks for at once. It takes all that come.
const runsAhead = 32

// lookAgain is how soon a runner without room looks whether it has some.
const lookAgain = 100 * time.Millisecond

// takeMessages hands each message of a queue to a task of its own, as far as there are
// slots, of which the task has one; nil is any number.
func (in *Intake) takeMessages(ctx context.Context, c jetstream.Consumer, s work.Slots, task func(m jetstream.Msg)) error {
	ahead, turns := runsAhead, newPrecedence() // nothing has to give way to what needs no slot
	if s != nil {
		ahead, turns = 1, in.queues // another runner may have room
	}
	source := in.cfg.Queue.Source(c, ahead)
	defer source.Close(ctx)
	for s.Await(ctx) {
		if s != nil && in.cfg.Capacity.Cramped() { // others may have room
			pull.Sleep(ctx, lookAgain)
			continue
		}
		m, err := source.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			turns.settleClaim()
			continue
		}
		if ctx.Err() != nil { // it may be a run that this runner has just handed over
			in.cfg.Queue.Again(ctx, m, 0)
			break
		}
		if s != nil && in.cfg.Capacity.Cramped() {
			in.cfg.Queue.Again(ctx, m, time.Second)
			continue
		}
		if !s.Take() { // what else takes work was faster
			in.cfg.Queue.Again(ctx, m, 0)
			turns.claimSlot()
			continue
		}
		turns.settleClaim()
		in.tasks.Go(func() { task(m) })
	}
	return nil
}

// queueConsumer returns the consumer of a queue subject, which all runners share. It may be lost, and with it which runner
// has what: the queue has all that isn't acknowledged, and hands it out again.
func (in *Intake) queueConsumer(ctx context.Context, durable, subject string) (jetstream.Consumer, error) {
	cfg := jetstream.ConsumerConfig{
		Durable:       durable,
		FilterSubject: subject,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       30 * time.Second,
		MaxDeliver:    -1, // an offer is obsolete when the log says so, not when it was tried often
		MaxAckPending: 1000,
	}
	if subject == in.subjectNames().QueueNode(owner.PoolOf(in.cfg.ID)) {
		cfg.InactiveThreshold = 24 * time.Hour
	}
	return in.cfg.Queue.Share(ctx, in.subjectNames().QueueStream(), cfg)
}

// observeWait notes how long what is taken has waited in its queue.
func observeWait(wait prometheus.Observer, m jetstream.Msg) {
	if meta, err := m.Metadata(); err == nil {
		wait.Observe(max(0, time.Since(meta.Timestamp).Seconds()))
	}
}
