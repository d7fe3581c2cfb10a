package eventlog

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/metric"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Options are the settings of a [Log]. The zero value of each means its
// default.
type Options struct {
	Names  subjects.Names
	Logger *slog.Logger // default: discard

	// Lanes is the number of batches that may be in flight at once, each of other
	// runs; default 4. Where there is one replica they are stored together. The server allows 50 open batches per stream, those of all
	// processes together.
	Lanes int

	// SpoolDir keeps events while the server is away, across restarts of the
	// process. One process at a time may use it. Default: none; then Enqueue
	// waits when memory is full.
	SpoolDir   string
	SpoolLimit int64 // bytes of the spool, default 1 GiB
	MemLimit   int64 // bytes of events held in memory, default 32 MiB

	// BlobLimit is the size of an encoded event in bytes above which its largest
	// fields go to the object store; default [wire.BlobLimit]. It is lowered to
	// what the server takes.
	BlobLimit int

	// Redact takes secrets out of what writers are given; nil: none.
	Redact *redact.Set

	// Keys encrypt what is written, and open what is read; nil: nothing is encrypted,
	// and reading what is fails with [seal.ErrNoKey].
	Keys *seal.Keys

	// Stamp vouches for the states of runs that are stored on the server: one without its stamp is
	// [seal.ErrForged]. Nil: none is asked for.
	Stamp *seal.Stamp
	// Service sends the dead letters of states that are forged; "": they are only logged.
	Service string

	// Tracer makes spans of batches and of messages; default: none.
	Tracer trace.Tracer

	// Health is told what the disk of the spool refuses. Default: one of its own.
	Health *health.Board

	AckWait    time.Duration // for the first attempt to store a batch, default 2 s; further ones get up to four times as much
	ReadWait   time.Duration // for one answer of the leader, default 1 s
	MaxBackoff time.Duration // between attempts, default 2 s
	DrainWait  time.Duration // for storing what is queued when Run ends, default 5 s
	ShowEvery  time.Duration // how often a durable consumer is set to where its service is at most, default 5 s
}

func (o Options) withDefaults() Options {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Health = cmp.Or(o.Health, health.NewBoard(o.Logger))
	if o.Tracer == nil {
		o.Tracer = tracing.Off()
	}
	o.Lanes = cmp.Or(o.Lanes, 4)
	o.SpoolLimit = cmp.Or(o.SpoolLimit, 1<<30)
	o.MemLimit = cmp.Or(o.MemLimit, 32<<20)
	o.BlobLimit = cmp.Or(o.BlobLimit, wire.BlobLimit)
	o.AckWait = cmp.Or(o.AckWait, 2*time.Second)
	o.ReadWait = cmp.Or(o.ReadWait, time.Second)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, 2*time.Second)
	o.DrainWait = cmp.Or(o.DrainWait, 5*time.Second)
	o.ShowEvery = cmp.Or(o.ShowEvery, 5*time.Second)
	return o
}

// Log is the log of events. It may be used by many goroutines. Reading needs
// nothing but [Open]; writing needs [Log.Run]. It is a [prometheus.Collector].
type Log struct {
	leader

	js          jetstream.JetStream
	names       subjects.Names
	o           Options
	logger      *slog.Logger
	incarnation string
	maxMsgSize  int  // of the stream; -1: none
	replicas    int  // of the stream
	direct      bool // any of them may be read
	traced      bool // there is a tracer

	spools    *spools // nil without SpoolDir
	lanes     []*lane
	joint     joint        // of lanes, where there is one replica
	batch     atomic.Int64 // events that the server takes in a batch, as far as is known
	found     *lane        // drains what an earlier process left; nil if there is nothing
	dead      *lane        // publishes dead letters
	blobs     *blobStore
	drained   chan struct{} // closed when nothing found is left
	stored    atomic.Uint64 // the last position that this process knows to be stored
	metrics   logMetrics
	forged    sync.Map // states that were told to be, by [forgery]
	buckets   sync.Map // those that were opened, by name
	beginning sync.Map // runs that are about to be begun, see [Log.Begin]
}

// Open returns the log on a connection. It fails if the stream of events isn't
// there, or if another process uses the spool.
//
// The connection should be made with nats.ReconnectBufSize(-1); messages that it
// buffers instead are sent late and refused.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Log, error) {
	traced := o.Tracer != nil
	o = o.withDefaults()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: open: %w", err)
	}
	l := &Log{leader: leader{nc, o.ReadWait, o.MaxBackoff, &waitNotes{logger: o.Logger}}, js: js, names: o.Names, o: o, logger: o.Logger, traced: traced, drained: make(chan struct{})}
	b, err := l.eventBounds(ctx)
	if err != nil {
		return nil, fmt.Errorf("eventlog: open %s: %w", o.Names.EventsStream(), unled{err})
	}
	if b.incarnation == "" {
		return nil, fmt.Errorf("eventlog: open %s: %w", o.Names.EventsStream(), topology.ErrNoIncarnation)
	}
	l.incarnation, l.maxMsgSize, l.replicas, l.direct = b.incarnation, b.maxMsgSize, b.replicas, b.allowDirect
	l.batch.Store(MaxBatch)
	l.blobs, l.metrics = newBlobStore(l.leader, js, o.Names.BlobsBucket(), o.AckWait), newMetrics()
	l.measureQueues()
	if err := l.openLanes(); err != nil {
		return nil, fmt.Errorf("eventlog: open: %w", err)
	}
	return l, nil
}

