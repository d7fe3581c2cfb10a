// Package alerter finds what deserves attention and says it once.
//
// Pure detectors look at each run's events, each in a file of its own:
// completion.go, stuck.go, build.go … What they find becomes an alert in WAKE_ALERTS, on a subject that ends in the
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/projection"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/trial"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// serviceName is the service's name wherever it has one.
const serviceName = "alerter"

// Config are the settings of an alerter. A zero value means its default.
type Config struct {
	// Out gets the line of each alert that this process stores, at most once. Default: nothing
	// is printed.
	Out io.Writer
	// Delay is how long a state may wait to be saved. Saving late costs reading
	// again after a crash, nothing else. Default 10 s.
	Delay time.Duration
	// MaxBytes is the size of the states that are kept in memory. Default 64 MiB.
	MaxBytes int
	// Batch is the number of events that are handled at once at most. Default 500.
	Batch int
	// Health is told what keeps it from its work. Default: one of its own.
	Health *health.Board
	// Trial is that of events that end the process. Default: none.
	Trial *trial.Trial
	// Settings are the thresholds of the detectors. Default: [Defaults].
	Settings *Settings
}

// Alerter is the service.
type Alerter struct {
	cfg        Config
	log        *eventlog.Log
	logger     *slog.Logger
	projection *projection.Projection[*value]
	raised     prometheus.Counter
	limits     atomic.Pointer[limits]

	// Owned by Run.
	kv       *eventlog.Bucket
	stream   jetstream.Stream // of the events
	noted    []newAlert       // which [Alerter.Flush] stores
	subjects map[string]bool  // of these
	told     uncertainAlerts
	days     daySum

	printing sync.Mutex
}

// value is the record of a run and what is stored of it.
type value struct {
	record   runRecord
	whole    wholeness
	ended    bool
	revision uint64
	skipped  int // events since the last change

	// Of a record that is made again:
	upTo uint64 // up to here everything was raised before
	due  int64  // when it would have been ticked next, Unix ms; 0: never
}

// New returns an alerter of log.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Alerter, error) {
	if cfg.Delay < 0 || cfg.MaxBytes < 0 || cfg.Batch < 0 {
		return nil, errors.New("alerter: settings must not be negative")
	}
	settings := Defaults()
	if cfg.Settings != nil {
		settings = *cfg.Settings
	}
	if err := settings.Validate(); err != nil {
		return nil, fmt.Errorf("alerter: settings: %w", err)
	}
	if cfg.Out == nil {
		cfg.Out = io.Discard
	}
	a := &Alerter{
		cfg: cfg, log: log, logger: logger, told: uncertainAlerts{}, subjects: map[string]bool{},
		raised: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "wake", Subsystem: serviceName, Name: "alerts_total", Help: "Alerts that were raised.",
		}),
	}
	a.limits.Store(settings.compileLimits())
	a.projection = projection.New[*value](projection.Config{
		Service: serviceName, Consumer: subjects.AlerterConsumer, Kinds: snapshot.Kinds,
		Batch: cfg.Batch, Delay: cmp.Or(cfg.Delay, 10*time.Second), MaxBytes: cmp.Or(cfg.MaxBytes, 64<<20),
		Health: cfg.Health, Trial: cfg.Trial,
	}, log, logger, a)
	return a, nil
}

// Set replaces the settings, from the next event on. It may be called at any time.
func (a *Alerter) Set(s Settings) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("alerter: settings: %w", err)
	}
	a.limits.Store(s.compileLimits())
	return nil
}

// Run raises alerts until ctx ends. Then it saves what is left. If it fails it may be called
// again.
func (a *Alerter) Run(ctx context.Context) error {
	var err error
	if a.kv, err = a.log.Bucket(ctx, a.log.Names().StateBucket()); err == nil {
		a.stream, err = a.log.JetStream().Stream(ctx, a.log.Names().EventsStream())
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an early stop is no failure
	}
	if err != nil {
		return fmt.Errorf("alerter: %w", err)
	}
	var watching sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	watching.Go(func() { a.watchSystem(ctx) })
	served := make(chan error, 1)
	go func() {
		s := api.Service{Names: a.log.Names(), Name: serviceName, Logger: a.logger, Tracer: a.log.Tracer(), Endpoints: deliver.Endpoints(a.log)}
		served <- s.Run(ctx, a.log.Conn())
	}()
	err = a.projection.Run(ctx)
	stop()
	watching.Wait()
	return errors.Join(err, <-served)
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

// New implements [projection.Projector].
func (a *Alerter) New(runID string) *value { return &value{record: newRecord(runID)} }

// Ended implements [projection.Projector].
func (a *Alerter) Ended(v *value) bool { return v.ended }

// Load implements [projection.Projector].
func (a *Alerter) Load(ctx context.Context, runID string) (projection.Loaded[*value], error) {
	v := a.New(runID)
	loaded := projection.Loaded[*value]{Value: v}
	stored, revision, err := a.kv.Get(ctx, a.log.Names().StateKey(serviceName, runID))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return loaded, nil
	case err != nil && !errors.Is(err, seal.ErrForged):
		return loaded, err
	}
	v.revision, loaded.Size = revision, len(stored)
	var r runRecord
	if err == nil {
		err = wire.Unmarshal(stored, &r)
	}
	if err == nil && (r.V != wire.Version || r.Run.ID != runID) {
		err = fmt.Errorf("version %d of run %q", r.V, r.Run.ID)
	}
	if err != nil {
		a.projection.Rebuild(runID, err)
		return loaded, nil
	}
	v.record, v.whole.unknown, loaded.Position = r, true, r.Position
	return loaded, nil
}

// Reset implements [projection.Projector].
func (a *Alerter) Reset(v *value) { v.record, v.whole = newRecord(v.record.Run.ID), wholeness{} }

