package lease

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// maxBatch is the number of leases renewed in one write: half of what a server
// takes by default, which keeps others from the bucket for less long.
const maxBatch = 500

// few is the number of leases which, if their batch is refused, are rather asked
// for one by one than in halves.
const few = 16

// errUnanswered says that a batch may have been stored, or not.
var errUnanswered = errors.New("lease: no answer to a batch")

// renewHeld renews leases in batches, those first that expire first: what isn't
// renewed in this turn, for want of time, is in the next.
func (h *Holder) renewHeld(ctx context.Context, leases []*Lease) {
	ctx, cancel := context.WithTimeout(ctx, h.ttl/3)
	defer cancel()
	slices.SortFunc(leases, func(a, b *Lease) int { return a.expiry().Compare(b.expiry()) })
	for some := range slices.Chunk(leases, maxBatch) {
		h.renewSome(ctx, some)
	}
}

// renewSome renews up to [maxBatch] leases: one by one in a bucket that isn't synced, else in a batch. A lost lease, or one with a key that
// changed unseen, has the whole batch refused; it is found by halving. Those that
// aren't renewed by a batch are asked for one by one, which tells what became of them.
func (h *Holder) renewSome(ctx context.Context, leases []*Lease) {
	if len(leases) < 2 || !h.atomic {
		renewEach(ctx, leases)
		return
	}
	err := h.renewAtOnce(ctx, leases, false)
	if isConflict(err) && slices.ContainsFunc(leases, (*Lease).isExpired) {
		err = h.renewAtOnce(ctx, leases, true)
	}
	_, refused := errors.AsType[*jetstream.APIError](err)
	switch {
	case isConflict(err) && len(leases) > few:
		half := len(leases) / 2
		h.renewSome(ctx, leases[:half])
		h.renewSome(ctx, leases[half:])
	case refused:
		renewEach(ctx, leases)
	}
}

// isConflict reports whether a key of a batch wasn't as it was expected to be.
func isConflict(err error) bool {
	e, refused := errors.AsType[*jetstream.APIError](err)
	return refused && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func renewEach(ctx context.Context, leases []*Lease) {
	var wg sync.WaitGroup
	for _, l := range leases {
		wg.Go(func() { l.renew(ctx) })
	}
	wg.Wait()
}

// renewAtOnce renews leases, all or none, but for those that are being released.
// gone says that the keys of expired ones are taken to have expired too, and are
// created.
func (h *Holder) renewAtOnce(ctx context.Context, leases []*Lease, gone bool) error {
	ours := make([]*Lease, 0, len(leases))
	for _, l := range leases {
		select {
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
			if !l.isOver() {
				ours = append(ours, l)
			}
		default:
		}
	}
	if len(ours) == 0 {
		return nil
	}
	asked := currentMoment()
	expected := make([]uint64, len(ours))
	for i, l := range ours {
		if !gone || !l.isExpired() {
			expected[i] = h.lastKnown(l)
		}
	}
	first, err := h.storeBatch(ctx, ours, expected)
	if err != nil {
		return err
	}
	for i, l := range ours {
		l.noteRenewal(first+uint64(i), asked)
	}
	return nil
}

// lastKnown returns the revision of a lease's key: that which the server has told
// us, or which has been seen since with our value, if that answer was lost.
func (h *Holder) lastKnown(l *Lease) uint64 {
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.seen[l.key]; !s.released && s.info.Nonce == l.nonce {
		return max(revision, s.revision)
	}
	return revision
}

// storeBatch writes leases, each where its key has the revision expected, 0 for
// nowhere, all or none. It returns the revision of the first; those of the others
// follow.
func (h *Holder) storeBatch(ctx context.Context, leases []*Lease, expected []uint64) (first uint64, err error) {
	nc := h.js.Conn()
	if !nc.IsConnected() { // what is sent now would be sent later
		return 0, fmt.Errorf("%w: not connected", errUnanswered)
	}
	id := rand.Text()
	var answer *nats.Msg
	for i, l := range leases {
		m := &nats.Msg{Subject: "$KV." + h.kv.Bucket() + "." + l.key, Data: l.value, Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expected[i], 10)},
			"Nats-Batch-Id":                     {id},
			"Nats-Batch-Sequence":               {strconv.Itoa(i + 1)},
		}}
		if i < len(leases)-1 {
			err = nc.PublishMsg(m)
		} else {
			m.Header["Nats-Batch-Commit"] = []string{"1"}
			answer, err = nc.RequestMsgWithContext(ctx, m)
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errUnanswered, err)
		}
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
		Count int                 `json:"count"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	if ack.Count != len(leases) {
		return 0, fmt.Errorf("%w: %d of %d leases acknowledged", errUnanswered, ack.Count, len(leases))
	}
	return ack.Seq - uint64(len(leases)) + 1, nil
}
