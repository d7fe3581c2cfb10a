package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Writer is the one writer of a node, from [Log.Claim] until another writer
// claims the node. It may be used by many goroutines; their events are stored in
// the order of the calls.
type Writer struct {
	*writerState

	log  *Log
	lane *lane

	// turn is held by the call that numbers events and queues them: the order of
	// numbers is the order of the queue.
	turn    chan struct{}
	next    uint64 // seq of the next event
	dropped int64  // deltas since the last storage_failure event
	since   time.Time
	held    []heldText // ends of texts that may be the beginning of a secret; never changed in place
}

func newWriter(l *Log, lane *lane, run, node string, epoch, seq, pos uint64) *Writer {
	return &Writer{
		writerState: newState(l.names, run, node, epoch, seq, pos),
		log:         l, lane: lane, turn: make(chan struct{}, 1), next: seq + 1,
	}
}

// Append stores events in order and returns the position of the last. It stamps
// RunID, NodeID, Seq and Epoch on them, and Timestamp where it is 0. Events that
// fit into a batch (1000 and 8 MiB) are stored together or not at all.
//
// It waits as long as ctx allows. If ctx ends first, the error is an
// [ErrAmbiguous]: the events stay queued and are stored when that is possible.
// Other errors are [ErrFenced], [ErrClosed], and those of events that can't be
// encoded; the latter leave the writer as it was.
//
// What is stored of an event has no secrets of Options.Redact in its payload. The
// end of a delta that may be the beginning of one is stored with the next delta of
// the same text, or as one of its own before the next event of another kind.
func (w *Writer) Append(ctx context.Context, events ...*wire.Event) (pos uint64, err error) {
	return w.appendEvents(ctx, events, true)
}

// AppendEach is [Writer.Append] for events of which each may be the last that is stored. A few of them cost a single
// server fewer syncs than what is stored together.
func (w *Writer) AppendEach(ctx context.Context, events ...*wire.Event) (pos uint64, err error) {
	return w.appendEvents(ctx, events, len(events) > batchSyncs)
}

// batchSyncs is how often a single server syncs to store an atomic batch, however few events are in it.
const batchSyncs = 6

func (w *Writer) appendEvents(ctx context.Context, events []*wire.Event, together bool) (pos uint64, err error) {
	if len(events) == 0 {
		_, pos := w.Last()
		return pos, nil
	}
	done := make(chan appendOutcome, 1)
	if err := w.queueEvents(ctx, events, together, done); err != nil {
		return 0, w.writeError("append", err)
	}
	return w.waitStored(ctx, "append", done)
}

// Enqueue takes an event without waiting until it is stored; events are stored
// in the order in which Append and Enqueue took them. It stamps the event like
// Append. It waits only when memory and spool are full; if nothing is being
// stored then either, an event of kind delta is dropped instead, before it gets
// a seq, and counted in a storage_failure event that follows when storage is
// back.
func (w *Writer) Enqueue(ctx context.Context, e *wire.Event) error {
	if err := w.queueEvents(ctx, []*wire.Event{e}, true, nil); err != nil {
		return w.writeError("enqueue", err)
	}
	return nil
}

// Flush waits until everything that was taken is stored. Like that of Append,
// its error is an [ErrAmbiguous] if ctx ends first.
func (w *Writer) Flush(ctx context.Context) error {
	done := make(chan appendOutcome, 1)
	if err := w.lock(ctx); err != nil {
		return w.writeError("flush", err)
	}
	err := w.reportDropped(ctx)
	if err == nil {
		err = w.storeRest(ctx)
	}
	w.awaitStored(w.next-1, done)
	w.unlock()
	if err != nil {
		return w.writeError("flush", err)
	}
	_, err = w.waitStored(ctx, "flush", done)
	return err
}

// Close flushes the writer; it takes no more events, whatever the error. The
// node stays claimed.
func (w *Writer) Close(ctx context.Context) error {
	err := w.Flush(ctx)
	w.failWith(ErrClosed)
	return err
}

// Settled reports whether all that was taken is stored. It isn't while the end of a
// text is held, since it may begin a secret.
func (w *Writer) Settled() bool {
	select {
	case w.turn <- struct{}{}:
		defer w.unlock()
	default:
		return false // an event is being taken
	}
	seq, _ := w.Last()
	return seq+1 == w.next && len(w.held) == 0
}

// StoreHeld takes what is held of a stream of commands for an event of its own: what follows of it isn't its next part.
func (w *Writer) StoreHeld(ctx context.Context, stream string) error {
	if err := w.lock(ctx); err != nil {
		return w.writeError("store the end of a text", err)
	}
	defer w.unlock()
	if err := w.storeTexts(ctx, func(h heldText) bool { return h.of.kind == wire.TypeExecOutput && h.of.stream == stream }); err != nil {
		return w.writeError("store the end of a text", err)
	}
	return nil
}

