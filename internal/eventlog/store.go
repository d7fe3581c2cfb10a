package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/tracing"
)

// errProgress means that less is left to store than before.
var errProgress = errors.New("progress")

// storeFrames stores frames, however long it takes. When it returns nil, each is
// stored or is with the dead letters. It fails only if ctx ends, the connection
// is closed for good, or the process is ending.
func (l *lane) storeFrames(ctx context.Context, frames []*frame) error {
	wait := newPauses(l.log.o.MaxBackoff)
	for ; ; l.log.metrics.resent.Inc() {
		err := l.tryStore(ctx, frames)
		switch {
		case err == nil:
			l.noteSuccess()
			return nil
		case errors.Is(err, errProgress):
			continue
		case errors.Is(err, ErrClosed):
			return err
		}
		l.noteFailure(err)
		if err := l.pauseRetry(ctx, &wait); err != nil {
			return err
		}
	}
}

// tryStore makes one attempt at what is left of frames and finds out what came of it.
func (l *lane) tryStore(ctx context.Context, frames []*frame) error {
	if l == l.log.dead {
		return l.tryLetters(ctx, frames)
	}
	pending, err := l.pendingFrames(ctx, frames)
	if err != nil || len(pending) == 0 {
		return err
	}
	if err := l.putBlobs(ctx, pending); err != nil {
		return err
	}
	err = l.attemptStore(ctx, pending)
	if err == nil || ctx.Err() != nil || errors.Is(err, errProgress) {
		return err
	}
	if serverCode(err) != 0 {
		l.log.metrics.refused.Inc()
	}
	if pending = slices.DeleteFunc(pending, isStored); len(pending) == 0 {
		return nil
	}
	switch serverCode(err) {
	case codeTooLarge:
		return l.storeOneByOne(ctx, pending, err)
	case codeBatchTooLarge:
		return l.storeBatches(ctx, pending, err)
	case codeStoreFailed: // there may be room for some
		return l.storeHalves(ctx, pending, err)
	}
	if isRefused(err) {
		return err
	}
	progress, unsettled := l.settleFrames(ctx, pending)
	switch {
	case progress:
		return errProgress
	case l.neverComplete(err):
		return l.storeOneByOne(ctx, pending, err)
	case unsettled != nil:
		return fmt.Errorf("%w; then: %w", err, unsettled)
	}
	return err
}

// isRefused reports whether err means that this attempt stored nothing. All else
// leaves open what it did.
func isRefused(err error) bool {
	switch serverCode(err) {
	case codeTooManyOpen, codeStoreFailed, codeNoBatches:
		return true
	default:
		return errors.Is(err, errUnsent)
	}
}

// neverComplete reports whether err is the second answer in a row that events of
// a batch are missing: then it isn't that they got lost at a change of leader,
// but that the server refused one of them; it doesn't say which.
func (l *lane) neverComplete(err error) bool {
	if serverCode(err) != codeIncomplete {
		l.incomplete = 0
		return false
	}
	l.incomplete++
	return l.incomplete%2 == 0
}

// storeOneByOne stores frames one by one, to find the one that will never be stored.
// Its writer can't go on: the next event would leave a gap.
func (l *lane) storeOneByOne(ctx context.Context, pending []*frame, cause error) error {
	if f := pending[0]; len(pending) == 1 && serverCode(cause) == codeTooLarge {
		l.fenceWriter(f.w, fmt.Errorf("%w: seq %d is refused for good: %w", ErrFenced, f.seq, cause))
		return errProgress
	}
	if len(pending) == 1 {
		return cause
	}
	for i := range pending {
		if err := l.storeFrames(ctx, pending[i:i+1]); err != nil {
			return err
		}
	}
	return errProgress
}

// storeBatches stores frames that are more than the server takes in a batch in several, by what it has said since that it takes.
func (l *lane) storeBatches(ctx context.Context, pending []*frame, cause error) error {
	if len(pending) == 1 {
		return cause
	}
	for len(pending) > 0 {
		n := batchLen(pending, l.log.maxBatch())
		if err := l.storeFrames(ctx, pending[:n]); err != nil {
			return err
		}
		pending = pending[n:]
	}
	return errProgress
}

// storeHalves stores in two what there may not be room for as a whole.
func (l *lane) storeHalves(ctx context.Context, pending []*frame, cause error) error {
	if len(pending) == 1 {
		return cause
	}
	half := len(pending) / 2
	if err := l.storeFrames(ctx, pending[:half]); err != nil {
		return err
	}
	if err := l.storeFrames(ctx, pending[half:]); err != nil {
		return err
	}
	return errProgress
}

// putBlobs stores what the events refer to.
func (l *lane) putBlobs(ctx context.Context, frames []*frame) error {
	for _, f := range frames {
		if len(f.blobs) == 0 {
			continue
		}
		if err := l.log.blobs.putMissing(ctx, f.blobs); err != nil {
			return fmt.Errorf("blobs: %w", err)
		}
	}
	return nil
}

