// Package projection drives a service that derives one value per run from the
// log, such as a snapshot, and keeps the values in a key-value bucket.
//
// What keeps it right:
//
//   - A value says of which position it is. When a run is touched for the first
//     time, what follows that position in the log is folded in, so a value is
//     right however old the stored one was.
//   - The committed position lies below the first event that isn't saved. It is
//     where the service begins when it starts; what the consumer acknowledged is
//     of no account.
//   - One goroutine owns all values. Saving too soon or twice does no harm, so
//     nothing else has to be in order.
package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/metric"
	"code.wake.dev/wake/internal/rebuild"
	"code.wake.dev/wake/internal/trial"
	"code.wake.dev/wake/pkg/wire"
)

// Effect is what an event did to a value.
type Effect int

// The effects.
const (
	Unchanged Effect = iota
	Changed          // to be saved within Config.Delay
	Urgent           // to be saved at once
)

// Projector is a service. Its methods are called by one goroutine. They return a
// [*Refusal] for what is the event's fault, [ErrConflict], or an error that may
// go away: then they are called again.
type Projector[V any] interface {
	// New returns a fresh value. Saving it fails if one is stored.
	New(runID string) V
	// Load returns what is stored of a run. If nothing is, or nothing of use, the
	// value is fresh and its position 0.
	Load(ctx context.Context, runID string) (Loaded[V], error)
	// Reset makes a value fresh. Saving it then replaces what it was loaded from.
	Reset(v V)
	// Fold accounts for an entry, which can be decoded and is newer than all that
	// the value accounts for.
	Fold(ctx context.Context, v V, e eventlog.Entry) (Effect, error)
	// Save stores a value and returns its size in bytes. It fails with
	// [ErrConflict] if another process stored one since v was loaded or saved.
	Save(ctx context.Context, v V) (size int, err error)
	// Ended reports whether the run of a value is over: nothing more is expected of it, and once it is saved it
	// leaves the memory.
	Ended(v V) bool
}

// Batcher is a service that leaves what it does because of an entry or a tick to the end of the batch. Its Save does
// that first, too.
type Batcher interface {
	Flush(ctx context.Context) error
}

// Loaded is a stored value.
type Loaded[V any] struct {
	Value    V
	Position wire.Position // of the last event that it accounts for
	Size     int           // bytes
}

// Refusal says why an event can't be used. It is set aside, and the service goes
// on.
type Refusal struct{ Err error }

func (r *Refusal) Error() string { return r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

// ErrConflict is returned by [Projector.Save]; the value is then loaded again.
var ErrConflict = errors.New("projection: stored by another process meanwhile")

// Config are the settings of a projection. The zero value of the last five means
// their default.
type Config struct {
	Service  string // its name in WAKE_STATE and WAKE_DEADLETTER
	Consumer string // its durable consumer
	Kinds    []wire.Kind

	Batch    int           // events handled at once at most, default 500
	Delay    time.Duration // until a change is saved, default 500 ms
	MaxBytes int           // of values held in memory, default 256 MiB; those that wait to be saved come on top
	StopWait time.Duration // for saving what is left when Run ends, default 5 s
	Health   *health.Board // is told what keeps it from its work, default one of its own
	Trial    *trial.Trial  // of events that end the process; nil: none
}

func (c Config) withDefaults() Config {
	c.Batch = cmp.Or(c.Batch, 500)
	c.Delay = cmp.Or(c.Delay, 500*time.Millisecond)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.StopWait = cmp.Or(c.StopWait, 5*time.Second)
	return c
}

// gatherWait is how long an event waits for company. It delays urgent saves.
const gatherWait = 20 * time.Millisecond

// Projection is a service under way. It is a [prometheus.Collector].
type Projection[V any] struct {
	c       Config
	log     *eventlog.Log
	logger  *slog.Logger
	service Projector[V]
	timed   Timed[V] // nil if the service has no deadlines
	kv      jetstream.KeyValue
	metrics

	// Owned by Run.
	runs    map[string]*trackedValue[V]
	dirty   map[string]*trackedValue[V] // of runs: the values that aren't saved
	waiting map[string]*trackedValue[V] // of runs: the values that have a deadline
	size    int                         // of runs, in bytes
	handled uint64                      // position of the last entry
	end     uint64                      // of the log when Run began: of runs that begin behind it nothing was stored
	behind  bool                        // there is more to read
	commit  commitState
	renewal renewal
	force   bool      // commit as soon as possible
	failing bool      // saving failed
	retryAt time.Time // not to be tried before
}

// trackedValue is the value of a run in memory.
type trackedValue[V any] struct {
	run      string
	v        V
	pos      uint64    // of the last entry that v accounts for
	trace    string    // of the last entry that says to which it belongs, see [tracing.Parent]
	unsaved  uint64    // of the first entry that isn't saved; 0: all is
	since    time.Time // when that was folded
	urgent   bool
	size     int
	deadline int64 // see [Timed]
	postpone time.Time
}

// New returns a projection of log. A service that is [Timed] gets its ticks.
func New[V any](c Config, log *eventlog.Log, logger *slog.Logger, service Projector[V]) *Projection[V] {
	timed, _ := service.(Timed[V])
	c.Health = cmp.Or(c.Health, health.NewBoard(logger))
	return &Projection[V]{
		c: c.withDefaults(), log: log, logger: logger, service: service, timed: timed,
		metrics: newMetrics(c.Service),
		runs:    map[string]*trackedValue[V]{}, dirty: map[string]*trackedValue[V]{}, waiting: map[string]*trackedValue[V]{},
	}
}

// job is a batch of entries on its way from the consumer to the owner.
type job struct {
	entries []eventlog.Entry
	done    chan error
}

// Run works until ctx ends, and then saves what is left. If it fails it may be called again,
// and begins with what is saved.
func (p *Projection[V]) Run(ctx context.Context) error {
	p.dropValues()
	p.behind, p.force, p.failing, p.retryAt = false, false, false, time.Time{}
	if err := p.openState(ctx); err != nil {
		return p.saveRest(ctx, err)
	}
	var err error
	if _, p.end, err = p.log.Bounds(ctx); err != nil {
		return p.saveRest(ctx, err)
	}
	if err := p.loadTimed(ctx); err != nil {
		return p.saveRest(ctx, err)
	}
	jobs := make(chan job)
	reading := p.startConsumer(ctx, jobs)
	defer func() { reading.stop() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case j := <-jobs:
			begun := time.Now()
			j.done <- p.handleEntries(ctx, j.entries, begun)
			p.took.Observe(time.Since(begun).Seconds())
		case <-timer.C:
			p.behind = false
		case err := <-reading.ended:
			if !errors.Is(err, eventlog.ErrIncarnation) && !errors.Is(err, eventlog.ErrBeyond) || p.handled == 0 {
				return p.saveRest(ctx, err)
			}
			p.beginAnew(err)
			reading.stop()
			reading = p.startConsumer(ctx, jobs)
		}
		if p.obeyRebuildOrder(ctx, time.Now()) {
			reading.stop()
			if err := <-reading.ended; err != nil { // the next one finds that, too
				p.logger.DebugContext(ctx, "reading ended", "error", err)
			}
			reading = p.startConsumer(ctx, jobs)
			if err := p.loadTimed(ctx); err != nil {
				return p.saveRest(ctx, err)
			}
		}
		timer.Reset(p.workDue(ctx))
	}
}

