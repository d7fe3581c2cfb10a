// Package alerter finds what deserves attention and says it once.
//
// Pure detectors look at each run's events: completion.go, failure.go, loop.go.
// What they find becomes an alert in WAKE_ALERTS, on a subject that ends in the
// alert's key and takes one message only. So whatever is read again, after a
// crash or a reset, raises no alert twice; states of detectors and the position
// may be saved late.
//
//	WAKE_EVENTS ─▶ projection ─▶ detectors ─▶ WAKE_ALERTS ─▶ line on the terminal
//	(flow, agent, tool)  └─ states, position ─▶ WAKE_STATE alerter.<run>, alerter._
package alerter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"wake/internal/eventlog"
	"wake/internal/keys"
	"wake/internal/projection"
	"wake/internal/snapshot"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// name is the service's name wherever it has one.
const name = "alerter"

// Config are the settings of an alerter. A zero value means its default.
type Config struct {
	// Out gets the line of each alert that this process raises, once. Default:
	// nothing is printed.
	Out io.Writer
	// Delay is how long a state may wait to be saved. Saving late costs reading
	// again after a crash, nothing else. Default 10 s.
	Delay time.Duration
	// MaxBytes is the size of the states that are kept in memory. Default 64 MiB.
	MaxBytes int
	// Batch is the number of events that are handled at once at most. Default 500.
	Batch int
}

// Alerter is the service.
type Alerter struct {
	cfg        Config
	log        *eventlog.Log
	logger     *slog.Logger
	projection *projection.Projection[*value]
	raised     prometheus.Counter

	// Owned by Run.
	kv        jetstream.KeyValue
	uncertain map[string]bool // subjects of alerts that may have been stored
}

// value is the record of a run and what is stored of it.
type value struct {
	record   record
	revision uint64
	skipped  int // events since the last change
}

// New returns an alerter of log.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Alerter, error) {
	if cfg.Delay < 0 || cfg.MaxBytes < 0 || cfg.Batch < 0 {
		return nil, errors.New("alerter: settings must not be negative")
	}
	if cfg.Out == nil {
		cfg.Out = io.Discard
	}
	a := &Alerter{
		cfg: cfg, log: log, logger: logger, uncertain: map[string]bool{},
		raised: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "wake", Subsystem: name, Name: "alerts_total", Help: "Alerts that were raised.",
		}),
	}
	a.projection = projection.New[*value](projection.Config{
		Service: name, Consumer: subjects.AlerterConsumer, Kinds: snapshot.Kinds,
		Batch: cfg.Batch, Delay: cmp.Or(cfg.Delay, 10*time.Second), MaxBytes: cmp.Or(cfg.MaxBytes, 64<<20),
	}, log, logger, a)
	return a, nil
}

// Run raises alerts until ctx ends. Then it saves what is left.
func (a *Alerter) Run(ctx context.Context) error {
	kv, err := a.log.JetStream().KeyValue(ctx, a.log.Names().StateBucket())
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an early stop is no failure
	}
	if err != nil {
		return fmt.Errorf("alerter: open %s: %w", a.log.Names().StateBucket(), err)
	}
	a.kv = kv
	return a.projection.Run(ctx)
}

// Describe implements [prometheus.Collector].
func (a *Alerter) Describe(ch chan<- *prometheus.Desc) {
	a.projection.Describe(ch)
	a.raised.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (a *Alerter) Collect(ch chan<- prometheus.Metric) {
	a.projection.Collect(ch)
	a.raised.Collect(ch)
}

// Load implements [projection.Projector].
func (a *Alerter) Load(ctx context.Context, runID string) (projection.Loaded[*value], error) {
	v := &value{record: newRecord(runID)}
	loaded := projection.Loaded[*value]{Value: v}
	e, err := a.kv.Get(ctx, a.log.Names().StateKey(name, runID))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return loaded, nil
	}
	if err != nil {
		return loaded, err
	}
	v.revision, loaded.Size = e.Revision(), len(e.Value())
	var r record
	err = wire.Unmarshal(e.Value(), &r)
	if err == nil && (r.V != wire.Version || r.Run.ID != runID) {
		err = fmt.Errorf("version %d of run %q", r.V, r.Run.ID)
	}
	if err != nil {
		a.projection.Rebuild(runID, err)
		return loaded, nil
	}
	v.record, loaded.Position = r, r.Position
	return loaded, nil
}

// Reset implements [projection.Projector].
func (a *Alerter) Reset(v *value) { v.record = newRecord(v.record.Run.ID) }

// skippable is the number of events without news after which a record is saved
// all the same, so that little has to be read again.
const skippable = 1000

// Fold implements [projection.Projector].
func (a *Alerter) Fold(ctx context.Context, v *value, e eventlog.Entry) (projection.Effect, error) {
	pos := wire.Position{Incarnation: a.log.Incarnation(), Seq: e.Pos}
	if !matters(e.Event) {
		v.record.Position = pos
		v.skipped++
		if v.skipped < skippable {
			return projection.Unchanged, nil
		}
		v.skipped = 0
		return projection.Changed, nil
	}
	event, err := a.whole(ctx, e.Event)
	if err != nil {
		return projection.Unchanged, err
	}
	next, err := a.raise(ctx, v.record, input{At: e.Time.UnixMilli(), Pos: e.Pos, Event: event})
	if err != nil {
		return projection.Unchanged, err
	}
	next.Position = pos
	v.record, v.skipped = next, 0
	return projection.Changed, nil
}

// whole returns an event with the fields that are in the object store, as far as
// they are still there.
func (a *Alerter) whole(ctx context.Context, e *wire.Event) (*wire.Event, error) {
	if len(e.Blobs) == 0 {
		return e, nil
	}
	whole, err := snapshot.Inline(ctx, a.log, e)
	if snapshot.Refused(err) {
		return e, nil
	}
	return whole, err
}

// Save implements [projection.Projector].
func (a *Alerter) Save(ctx context.Context, v *value) (int, error) {
	data, err := wire.Marshal(v.record)
	if err != nil {
		return 0, err
	}
	key := a.log.Names().StateKey(name, v.record.Run.ID)
	var rev uint64
	if v.revision == 0 {
		rev, err = a.kv.Create(ctx, key, data)
	} else {
		rev, err = a.kv.Update(ctx, key, data, v.revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) {
		return 0, projection.ErrConflict
	}
	if err != nil {
		return 0, err
	}
	v.revision = rev
	return len(data), nil
}

// Deadline implements [projection.Timed].
func (a *Alerter) Deadline(v *value) int64 { return v.record.Deadline }

// Tick implements [projection.Timed].
func (a *Alerter) Tick(ctx context.Context, v *value, at int64) (projection.Effect, error) {
	next, err := a.raise(ctx, v.record, input{At: at, Pos: v.record.Position.Seq})
	if err != nil {
		return projection.Unchanged, err
	}
	v.record = next
	return projection.Changed, nil
}

// Runs implements [projection.Timed]: it returns the runs that have a deadline.
func (a *Alerter) Runs(ctx context.Context) ([]string, error) {
	names := a.log.Names()
	states, err := keys.All(ctx, a.log.JetStream(), names.StateBucket(), names.ServiceStates(name))
	if err != nil {
		return nil, err
	}
	var runs []string
	for _, e := range states {
		var r struct {
			Run      run   `json:"run"`
			Deadline int64 `json:"deadline"`
		}
		if wire.Unmarshal(e.Value, &r) == nil && r.Deadline > 0 {
			runs = append(runs, r.Run.ID)
		}
	}
	return runs, nil
}
