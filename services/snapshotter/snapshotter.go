// Package snapshotter folds the log into snapshots of runs.
//
// A snapshot spares a reader the beginning of the log, no more: to resume a run, the
// reader folds what follows. So the snapshotter may lag or be away; what it must
// not do is store a state that isn't the fold of the log up to its position.
//
//	WAKE_EVENTS ─▶ projection ─▶ run.Apply ─▶ WAKE_SNAPSHOTS, large ones in WAKE_BLOBS
//	(flow, agent, tool)   └─ position ─▶ WAKE_STATE snapshotter._
//
// It also answers wake.api.snapshot.
package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/projection"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/trial"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// name is the service's name wherever it has one.
const name = "snapshotter"

// Config are the settings of a snapshotter. A zero value means its default.
type Config struct {
	// Delay is how long a change may wait to be saved together with others.
	// What matters is saved at once: a session, a command, the end of a
	// node or of the run. Default 500 ms.
	Delay time.Duration
	// MaxBytes is the size of the states that are kept in memory. Default 256 MiB.
	MaxBytes int
	// Batch is the number of events that are handled at once at most. Default 500.
	Batch int
	// Health is told what keeps it from its work. Default: one of its own.
	Health *health.Board
	// Trial is that of events that end the process. Default: none.
	Trial *trial.Trial
}

// Snapshotter is the service.
type Snapshotter struct {
	log        *eventlog.Log
	logger     *slog.Logger
	projection *projection.Projection[*stateValue]
	store      *snapshot.Store // set by Run
}

// New returns a snapshotter of log.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Snapshotter, error) {
	if cfg.Delay < 0 || cfg.MaxBytes < 0 || cfg.Batch < 0 {
		return nil, errors.New("snapshotter: settings must not be negative")
	}
	s := &Snapshotter{log: log, logger: logger}
	s.projection = projection.New[*stateValue](projection.Config{
		Service: name, Consumer: subjects.SnapshotterConsumer, Kinds: snapshot.Kinds,
		Batch: cfg.Batch, Delay: cfg.Delay, MaxBytes: cfg.MaxBytes, Health: cfg.Health, Trial: cfg.Trial,
	}, log, logger, s)
	return s, nil
}

// Run saves snapshots and answers requests until ctx ends. Then it saves what is
// left. If it fails it may be called again.
func (s *Snapshotter) Run(ctx context.Context) error {
	store, err := snapshot.Open(ctx, s.log)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("snapshotter: %w", err)
	}
	s.store = store
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	answered := make(chan error, 1)
	go func() {
		defer stop()
		answered <- s.serveAPI(ctx)
	}()
	err = s.projection.Run(ctx)
	stop()
	return errors.Join(err, <-answered)
}

// Describe implements [prometheus.Collector].
func (s *Snapshotter) Describe(ch chan<- *prometheus.Desc) { s.projection.Describe(ch) }

// Collect implements [prometheus.Collector].
func (s *Snapshotter) Collect(ch chan<- prometheus.Metric) { s.projection.Collect(ch) }

// stateValue is the state of a run and what is stored of it.
type stateValue struct {
	state  *wire.State
	stored snapshot.Stored
	former *wire.State // at the former position that a label marked last; nil: none has
	folds  int         // how often the run was folded from its beginning for such labels
}

// maxFolds bounds how often a run is folded from its beginning for labels of former positions that come in no order: all other runs wait
// meanwhile, and an importer may label runs without end.
const maxFolds = 100

// New implements [projection.Projector].
func (s *Snapshotter) New(runID string) *stateValue { return &stateValue{state: run.New(runID)} }

// Ended implements [projection.Projector].
func (s *Snapshotter) Ended(v *stateValue) bool {
	return v.state.Status.Ended()
}

// Load implements [projection.Projector].
func (s *Snapshotter) Load(ctx context.Context, runID string) (projection.Loaded[*stateValue], error) {
	stored, err := s.store.Load(ctx, runID)
	switch {
	case errors.Is(err, snapshot.ErrUnusable):
		s.projection.Rebuild(runID, err)
	case err != nil && !errors.Is(err, snapshot.ErrNotFound):
		return projection.Loaded[*stateValue]{}, err
	}
	v := s.New(runID)
	if stored.State != nil {
		v.state = stored.State
	}
	v.stored, v.stored.State = stored, nil // it grows old
	return projection.Loaded[*stateValue]{Value: v, Position: v.state.Position, Size: stored.Size}, nil
}

// Reset implements [projection.Projector].
func (s *Snapshotter) Reset(v *stateValue) {
	v.state, v.former, v.folds = run.New(v.state.RunID), nil, 0
}

// Fold implements [projection.Projector].
func (s *Snapshotter) Fold(ctx context.Context, v *stateValue, e eventlog.Entry) (projection.Effect, error) {
	if mark := bookmarkOf(e); mark != nil {
		return s.keepBookmark(ctx, v, e, mark)
	}
	before := v.state.Position
	err := snapshot.Apply(ctx, s.log, v.state, e)
	switch {
	case snapshot.Refused(err):
		return projection.Unchanged, &projection.Refusal{Err: err}
	case err != nil:
		return projection.Unchanged, err
	case v.state.Position == before:
		return projection.Unchanged, nil
	case needsSnapshot(e.Event.Type()):
		return projection.Urgent, nil
	}
	return projection.Changed, nil
}