// backgroundRead is the consumer at work.
type backgroundRead struct {
	stop  context.CancelFunc
	ended <-chan error // with what it returned
}

// startConsumer reads in the background from the committed position on.
func (p *Projection[V]) startConsumer(ctx context.Context, jobs chan<- job) backgroundRead {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	c := eventlog.Consumer{
		Durable: p.c.Consumer, From: wire.Position{Incarnation: p.log.Incarnation(), Seq: p.handled},
		Kinds: p.c.Kinds, Batch: p.c.Batch, Wait: gatherWait,
	}
	go func() {
		hand := func(ctx context.Context, entries []eventlog.Entry) error {
			j := job{entries: entries, done: make(chan error, 1)}
			select {
			case jobs <- j:
				return <-j.done // the owner answers what it takes
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		ended <- p.log.Consume(ctx, c, func(ctx context.Context, entries []eventlog.Entry) error {
			return p.c.Trial.Handle(ctx, entries, hand)
		})
	}()
	return backgroundRead{stop, ended}
}

// beginAnew begins anew: the log is not the one that was committed.
func (p *Projection[V]) beginAnew(cause error) {
	p.logger.Warn("begins anew", "cause", cause)
	p.unusable.Inc()
	p.dropValues()
	p.handled, p.renewal.until, p.end = 0, 0, math.MaxUint64
	p.commit.position = wire.Position{Incarnation: p.log.Incarnation()}
}

// saveRest saves what is left, as far as that is possible, after the consumer has
// ended.
func (p *Projection[V]) saveRest(ctx context.Context, err error) error {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.c.StopWait)
	defer cancel()
	p.saveAll(last, func(*trackedValue[V]) bool { return true })
	if p.safePosition() > p.commit.position.Seq {
		if err := p.commitPosition(last); err != nil {
			p.logger.WarnContext(ctx, "position is not saved", "error", err)
		}
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", p.c.Service, err)
	}
	return nil
}

// workDue does what is due and returns how long nothing else will be.
func (p *Projection[V]) workDue(ctx context.Context) time.Duration {
	now := time.Now()
	p.tickAll(ctx, now)
	if !now.Before(p.retryAt) {
		p.saveAll(ctx, func(t *trackedValue[V]) bool {
			return p.force || t.urgent && !p.behind || now.Sub(t.since) >= p.c.Delay
		})
		p.commitDue(ctx, now)
	}
	p.evictValues()
	p.metrics.runs.Set(float64(len(p.runs)))
	p.position.Set(float64(p.commit.position.Seq))
	return p.untilDue(now)
}

// untilDue returns the time until something is due.
func (p *Projection[V]) untilDue(now time.Time) time.Duration {
	next := p.renewal.look.Add(rebuild.Every)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for _, t := range p.dirty {
		sooner(t.since.Add(p.c.Delay))
	}
	for _, t := range p.waiting {
		sooner(laterOf(time.UnixMilli(t.deadline), t.postpone))
	}
	if p.safePosition() > p.commit.position.Seq {
		sooner(p.commit.at.Add(commitEvery))
	}
	if now.Before(p.retryAt) {
		next = laterOf(next, p.retryAt)
	}
	return max(next.Sub(now), time.Millisecond)
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// metrics are what a projection counts, as wake_<service>_….
type metrics struct {
	*metric.Set

	events, refused, saves, unusable prometheus.Counter
	took                             prometheus.Histogram
	runs, position                   prometheus.Gauge
}

func newMetrics(service string) metrics {
	s := metric.New(service)
	return metrics{
		Set:      s,
		events:   s.Counter("events_total", "Events that were read."),
		refused:  s.Counter("refused_total", "Events that could not be used and were set aside."),
		saves:    s.Counter("saves_total", "Values that were saved."),
		unusable: s.Counter("unusable_total", "Stored values and positions that could not be used and were built again."),
		took:     s.Seconds("fold_seconds", "Time to fold a batch of events."),
		runs:     s.Gauge("runs", "Runs in memory."),
		position: s.Gauge("position", "Position in the log below which everything is saved."),
	}
}
