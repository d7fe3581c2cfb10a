package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
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
	if err == nil || ctx.Err() != nil {
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
		l.maxBatch = max(1, len(pending)/2)
		return l.storeHalves(ctx, pending, err)
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

// storeHalves stores a batch that is too large in two.
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
	next := make(map[*Writer]uint64)
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
func (l *lane) canStore(f *frame, next map[*Writer]uint64) bool {
	want, ok := next[f.w]
	if !ok {
		seq, _ := f.w.Last()
		want = seq + 1
	}
	switch {
	case f.w.isFenced():
	case f.broken != "":
		l.fenceWriter(f.w, fmt.Errorf("%w: %s", ErrFenced, f.broken))
	case f.seq != want:
		l.fenceWriter(f.w, fmt.Errorf("%w: the spool lost events from seq %d on", ErrFenced, want))
	}
	next[f.w] = f.seq + 1
	return !f.w.isFenced()
}