// pauseRetry waits before the next attempt, at most until the connection is back.
func (l *lane) pauseRetry(ctx context.Context, wait *pauses) error {
	t := time.NewTimer(wait.nextPause())
	defer t.Stop()
	for !l.log.nc.IsClosed() {
		select {
		case <-t.C:
			return nil
		case s := <-l.status:
			if s == nats.CONNECTED {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nats.ErrConnectionClosed
}

// pendingFrames returns the frames that are still to be stored, and sets aside those
// that never will be.
func (l *lane) pendingFrames(ctx context.Context, frames []*frame) ([]*frame, error) {
	if err := l.adoptFrames(ctx, frames); err != nil {
		return nil, err
	}
	pending := make([]*frame, 0, len(frames))
	next := make(map[*writerState]uint64)
	for _, f := range frames {
		switch {
		case f.gone:
		case f.w == nil:
			if err := l.setAside(ctx, f); err != nil {
				return nil, err
			}
		case isStored(f):
			f.gone = true
		case l.canStore(f, next):
			pending = append(pending, f)
		default:
			if err := l.buryFrame(ctx, f, f.w.Err().Error()); err != nil {
				return nil, err
			}
		}
	}
	return pending, nil
}

func isStored(f *frame) bool {
	seq, _ := f.w.Last()
	return f.seq <= seq
}

// canStore reports whether f may be stored. next has the seq that comes next for
// each writer; a gap, which only a damaged spool can leave, fences the writer,
// since readers rely on there being none.
func (l *lane) canStore(f *frame, next map[*writerState]uint64) bool {
	want, ok := next[f.w]
	if !ok {
		seq, _ := f.w.Last()
		want = seq + 1
	}
	switch {
	case f.w.IsFenced():
	case f.broken != "":
		l.fenceWriter(f.w, fmt.Errorf("%w: %s", ErrFenced, f.broken))
	case f.seq != want:
		l.fenceWriter(f.w, fmt.Errorf("%w: the spool lost events from seq %d on", ErrFenced, want))
	}
	next[f.w] = f.seq + 1
	return !f.w.IsFenced()
}

// storeQueued stores what is queued until the lane is closed and empty, or ctx ends.
func (l *lane) storeQueued(ctx context.Context) error {
	l.in = make(chan *nats.Msg, lettersAtOnce+16)
	l.inbox = l.log.nc.NewInbox()
	subjects := []string{l.inbox + ".*", l.log.leaderSubject()}
	if l == l.log.dead {
		subjects = subjects[:1] // another stream
	}
	for _, subject := range subjects {
		sub, err := l.log.nc.ChanSubscribe(subject, l.in)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		defer sub.Unsubscribe() //nolint:errcheck // the connection is gone then
	}
	l.status = l.log.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED, nats.CONNECTED)
	defer l.log.nc.RemoveStatusListener(l.status)
	for {
		taken, err := l.takeBatch(ctx)
		if len(taken) == 0 {
			return l.leaveQueue(err)
		}
		begun := time.Now()
		span := l.beginSpan(ctx, taken, begun)
		err = l.storeFrames(ctx, taken)
		tracing.Fail(span, err)
		span.End()
		l.parent = ""
		if err != nil {
			return l.leaveQueue(err)
		}
		if l != l.log.dead {
			l.log.metrics.batches.Inc()
			l.log.metrics.took.Observe(time.Since(begun).Seconds())
		}
		l.removeOldest(len(taken))
	}
}

// takeBatch waits for frames and returns as many as a batch may hold, without
// removing them. It returns none when the lane is closed and empty.
func (l *lane) takeBatch(ctx context.Context) ([]*frame, error) {
	for wait := newPauses(l.log.o.MaxBackoff); ; {
		taken, over, refused := l.tryTake()
		if over || len(taken) > 0 {
			return taken, nil
		}
		again := make(<-chan time.Time) // never
		if refused {
			again = time.After(wait.nextPause())
		}
		select {
		case <-l.wake:
		case <-again:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryTake is take without waiting. refused says that the disk refuses something, so that it is
// worth another try.
func (l *lane) tryTake() (taken []*frame, over, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.disk.retryRefused()
	unread := l.queue.fillWindow()
	refused = l.tellHealth()
	if unread != nil {
		return nil, false, true
	}
	n := batchLen(l.queue.window, l.log.maxBatch())
	return l.queue.window[:n:n], l.closing && l.queue.isEmpty(), refused
}

// leaveQueue leaves what is queued to the next process and tells waiting callers.
func (l *lane) leaveQueue(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	l.wakeWaiters()
	if errors.Is(cause, context.Canceled) {
		cause = nil
	}
	left := len(l.queue.window)
	for _, f := range l.queue.window {
		if f.w != nil {
			f.w.releaseWaiters(ErrClosed)
		}
	}
	for _, w := range l.queue.writers {
		w.releaseWaiters(ErrClosed)
	}
	if l.queue.disk == nil {
		if left > 0 {
			return errors.Join(cause, fmt.Errorf("%w: %d", ErrLost, left))
		}
		return cause
	}
	return errors.Join(cause, l.queue.spillWindow(), l.queue.disk.leaveFiles())
}
