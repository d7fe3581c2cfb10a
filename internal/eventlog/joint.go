package eventlog

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

// joint has lanes store together what each of them is about to store. A single server takes batch after batch, and sets a store up on disk for
// each: what comes while it has one is the next one, whatever lanes it is of. One lane at a time publishes, for all that wait by then, unless
// that is more than half a batch: then the next one publishes beside it.
type joint struct {
	mu      sync.Mutex
	busy    bool     // a lane publishes, and no other may
	waiting []*share // in the order in which they came
}

// share is what a lane is about to store.
type share struct {
	frames []*frame
	alone  bool          // its lane publishes it without those of others
	over   chan error    // has the outcome, once another lane has published it
	turn   chan struct{} // closed when its lane is to publish
}

// storeShare makes an attempt at frames of a lane, together with those of others unless alone is set, and returns the outcome. What the server
// refuses of several lanes, each tries again alone: only the one that it is the fault of learns why.
func (j *joint) storeShare(ctx context.Context, l *lane, frames []*frame) error {
	err := j.attemptShare(ctx, l, &share{frames, l.alone, make(chan error, 1), make(chan struct{})})
	if errors.Is(err, errJoint) {
		l.alone = true
		return errProgress
	}
	l.alone = l.alone && err != nil // until it is clear whose fault it is
	return err
}

// errJoint is what each lane of a batch of several gets if the server refuses that batch.
var errJoint = errors.New("refused together with others")

// attemptShare publishes a share when it is its lane's turn, or waits until another lane has.
func (j *joint) attemptShare(ctx context.Context, l *lane, s *share) error {
	j.mu.Lock()
	if j.busy {
		j.waiting = append(j.waiting, s)
		j.mu.Unlock()
		select {
		case err := <-s.over:
			return err
		case <-s.turn:
		case <-ctx.Done():
			if j.withdrawShare(s) {
				return ctx.Err()
			}
			select { // it is being published, or its turn
			case err := <-s.over:
				return err
			case <-s.turn:
			}
		}
	} else {
		j.busy = true
		j.mu.Unlock()
	}
	runtime.Gosched() // those whose share was just stored come back with what they have by now
	all, others := j.takeShares(s, l.log.maxBatch())
	if len(all) > l.log.maxBatch()/2 { // the server has enough to do until the next batch is there, which has room for little else
		j.passTurn()
	} else {
		defer j.passTurn()
	}
	err := l.attemptFrames(ctx, all)
	if len(others) > 0 && serverCode(err) != 0 {
		err = errJoint
	}
	for _, other := range others {
		other.over <- err
	}
	return err
}

// takeShares returns the frames of a share and of those that wait and make a batch with it, which it takes.
func (j *joint) takeShares(first *share, most int) (all []*frame, others []*share) {
	all, size := slices.Clip(first.frames), sizeOf(first.frames)
	if first.alone {
		return all, nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting = slices.DeleteFunc(j.waiting, func(s *share) bool {
		more := sizeOf(s.frames)
		if s.alone || len(all)+len(s.frames) > most || size+more > batchBytes {
			return false
		}
		all, size, others = append(all, s.frames...), size+more, append(others, s)
		return true
	})
	return all, others
}

// passTurn lets the lane that has waited for longest publish.
func (j *joint) passTurn() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.busy = len(j.waiting) > 0; j.busy {
		close(j.waiting[0].turn)
		j.waiting = j.waiting[1:]
	}
}

// withdrawShare takes a share back. It reports false if that is too late.
func (j *joint) withdrawShare(s *share) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(j.waiting, s)
	if i < 0 {
		return false
	}
	j.waiting = slices.Delete(j.waiting, i, i+1)
	return true
}
