package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"wake/internal/tracing"
)

// What an atomic batch may hold. The server takes 1000 messages; bytes are
// bounded since it keeps a whole batch in memory.
const (
	batchEvents = 1000
	batchBytes  = 8 << 20
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

	// Owned by run.
	inbox      string
	in         chan *nats.Msg // answers to attempts, and news of another leader
	status     chan nats.Status
	attempts   uint64
	incomplete int           // answers in a row that a batch is
	parent     string        // what says to which span the batch belongs; "": none
	maxBatch   int           // events that the server takes in a batch
	patience   time.Duration // for the answer to an attempt

	// Writers of found frames, and those of them whose frames haven't been compared
	// with the log yet.
	ghosts    map[writerKey]*Writer
	unsettled map[*Writer]bool
}

func newLane(l *Log, id int, tag string) *lane {
	return &lane{
		log: l, id: id, tag: tag,
		wake: make(chan struct{}, 1), room: make(chan struct{}),
		maxBatch: batchEvents, patience: l.o.AckWait,
		ghosts: map[writerKey]*Writer{}, unsettled: map[*Writer]bool{},
	}
}

// put queues frames that belong together. Without room it waits, unless
// droppable is set and nothing is being stored at present: then it reports
// false.
func (l *lane) put(ctx context.Context, unit []*frame, droppable bool, stop <-chan struct{}) (bool, error) {
	for {
		room, drop, err := l.tryPut(unit, droppable)
		if err != nil || room == nil {
			return err == nil, err
		}
		if drop {
			return false, nil
		}
		select {
		case <-room:
		case <-stop:
			return false, ErrFenced
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// tryPut queues the unit, or returns what to wait for and whether not to.
func (l *lane) tryPut(unit []*frame, droppable bool) (room <-chan struct{}, drop bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, false, ErrClosed
	}
	ok, err := l.queue.put(unit, droppable)
	if err != nil {
		l.log.logger.Error("spool can't be written", slog.Int("lane", l.id), slog.Any("error", err))
	}
	if !ok {
		return l.room, droppable && l.err != nil, nil
	}
	l.signal()
	return nil, false, nil
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close makes the lane refuse further frames and end when it is empty.
func (l *lane) close() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.signal()
}

// trouble returns why storing fails at present.
func (l *lane) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lane) fails() bool { return l.trouble() != nil }

// run stores what is queued until the lane is closed and empty, or ctx ends.
func (l *lane) run(ctx context.Context) error {
	l.in = make(chan *nats.Msg, lettersAtOnce+16)
	l.inbox = l.log.nc.NewInbox()
	subjects := []string{l.inbox + ".*", l.log.elected()}
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
		taken, err := l.take(ctx)
		if len(taken) == 0 {
			return l.end(err)
		}
		begun := time.Now()
		span := l.begin(ctx, taken, begun)
		err = l.store(ctx, taken)
		tracing.Fail(span, err)
		span.End()
		l.parent = ""
		if err != nil {
			return l.end(err)
		}
		if l != l.log.dead {
			l.log.metrics.batches.Inc()
			l.log.metrics.took.Observe(time.Since(begun).Seconds())
		}
		if err := l.done(len(taken)); err != nil {
			return l.end(err)
		}
	}
}

// take waits for frames and returns as many as a batch may hold, without
// removing them. It returns none when the lane is closed and empty.
func (l *lane) take(ctx context.Context) ([]*frame, error) {
	for {
		taken, over, err := l.tryTake()
		if err != nil || over || len(taken) > 0 {
			return taken, err
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *lane) tryTake() (taken []*frame, over bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.queue.fill(); err != nil {
		return nil, false, fmt.Errorf("read the spool: %w", err)
	}
	n := batchLen(l.queue.window, l.maxBatch)
	return l.queue.window[:n:n], l.closing && l.queue.empty(), nil
}

// batchLen returns how many of the frames make a batch. What was appended
// together is not divided unless it is more than a batch by itself.
func batchLen(frames []*frame, most int) int {
	var n, whole int
	var size int64
	for n < len(frames) && n < most {
		if size += frames[n].size(); n > 0 && size > batchBytes {
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

// done removes the n oldest frames.
func (l *lane) done(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.queue.resolve(n)
	close(l.room)
	l.room = make(chan struct{})
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// failed notes that storing fails and, when it has for a while, says so and moves
// the queue to disk.
func (l *lane) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.since = time.Now()
	}
	l.err = err
	if time.Since(l.since) < outage {
		return
	}
	if !l.warned {
		l.log.logger.Warn("events can't be stored at present", slog.Int("lane", l.id), slog.Any("error", err))
	}
	l.warned = true
	if err := l.queue.spill(); err != nil {
		l.log.logger.Error("spool can't be written", slog.Int("lane", l.id), slog.Any("error", err))
	}
}

// stores notes that storing works.
func (l *lane) stores() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
	if l.warned {
		l.log.logger.Info("events are stored again", slog.Int("lane", l.id), slog.Duration("after", time.Since(l.since)))
	}
	l.warned = false
}

// end leaves what is queued to the next process and tells those who wait.
func (l *lane) end(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	close(l.room)
	l.room = make(chan struct{})
	if errors.Is(cause, context.Canceled) {
		cause = nil
	}
	left := len(l.queue.window)
	for _, f := range l.queue.window {
		if f.w != nil {
			f.w.release(ErrClosed)
		}
	}
	for _, w := range l.queue.writers {
		w.release(ErrClosed)
	}
	if l.queue.disk == nil {
		if left > 0 {
			return errors.Join(cause, fmt.Errorf("%w: %d", ErrLost, left))
		}
		return cause
	}
	return errors.Join(cause, l.queue.spill(), l.queue.disk.seal())
}