func (l *Log) openLanes() error {
	if l.o.SpoolDir != "" {
		var err error
		if l.spools, err = openSpools(l.o.SpoolDir, l.incarnation); err != nil {
			return err
		}
	}
	prefix := rand.Text()[:8]
	share := int64(l.o.Lanes + 1)
	for i := range l.o.Lanes + 1 {
		lane := newLane(l, i, fmt.Sprintf("%s%d-", prefix, i))
		lane.queue = newQueue(l.spools.laneSpool(i, l.o.SpoolLimit/share), l.o.MemLimit/share)
		l.lanes = append(l.lanes, lane)
	}
	l.dead, l.lanes = l.lanes[l.o.Lanes], l.lanes[:l.o.Lanes]
	l.dead.queue.durable = true // the caller forgets a frame that it hands over
	if left := l.spools.leftoverSpool(); left != nil {
		l.found = newLane(l, -1, prefix+"f-")
		l.found.queue = newQueue(left, l.o.MemLimit/share)
	} else {
		close(l.drained)
	}
	return nil
}

// Conn returns the connection.
func (l *Log) Conn() *nats.Conn { return l.nc }

// JetStream returns the JetStream context of the connection.
func (l *Log) JetStream() jetstream.JetStream { return l.js }

// Names returns the names of streams and subjects.
func (l *Log) Names() subjects.Names { return l.names }

// Incarnation returns the incarnation of the stream that was opened.
func (l *Log) Incarnation() string { return l.incarnation }

// Run stores what writers append until ctx ends. It begins with what an earlier
// process left in the spool; [Log.Claim] waits for that. When ctx ends, writers
// get [ErrClosed], and Run returns when everything queued is stored or
// Options.DrainWait is over; what is left by then stays in the spool for the
// next process. Without a spool it is gone: Run then returns [ErrLost]. Run may
// be called once.
func (l *Log) Run(ctx context.Context) error {
	defer l.spools.close()
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, len(l.lanes)+2)
	var lanes, dead sync.WaitGroup
	for _, lane := range l.lanes {
		lanes.Go(func() { ended <- lane.storeQueued(work) })
	}
	if l.found != nil {
		lanes.Go(func() { ended <- l.drainFound(work) })
	}
	dead.Go(func() { ended <- l.dead.storeQueued(work) })

	err := l.untilOver(ctx, ended)
	deadline := time.AfterFunc(l.o.DrainWait, stop)
	defer deadline.Stop()
	for _, lane := range l.lanes {
		lane.closeQueue()
	}
	lanes.Wait()
	l.dead.closeQueue()
	dead.Wait()
	close(ended)
	for e := range ended {
		if !errors.Is(err, e) { // a closed connection ends all of them
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return fmt.Errorf("eventlog: %w", err)
	}
	return nil
}

// untilOver waits until ctx ends or a lane fails.
func (l *Log) untilOver(ctx context.Context, ended <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended: // nil: the spool that was found is empty
			if err != nil {
				return err
			}
		}
	}
}

