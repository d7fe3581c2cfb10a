package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// What an atomic batch may hold. For each the server sets a store up on disk and syncs, whatever its size. Bytes are bounded since
// it keeps a whole batch in memory.
const (
	MaxBatch   = 4000 // events; a server that takes less, by default 1000, says so, see [Log.lowerBatch]
	batchBytes = 8 << 20
)

// outage is how long storing may fail before it is more than a change of leader:
// the queue goes to disk.
const outage = 500 * time.Millisecond

// lane stores the events of the runs that hash to it, in order, one batch at a
// time: what queues up while a batch is being stored is the next batch.
type lane struct {
	log *Log
	id  int // -1: what was found in the spool
	tag string

	mu      sync.Mutex
	queue   queue
	closing bool
	wake    chan struct{} // one token: the queue or closing changed
	room    chan struct{} // closed when room appears
	err     error         // why storing fails at present
	since   time.Time     // when it began to fail
	warned  bool          // that it does
	refused bool          // that the disk refuses something is told

	// Owned by run.
	inbox      string
	in         chan *nats.Msg // answers to attempts, and news of another leader
	status     chan nats.Status
	attempts   uint64
	alone      bool          // attempts are made without other lanes, until one stores something
	incomplete int           // answers in a row that a batch is
	parent     string        // what says to which span the batch belongs; "": none
	patience   time.Duration // for the answer to an attempt

	// Writers of found frames, and those of them with frames that haven't been
	// compared with the log yet.
	ghosts    map[writerKey]*writerState
	unsettled map[*writerState]bool
}

func newLane(l *Log, id int, tag string) *lane {
	return &lane{
		log: l, id: id, tag: tag,
		wake: make(chan struct{}, 1), room: make(chan struct{}),
		patience: l.o.AckWait,
		ghosts:   map[writerKey]*writerState{}, unsettled: map[*writerState]bool{},
	}
}

// queueUnit queues frames that belong together. Without room it waits, unless
// droppable is set and nothing is being stored at present: then it reports
// false. What the disk refuses it tries again and again. w is the writer that queues them, and waits until it is fenced at most; nil: none does.
func (l *lane) queueUnit(ctx context.Context, unit []*frame, droppable bool, w *writerState) (bool, error) {
	for wait := newPauses(l.log.o.MaxBackoff); ; {
		room, refused, err := l.tryPut(unit, droppable)
		if err != nil || room == nil {
			return err == nil, err
		}
		if droppable && l.isFailing() {
			return false, nil
		}
		again := make(<-chan time.Time) // never
		if refused {
			again = time.After(wait.nextPause())
		}
		var fenced <-chan struct{}
		if w != nil {
			fenced = w.Fenced()
		}
		select {
		case <-room:
		case <-again:
		case <-fenced:
			return false, ErrFenced
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// tryPut queues the unit, or returns what to wait for. refused says that the disk refuses it.
func (l *lane) tryPut(unit []*frame, droppable bool) (room <-chan struct{}, refused bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, false, ErrClosed
	}
	ok, refusal := l.queue.putUnit(unit, droppable)
	l.tellHealth()
	if !ok {
		return l.room, refusal != nil, nil
	}
	l.signalWake()
	return nil, false, nil
}

// wakeWaiters lets callers that wait for room look again. The caller holds mu.
func (l *lane) wakeWaiters() {
	close(l.room)
	l.room = make(chan struct{})
}

func (l *lane) signalWake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// closeQueue makes the lane refuse further frames and end when it is empty.
func (l *lane) closeQueue() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.signalWake()
}

// storeError returns why storing fails at present.
func (l *lane) storeError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lane) isFailing() bool { return l.storeError() != nil }

// tellHealth tells the process's health what the disk refuses at present, if it does. It is called under mu.
func (l *lane) tellHealth() (refused bool) {
	err := l.queue.disk.lastRefusal()
	if err == nil && !l.refused {
		return false
	}
	l.log.o.Health.Set("log: spool of "+l.laneName(), err)
	l.refused = err != nil
	return l.refused
}

// laneName is for people.
func (l *lane) laneName() string {
	if l.id < 0 {
		return "an earlier process"
	}
	return fmt.Sprintf("lane %d", l.id)
}

// batchLen returns how many of the frames make a batch. What was appended
// together is not divided unless it is more than a batch by itself.
func batchLen(frames []*frame, most int) int {
	var n, whole int
	var size int64
	for n < len(frames) && n < most {
		if size += frames[n].byteSize(); n > 0 && size > batchBytes {
			break
		}
		if n++; !frames[n-1].more {
			whole = n
		}
	}
	if whole > 0 {
		return whole
	}
	return n
}

// removeOldest removes the n oldest frames.
func (l *lane) removeOldest(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.resolveOldest(n)
	l.tellHealth()
	l.wakeWaiters()
}

// noteFailure notes that storing fails and, when it has for a while, says so and moves
// the queue to disk.
func (l *lane) noteFailure(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.since = time.Now()
		l.wakeWaiters() // those with deltas needn't wait any longer
	}
	l.err = err
	if time.Since(l.since) < outage {
		return
	}
	if !l.warned {
		l.log.logger.Warn("events can't be stored at present", slog.Int("lane", l.id), slog.Any("error", err))
	}
	l.warned = true
	l.log.o.Health.Set("log: events of "+l.laneName(), err)
	l.queue.disk.retryRefused()
	_ = l.queue.spillWindow() // the disk's refusals are told
	l.tellHealth()
}

// noteSuccess notes that storing works.
func (l *lane) noteSuccess() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
	if l.warned {
		l.log.o.Health.Set("log: events of "+l.laneName(), nil)
		l.log.logger.Info("events are stored again", slog.Int("lane", l.id), slog.Duration("after", time.Since(l.since)))
	}
	l.warned = false
}

// noteStored notes that the event of a writer that is numbered seq is at pos.
func (l *lane) noteStored(w *writerState, seq, pos uint64) {
	l.log.noteStored(pos)
	l.log.metrics.events.Inc()
	w.noteStored(seq, pos)
}