func (w *Writer) lock(ctx context.Context) error {
	select {
	case w.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case w.turn <- struct{}{}:
		return nil
	case <-w.Fenced():
		return w.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *Writer) unlock() { <-w.turn }

// queueEvents numbers, encodes and queues events, which are stored together or each by itself. done is told when the last
// is stored.
func (w *Writer) queueEvents(ctx context.Context, events []*wire.Event, together bool, done chan<- appendOutcome) error {
	if err := w.lock(ctx); err != nil {
		return err
	}
	defer w.unlock()
	if err := w.Err(); err != nil {
		return err
	}
	if err := w.reportDropped(ctx); err != nil {
		return err
	}
	delta := !slices.ContainsFunc(events, func(e *wire.Event) bool { return e.Type().Kind() != wire.KindDelta })
	if err := w.storeRest(ctx, events...); err != nil {
		return err
	}
	before := w.held
	unit, err := w.encodeFrames(events, false)
	if err != nil {
		w.held = before
		return err
	}
	for _, f := range unit {
		f.more = f.more && together
	}
	if origin := w.log.spanOrigin(ctx); origin.IsValid() {
		for _, f := range unit {
			f.origin = origin
		}
	}
	droppable := done == nil && delta
	last := w.next + uint64(len(events)) - 1
	if done != nil {
		w.awaitStored(last, done)
	}
	ok, err := w.lane.queueUnit(ctx, unit, droppable, w.writerState)
	switch {
	case errors.Is(err, ErrFenced):
		return w.Err()
	case err != nil:
		w.held = before
		w.forgetWaiter(last)
		return err
	case !ok:
		w.countDropped()
		return nil
	}
	w.next = last + 1
	return nil
}

// encodeFrames stamps and encodes events, without secrets; clean says that they have none.
func (w *Writer) encodeFrames(events []*wire.Event, clean bool) ([]*frame, error) {
	unit := make([]*frame, len(events))
	for i, e := range events {
		e.RunID, e.NodeID, e.Epoch = w.run, w.node, w.epoch
		e.Seq = w.next + uint64(i)
		if e.Timestamp == 0 {
			e.Timestamp = time.Now().UnixMilli()
		}
		encode := w.encodeRedacted
		if clean || e.Claims() { // a nonce may look like a secret, and claims are told apart by it
			encode = wire.Encode
		}
		data, err := encode(e)
		if err != nil {
			return nil, err
		}
		data, blobs, err := w.log.sealedForm(data)
		if err != nil {
			return nil, err
		}
		unit[i] = &frame{
			run: w.run, node: w.node, epoch: w.epoch, seq: e.Seq,
			subject: w.log.names.Event(w.run, w.node, string(e.Type().Kind())),
			data:    data, blobs: blobs, more: i+1 < len(events), w: w.writerState,
		}
	}
	return unit, nil
}

// countDropped counts a delta that there was no room for.
func (w *Writer) countDropped() {
	if w.dropped == 0 {
		w.since = time.Now()
	}
	w.dropped++
}

// reportDropped queues a storage_failure event if deltas were dropped and
// storage is back. The caller holds turn.
func (w *Writer) reportDropped(ctx context.Context) error {
	if w.dropped == 0 || w.lane.isFailing() {
		return nil
	}
	unit, err := w.encodeFrames([]*wire.Event{{Payload: &wire.StorageFailure{
		Message: "storage was away and the spool was full: deltas were dropped, the blocks they belong to follow whole",
		Dropped: w.dropped, SinceMs: w.since.UnixMilli(), UntilMs: time.Now().UnixMilli(),
	}}}, true)
	if err != nil {
		return err
	}
	if _, err := w.lane.queueUnit(ctx, unit, false, w.writerState); err != nil {
		return err
	}
	w.next, w.dropped = w.next+1, 0
	return nil
}

func (w *Writer) waitStored(ctx context.Context, verb string, done <-chan appendOutcome) (uint64, error) {
	select {
	case o := <-done:
		if o.err != nil {
			return 0, w.writeError(verb, o.err)
		}
		return o.pos, nil
	case <-ctx.Done():
	}
	select { // both may have come true
	case o := <-done:
		if o.err == nil {
			return o.pos, nil
		}
		return 0, w.writeError(verb, o.err)
	default:
	}
	err := fmt.Errorf("%w: %w", ErrAmbiguous, ctx.Err())
	if why := w.lane.storeError(); why != nil {
		err = fmt.Errorf("%w (%w)", err, why)
	}
	return 0, w.writeError(verb, err)
}

func (w *Writer) writeError(verb string, err error) error {
	return fmt.Errorf("eventlog: %s %s/%s: %w", verb, w.run, w.node, err)
}
