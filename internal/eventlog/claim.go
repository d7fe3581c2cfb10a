package eventlog

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
)

// Claim says which process claims a node and what it knows of the node.
type Claim struct {
	Runner string // id of the claiming process; required
	ExecID string // the execution it is for, if any
	Fence  string // see [wire.NodeClaimed]
	// Process is what may act under the claim from then on, as long as its session lives; "": nothing.
	Process string

	// MinEpoch is the least epoch to claim. The epoch is one more than the last claimed one if that is larger.
	MinEpoch uint64

	// AtSeq is the last seq of the node that the claimant knows of: the claim goes on
	// behind it also if the events have aged out of the stream, or a stranger repeats
	// an older one. 0: a stream without events of the node means that it is new.
	AtSeq uint64

	// Last is the last message of the node as the leader had it when the caller judged that the node is free, the zero message
	// if there was none. The claim follows that message or fails with [ErrFenced]. nil: it follows whatever is the last.
	Last *Message
}

// Claim makes the caller the writer of a node: it stores run:claimed (on node
// [wire.RunNode]) or node:claimed, and from then on the log refuses the former
// writer. It first waits until what this process found in its spool is stored.
//
// It fails with [ErrFenced] if another writer claimed the node at the same time.
// While the server is away it tries on until ctx ends; the claim may then be
// stored or not, and counts for nothing.
func (l *Log) Claim(ctx context.Context, run, node string, c Claim) (*Writer, error) {
	w, err := l.claimNode(ctx, run, node, c)
	if err != nil {
		return nil, fmt.Errorf("eventlog: claim %s/%s: %w", run, node, err)
	}
	return w, nil
}

func (l *Log) claimNode(ctx context.Context, run, node string, c Claim) (*Writer, error) {
	a, err := l.newClaimant(ctx, run, node, c)
	if err != nil {
		return nil, err
	}
	for wait := newPauses(l.o.MaxBackoff); ; {
		w, err := a.tryClaim(ctx)
		if err == nil || errors.Is(err, ErrFenced) || errors.Is(err, seal.ErrNoKey) || errors.As(err, new(*wire.FieldError)) {
			return w, err
		}
		if e := wait.pauseNext(ctx); e != nil {
			return nil, fmt.Errorf("%w (%w)", e, err)
		}
	}
}

// newClaimant waits until what this process found in its spool is stored.
func (l *Log) newClaimant(ctx context.Context, run, node string, c Claim) (*claimant, error) {
	select {
	case <-l.drained:
	case <-ctx.Done():
		return nil, fmt.Errorf("the spool is being stored: %w", ctx.Err())
	}
	return &claimant{log: l, run: run, node: node, c: c, nonce: rand.Text(), expect: l.names.NodeEvents(run, node)}, nil
}

// claimant is a claim under way.
type claimant struct {
	log               *Log
	run, node, expect string
	c                 Claim
	nonce             string // the same in all attempts

	// The last attempt. It is repeated as it is until the node changes: the answer
	// to it may have been lost.
	data       []byte
	after      writerTail
	seq, epoch uint64
}

// writerTail is how a node ends.
type writerTail struct {
	pos   uint64 // 0: the node has no events
	seq   uint64
	epoch uint64 // the last one claimed
}

func (a *claimant) tryClaim(ctx context.Context) (*Writer, error) {
	last, err := a.lastMessage(ctx)
	if err != nil {
		return nil, err
	}
	if a.data != nil && bytes.Equal(last.Data, a.data) {
		return a.makeWriter(last.Pos), nil // the acknowledgement was lost
	}
	if err := a.followTail(ctx, last); err != nil {
		return nil, err
	}
	pos, err := a.publishClaim(ctx)
	if err != nil {
		return nil, err
	}
	return a.makeWriter(pos), nil
}

// lastMessage returns the last message of the node: in the first attempt the one that the caller knows.
func (a *claimant) lastMessage(ctx context.Context) (last Message, err error) {
	if a.c.Last != nil && a.data == nil {
		return *a.c.Last, nil
	}
	if last, err = a.log.lastBy(ctx, a.expect); errors.Is(err, errNotFound) {
		return Message{}, nil
	}
	return last, err
}

func (a *claimant) makeWriter(pos uint64) *Writer {
	a.log.noteStored(pos)
	return newWriter(a.log, a.log.laneOf(a.run), a.run, a.node, a.epoch, a.seq, pos)
}

// followTail prepares the claim that follows the node's last event.
func (a *claimant) followTail(ctx context.Context, last Message) error {
	if a.data != nil && last.Pos == a.after.pos {
		return nil
	}
	t, err := a.log.nodeTail(ctx, a.run, a.node, last)
	if err != nil {
		return err
	}
	switch {
	case a.data == nil || t.pos < a.after.pos:
	case t.epoch >= a.epoch:
		return fmt.Errorf("%w: epoch %d was claimed at the same time", ErrFenced, t.epoch)
	case a.c.Last != nil:
		return fmt.Errorf("%w: its writer has got on", ErrFenced)
	}
	if a.data != nil && t.pos < a.after.pos {
		return fmt.Errorf("%w: the answer is out of date", errUnanswered)
	}
	return a.prepareClaim(t)
}

func (a *claimant) prepareClaim(t writerTail) error {
	e := a.claimEvent(t)
	data, err := wire.Encode(e)
	if err != nil {
		return err
	}
	a.data, a.after, a.seq, a.epoch = data, t, e.Seq, e.Epoch
	return nil
}