// Renew implements [projection.Renewer]: what was raised before isn't raised again,
// also if its alert is gone.
func (a *Alerter) Renew(v *value, upTo uint64) {
	v.upTo, v.due = upTo, v.record.Deadline
	a.Reset(v)
}

// wasRaised reports whether what an input leads to was raised in an earlier life of the
// value.
func (v *value) wasRaised(in input) bool {
	if in.Pos > v.upTo {
		return false
	}
	return in.Event != nil || v.due == 0 || in.At < v.due
}

// skippable is the number of events without news after which a record is saved
// all the same, so that little has to be read again.
const skippable = 1000

// Fold implements [projection.Projector].
func (a *Alerter) Fold(ctx context.Context, v *value, e eventlog.Entry) (projection.Effect, error) {
	pos := wire.Position{Incarnation: a.log.Incarnation(), Seq: e.Pos}
	v.whole.note(e.Event)
	if !isRelevant(e.Event) {
		v.record.Position = pos
		v.skipped++
		if v.skipped < skippable {
			return projection.Unchanged, nil
		}
		v.skipped = 0
		return projection.Changed, nil
	}
	event, err := a.inlineEvent(ctx, e.Event)
	if err != nil {
		return projection.Unchanged, err
	}
	in := input{At: v.record.timeOf(e), Pos: e.Pos, Event: event}
	if err := a.passTime(ctx, v, in.At); err != nil {
		return projection.Unchanged, err
	}
	next, err := a.raiseAlerts(v.record, in, v.wasRaised(in))
	if err != nil {
		return projection.Unchanged, err
	}
	effect := projection.Changed
	switch e.Event.Payload.(type) {
	case *wire.FlowComplete, *wire.FlowAborted:
		if err := a.auditEndedRun(ctx, v, next, e, in); err != nil {
			return projection.Unchanged, err
		}
		effect = projection.Urgent
	}
	next.Position = pos
	v.record, v.skipped, v.ended = next.moveClock(e, in.At), 0, effect == projection.Urgent
	return effect, nil
}

// passTime lets time pass for a run with times of its own: no clock does.
func (a *Alerter) passTime(ctx context.Context, v *value, now int64) error {
	for r := &v.record; r.Clock > 0 && r.Deadline > 0 && r.Deadline <= now; {
		at := r.Deadline
		if _, err := a.Tick(ctx, v, at); err != nil {
			return err
		}
		if r.Deadline == at { // a tick leads further
			r.Deadline = 0
		}
	}
	return nil
}

// auditEndedRun looks whether a run that has ended is in the log as a whole.
func (a *Alerter) auditEndedRun(ctx context.Context, v *value, r runRecord, e eventlog.Entry, in input) error {
	if r.Run.Copy || v.wasRaised(in) || v.whole.completedBy(e.Event) {
		return nil
	}
	gaps, err := a.findGaps(ctx, e.RunID, e.Pos)
	if err != nil {
		return fmt.Errorf("look for gaps: %w", err)
	}
	for _, g := range gaps {
		if err := a.noteAll(input{At: e.Time.UnixMilli(), Pos: g.Pos, Run: r.Run}, []finding{g.finding()}); err != nil {
			return err
		}
	}
	return nil
}

// inlineEvent returns an event with the fields that are in the object store, as far as
// they are still there.
func (a *Alerter) inlineEvent(ctx context.Context, e *wire.Event) (*wire.Event, error) {
	if len(e.Blobs) == 0 {
		return e, nil
	}
	whole, err := snapshot.Inline(ctx, a.log, e)
	if snapshot.Refused(err) {
		return e, nil
	}
	return whole, err
}

// Save implements [projection.Projector]. What a record says was raised is stored before it.
func (a *Alerter) Save(ctx context.Context, v *value) (int, error) {
	if err := a.Flush(ctx); err != nil {
		return 0, err
	}
	if v.ended && v.revision == 0 && v.record.Deadline == 0 && v.record.Spending.OfDay == 0 {
		return 0, nil // nothing is to come of it: if something does, the log tells what was
	}
	data, err := wire.Marshal(v.record)
	if err != nil {
		return 0, err
	}
	rev, err := a.kv.Save(ctx, a.log.Names().StateKey(serviceName, v.record.Run.ID), data, v.revision)
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
func (a *Alerter) Deadline(v *value) int64 {
	if v.record.Clock > 0 {
		return 0 // see passTime
	}
	return v.record.Deadline
}

// Tick implements [projection.Timed].
func (a *Alerter) Tick(ctx context.Context, v *value, at int64) (projection.Effect, error) {
	heard, err := a.addLastWords(ctx, v.record, at)
	if err != nil {
		return projection.Unchanged, err
	}
	in := input{At: at, Pos: heard.Position.Seq}
	next, err := a.raiseAlerts(heard, in, v.wasRaised(in))
	if err != nil {
		return projection.Unchanged, err
	}
	v.record = next
	return projection.Changed, nil
}

// Runs implements [projection.Timed]: it returns the runs that have a deadline. By
// the way it learns what all of them have spent today.
func (a *Alerter) Runs(ctx context.Context) ([]string, error) {
	states, err := a.kv.All(ctx, a.log.Names().ServiceStates(serviceName))
	if err != nil {
		return nil, err
	}
	var runs []string
	for _, e := range states {
		var r struct {
			Run      run      `json:"run"`
			Deadline int64    `json:"deadline"`
			Spending spending `json:"spending"`
		}
		if wire.Unmarshal(e.Value, &r) != nil {
			continue
		}
		a.days.noteSpending(r.Run.ID, r.Spending)
		if r.Deadline > 0 {
			runs = append(runs, r.Run.ID)
		}
	}
	return runs, nil
}