// drainFound stores what an earlier process left, before any node is claimed.
func (l *Log) drainFound(ctx context.Context) error {
	l.found.closeQueue()
	if err := l.found.storeQueued(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	l.spools.removeEmptyDirs()
	close(l.drained)
	return nil
}

// laneOf returns the lane of a run's events.
func (l *Log) laneOf(run string) *lane {
	h := fnv.New32a()
	h.Write([]byte(run))
	return l.lanes[h.Sum32()%uint32(len(l.lanes))]
}

func (l *Log) noteStored(pos uint64) {
	for {
		last := l.stored.Load()
		if pos <= last || l.stored.CompareAndSwap(last, pos) {
			return
		}
	}
}

// Health returns nil if events are being stored as they come, else why they
// aren't: [ErrFull], for one.
func (l *Log) Health() error {
	for _, lane := range l.lanes {
		if err := lane.storeError(); err != nil {
			return err
		}
	}
	return nil
}

// Bounds returns the positions of the first and the last event of the stream, as
// its leader knows them. A position before first has aged out. A server that is away
// is asked again until ctx ends, as by [Log.Read].
func (l *Log) Bounds(ctx context.Context) (first, last uint64, err error) {
	err = l.retryRead(ctx, func() error {
		b, err := l.eventBounds(ctx)
		first, last = b.first, b.last
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("eventlog: bounds: %w", err)
	}
	return first, last, nil
}

// FirstTime returns when the first event that the stream has was stored; now, if there is none.
func (l *Log) FirstTime(ctx context.Context) (time.Time, error) {
	s, err := l.js.Stream(ctx, l.names.EventsStream())
	if err != nil {
		return time.Time{}, fmt.Errorf("eventlog: first event: %w", err)
	}
	if i := s.CachedInfo(); i.State.Msgs > 0 {
		return i.State.FirstTime, nil
	}
	return time.Now(), nil
}

// LastOf returns the position of the last event of a run, as the leader of the stream has it; 0: there is none.
func (l *Log) LastOf(ctx context.Context, run string) (pos uint64, err error) {
	err = l.retryRead(ctx, func() error {
		m, err := l.lastBy(ctx, l.names.RunEvents(run))
		if errors.Is(err, errNotFound) {
			return nil
		}
		pos = m.Pos
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("eventlog: last of %s: %w", run, err)
	}
	return pos, nil
}

// BoundsOf is [Log.Bounds] of any stream.
func (l *Log) BoundsOf(ctx context.Context, stream string) (first, last uint64, err error) {
	b, err := l.boundsOf(ctx, stream)
	if err != nil {
		return 0, 0, fmt.Errorf("eventlog: bounds of %s: %w", stream, err)
	}
	return b.first, b.last, nil
}

// Fill returns which part of the stream's bytes is in use, 0 to 1, and 0 if it
// has no limit, and how many bytes are left. The last fifth is for runs that have begun and the last tenth
// for claims and terminal events: a full stream refuses those too.
func (l *Log) Fill(ctx context.Context) (part float64, left uint64, err error) {
	b, err := l.eventBounds(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("eventlog: fill: %w", err)
	}
	if b.maxBytes <= 0 {
		return 0, math.MaxUint64, nil
	}
	limit := uint64(b.maxBytes)
	return float64(b.bytes) / float64(limit), limit - min(b.bytes, limit), nil
}

// measureQueues has the metrics tell what waits in the lanes.
func (l *Log) measureQueues() {
	l.metrics.Read("waiting_events", "Events that wait to be stored; those that an earlier process left count once they are read.", l.sumQueues(func(q *queue) float64 { return float64(q.frameCount()) }))
	l.metrics.Read("waiting_bytes", "Size of the events that wait to be stored.", l.sumQueues(func(q *queue) float64 { return float64(q.heldBytes()) }))
	l.metrics.Read("spool_bytes", "Size of the events that wait on disk, since the server is away or slow.", l.sumQueues(func(q *queue) float64 {
		if !q.spooling {
			return 0
		}
		return float64(q.disk.size)
	}))
	l.metrics.Read("failing", "1 while events can't be stored, else 0.", func() float64 {
		if l.Health() != nil {
			return 1
		}
		return 0
	})
}

// Describe implements [prometheus.Collector].
func (l *Log) Describe(ch chan<- *prometheus.Desc) { l.metrics.Describe(ch) }

// Collect implements [prometheus.Collector].
func (l *Log) Collect(ch chan<- prometheus.Metric) { l.metrics.Collect(ch) }

// sumQueues adds up what the queues of events say.
func (l *Log) sumQueues(of func(*queue) float64) func() float64 {
	return func() (total float64) {
		for _, lane := range l.eventLanes() {
			lane.mu.Lock()
			total += of(&lane.queue)
			lane.mu.Unlock()
		}
		return total
	}
}

// eventLanes are the lanes that store events.
func (l *Log) eventLanes() []*lane {
	if l.found == nil {
		return l.lanes
	}
	return append([]*lane{l.found}, l.lanes...)
}

// eventBounds asks the leader for the state of the stream of events.
func (l *Log) eventBounds(ctx context.Context) (bounds, error) {
	return l.boundsOf(ctx, l.names.EventsStream())
}

// leaderSubject is the subject on which the server tells that the stream has another
// leader. The answers that the former leader still owed are lost.
func (l *Log) leaderSubject() string {
	return "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + l.names.EventsStream()
}

// logMetrics are what a log counts, as wake_log_….
type logMetrics struct {
	*metric.Set

	events, batches, resent, refused, fenced, void prometheus.Counter
	took                                           prometheus.Histogram
	letters                                        *prometheus.CounterVec
}

func newMetrics() logMetrics {
	s := metric.New("log")
	return logMetrics{
		Set:     s,
		events:  s.Counter("events_total", "Events that were stored, but for claims of runs and nodes."),
		batches: s.Counter("batches_total", "Batches of events that were stored."),
		took:    s.Seconds("store_seconds", "Time to store a batch, with all attempts."),
		resent:  s.Counter("resends_total", "Further attempts to store a batch, or what was left of it."),
		refused: s.Counter("refused_total", "Attempts that the server refused."),
		fenced:  s.Counter("fenced_total", "Writers that found that their node has another one."),
		void:    s.Counter("void_total", "Messages on a node's subject that are no event of its writer, nor a claim: another client may publish events."),
		letters: s.Counters("dead_letters_total", "What could not be used and was set aside, by the service that found it.",
			"source", DeadService, "runner", "recorder", "snapshotter", "alerter"),
	}
}