// claimEvent returns the claim that follows a tail.
func (a *claimant) claimEvent(t writerTail) *wire.Event {
	var atSeq uint64
	if t.pos == 0 {
		atSeq = a.c.AtSeq
	}
	e := &wire.Event{
		RunID: a.run, NodeID: a.node, ExecID: a.c.ExecID,
		Seq: max(t.seq, a.c.AtSeq) + 1, Epoch: max(t.epoch+1, a.c.MinEpoch),
		Timestamp: time.Now().UnixMilli(),
	}
	if a.node == wire.RunNode {
		e.Payload = &wire.RunClaimed{Runner: a.c.Runner, Nonce: a.nonce, AtSeq: atSeq, Process: a.c.Process}
	} else {
		e.Payload = &wire.NodeClaimed{Runner: a.c.Runner, Nonce: a.nonce, AtSeq: atSeq, Fence: a.c.Fence, Process: a.c.Process}
	}
	return e
}

func (a *claimant) publishClaim(ctx context.Context) (pos uint64, err error) {
	if !a.log.nc.IsConnected() {
		return 0, errDisconnected
	}
	wait, cancel := context.WithTimeout(ctx, a.log.o.AckWait)
	defer cancel()
	m := nats.NewMsg(a.log.names.Event(a.run, a.node, string(wire.KindFlow)))
	m.Data = a.data
	m.Header[headerLast] = []string{strconv.FormatUint(a.after.pos, 10)}
	m.Header[headerSubject] = []string{a.expect}
	if parent := tracing.ParentOf(ctx); parent != "" {
		m.Header[tracing.Header] = []string{parent}
	}
	answer, err := a.log.nc.RequestMsgWithContext(wait, m)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	ack, ok, err := parseAck(answer)
	if err == nil && !ok {
		err = errUnanswered
	}
	return ack.Seq, err
}

// nodeTail says how a node ends, given its last message; the zero message if it has
// none.
func (l *Log) nodeTail(ctx context.Context, run, node string, last Message) (writerTail, error) {
	if last.Pos == 0 {
		return writerTail{}, nil
	}
	e := l.storedEntry(last)
	switch {
	case e.Event != nil:
		return writerTail{last.Pos, e.Event.Seq, e.Event.Epoch}, nil
	case errors.Is(e.Err, seal.ErrNoKey):
		return writerTail{}, e.Err
	}
	// The last message isn't an event. The node's own events say where the node
	// was.
	t := writerTail{pos: last.Pos}
	for e, err := range l.Read(ctx, Query{Run: run, Node: node, To: last.Pos}) {
		if err != nil {
			return writerTail{}, err
		}
		if e.Event != nil {
			t.seq, t.epoch = max(t.seq, e.Event.Seq), max(t.epoch, e.Event.Epoch)
		}
	}
	return t, nil
}

// Last returns the last event of a node, as the leader of the stream has it, and
// whether there is one. It tries until ctx ends.
func (l *Log) Last(ctx context.Context, run, node string) (Entry, bool, error) {
	m, found, err := l.LastMessage(ctx, run, node)
	if err != nil || !found {
		return Entry{}, false, err
	}
	return l.storedEntry(m), true, nil
}

// LastMessage is [Log.Last] as it is stored.
func (l *Log) LastMessage(ctx context.Context, run, node string) (m Message, found bool, err error) {
	err = l.retryRead(ctx, func() (err error) {
		if m, err = l.lastBy(ctx, l.names.NodeEvents(run, node)); errors.Is(err, errNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return Message{}, false, fmt.Errorf("eventlog: last of %s/%s: %w", run, node, err)
	}
	return m, m.Pos > 0, nil
}

// Anchor stores a claim of the writer's own epoch: so that the node doesn't age out of the stream while its run goes on, to
// prove that no other claim stands behind the writer's own, and, with no process in it, to give the node back.
func (w *Writer) Anchor(ctx context.Context, runner, process string) (pos uint64, err error) {
	var p wire.Payload = &wire.NodeClaimed{Runner: runner, Nonce: rand.Text(), Process: process}
	if w.node == wire.RunNode {
		p = &wire.RunClaimed{Runner: runner, Nonce: rand.Text(), Process: process}
	}
	return w.Append(ctx, &wire.Event{Payload: p})
}

// Begin makes the caller the writer of a run of which the log has nothing, as [Log.Claim] does, and appends events behind
// the claim: what the claim alone would be followed by is one append less, and one sync. Together says that the events
// are stored together or not at all, else each may be the last that is stored. It fails with [ErrFenced] if the log has
// something of the run's node meanwhile; then none of this is stored.
func (l *Log) Begin(ctx context.Context, run string, c Claim, events []*wire.Event, together bool) (*Writer, error) {
	fail := func(err error) (*Writer, error) { return nil, fmt.Errorf("eventlog: begin %s: %w", run, err) }
	a, err := l.newClaimant(ctx, run, wire.RunNode, c)
	if err != nil {
		return fail(err)
	}
	// In one batch the server would take two that follow nothing.
	if _, another := l.beginning.LoadOrStore(run, true); another {
		return fail(fmt.Errorf("%w: it is about to be begun by this process", ErrFenced))
	}
	claim := a.claimEvent(writerTail{})
	w := newWriter(l, l.laneOf(run), run, wire.RunNode, claim.Epoch, claim.Seq-1, 0)
	all := append([]*wire.Event{claim}, events...)
	_, err = w.appendEvents(ctx, all, together || len(all) > smallBatch)
	if !errors.Is(err, ErrAmbiguous) { // else it may yet be stored
		l.beginning.Delete(run)
	}
	if err != nil {
		return fail(err)
	}
	return w, nil
}