// bookmarkOf returns what labels a point that is to outlive the log, nil if the event doesn't.
func bookmarkOf(e eventlog.Entry) *wire.Checkpoint {
	if e.Event == nil {
		return nil
	}
	if p, ok := e.Event.Payload.(*wire.Checkpoint); ok && p.Kind == wire.CheckpointLabelled && p.Label != "" {
		return p
	}
	return nil
}

// keepBookmark keeps the state at a labelled point before it goes on, so that no crash
// loses it.
func (s *Snapshotter) keepBookmark(ctx context.Context, v *stateValue, e eventlog.Entry, mark *wire.Checkpoint) (projection.Effect, error) {
	next := run.Clone(v.state)
	err := snapshot.Apply(ctx, s.log, next, e)
	switch {
	case snapshot.Refused(err):
		return projection.Unchanged, &projection.Refusal{Err: err}
	case err != nil:
		return projection.Unchanged, err
	case next.Position == v.state.Position: // folded before
		return projection.Unchanged, nil
	}
	if next.VoidEvents == v.state.VoidEvents && run.HasLabel(next, mark.Label) { // else it is a fenced writer's, or one too many
		if err := s.keepMarked(ctx, v, next, mark); err != nil {
			return projection.Unchanged, err
		}
	}
	v.state = next
	return projection.Urgent, nil
}

// keepMarked keeps the state that a label marks: the present one, or a former one. What the log doesn't have any more can't be kept.
func (s *Snapshotter) keepMarked(ctx context.Context, v *stateValue, present *wire.State, mark *wire.Checkpoint) error {
	if mark.AtPos == 0 || mark.AtPos >= present.Position.Seq {
		return s.store.Keep(ctx, mark.Label, present.Position.Seq, present)
	}
	if v.former == nil || v.former.Position.Seq > mark.AtPos {
		if v.folds++; v.folds > maxFolds {
			s.logger.Warn("too many bookmarks mark former positions in no order: the state at one isn't kept", "run", present.RunID, "label", mark.Label, "position", mark.AtPos)
			return nil
		}
	}
	if err := s.foldFormer(ctx, v, mark.AtPos); err != nil {
		return err
	}
	if v.former.Position.Seq != mark.AtPos || v.former.Status == wire.RunIdle {
		s.logger.Warn("the state that a bookmark marks isn't in the log any more", "run", present.RunID, "label", mark.Label, "position", mark.AtPos)
		return nil
	}
	return s.store.Keep(ctx, mark.Label, present.Position.Seq, v.former)
}

// foldFormer folds a run up to a former position: on from the one that it folded last, if that is not behind it, as the labels of an
// imported run come in order.
func (s *Snapshotter) foldFormer(ctx context.Context, v *stateValue, to uint64) error {
	former := v.former
	v.former = nil // half folded if this fails
	if former == nil || former.Position.Seq > to {
		former = run.New(v.state.RunID)
	}
	if err := snapshot.Fold(ctx, s.log, former, to); err != nil {
		return err
	}
	v.former = former
	return nil
}

// needsSnapshot reports whether a reader may want the state right after such an event:
// to resume what was done, or to see what has ended. What has only begun is as fast read from the log.
func needsSnapshot(t wire.Type) bool {
	switch t {
	case wire.TypeRunForked, wire.TypeFlowComplete, wire.TypeFlowPaused, wire.TypeFlowResumed, wire.TypeFlowAborted,
		wire.TypeNodeComplete, wire.TypeNodeError, wire.TypeCommandReceived, wire.TypeCheckpoint, wire.TypeSessionBound:
		return true
	default:
		return false
	}
}

// Save implements [projection.Projector]. The revision keeps a snapshot from
// being replaced by an older one.
func (s *Snapshotter) Save(ctx context.Context, v *stateValue) (int, error) {
	stored, err := s.store.Save(ctx, v.state, v.stored)
	if errors.Is(err, snapshot.ErrConflict) {
		return 0, fmt.Errorf("%w: %w", projection.ErrConflict, err)
	}
	if err != nil {
		return 0, err
	}
	stored.State = nil
	v.stored = stored
	return stored.Size, nil
}

// serveAPI answers wake.api.snapshot until ctx ends.
func (s *Snapshotter) serveAPI(ctx context.Context) error {
	service := api.Service{
		Names: s.log.Names(), Name: name, Logger: s.logger, Tracer: s.log.Tracer(),
		Endpoints: []api.Endpoint{api.Handle(wire.VerbSnapshot, "", s.serveSnapshot).OfRun().Instead("`wake status` is short, and `wake export` has the events that it is made of")},
	}
	return service.Run(ctx, s.log.Conn())
}

func (s *Snapshotter) serveSnapshot(ctx context.Context, q wire.SnapshotRequest, _ api.Form) (wire.SnapshotResponse, error) {
	if q.Run == "" {
		return wire.SnapshotResponse{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "run is required"}
	}
	stored, err := s.store.Load(ctx, q.Run)
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return wire.SnapshotResponse{}, &wire.APIError{
			Code: wire.CodeRunNotFound, Message: fmt.Sprintf("run %q has no snapshot", q.Run),
			Hint: "see `wake runs` for the runs there are",
		}
	case errors.Is(err, snapshot.ErrUnusable):
		return wire.SnapshotResponse{}, &wire.APIError{
			Code: wire.CodeNotFound, Message: err.Error(), Hint: "it is built again with the run's next event",
		}
	case err != nil:
		return wire.SnapshotResponse{}, err
	}
	data, err := wire.Marshal(stored.State)
	return wire.SnapshotResponse{RunID: q.Run, Revision: stored.Revision, Bytes: stored.Size, State: data}, err
}
