package recorder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/internal/tracing"
	"wake/pkg/wire"
)

// name is what the service is called: its durable consumer, its dead letters,
// its queries.
const name = "recorder"

// Config are the settings of a [Recorder].
type Config struct {
	Path  string        // where to record into, as [Open] takes it; one recorder per file
	Batch int           // events per transaction, unless there is more to catch up with; default 4096
	Wait  time.Duration // how long a transaction waits for more events, default 5 ms
	Live  int           // last lines of each run that goes on which are held in memory, default 1000; less than 0: none

	Retain Retention // how long runs are kept
}

// Recorder records the stream of events and answers questions about it.
type Recorder struct {
	c      Config
	log    *eventlog.Log
	store  *Store // while it runs
	logger *slog.Logger

	recorded progress      // everything up to there is recorded
	derived  progress      // and what follows from that is derived
	later    chan struct{} // something was left to derive

	deleted chan struct{} // somebody has deleted a run
	metrics metrics
}

// New returns a recorder of log. Its store is opened by [Recorder.Run].
func New(c Config, log *eventlog.Log, logger *slog.Logger) (*Recorder, error) {
	if c.Path == "" {
		return nil, errors.New("recorder: no store is given")
	}
	c.Batch, c.Wait, c.Live = cmp.Or(c.Batch, 4096), cmp.Or(c.Wait, 5*time.Millisecond), cmp.Or(c.Live, 1000)
	var err error
	if c.Retain, err = c.Retain.withDefaults(); err != nil {
		return nil, err
	}
	return &Recorder{c: c, log: log, logger: logger, deleted: make(chan struct{}, 1), later: make(chan struct{}, 1), metrics: newMetrics()}, nil
}

// Run records and answers until ctx ends or recording is impossible. It fails
// at once if the store can't be used or is of another stream, and waits for a database
// that can't be reached.
func (r *Recorder) Run(ctx context.Context) error {
	err := r.reach(ctx, func() (err error) {
		r.store, err = OpenLogging(ctx, r.c.Path, r.logger)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.checkOrigin(ctx); err != nil {
		if ctx.Err() != nil {
			err = nil // that is how it ends
		}
		return errors.Join(r.elsewhere(err), r.store.Close())
	}
	r.store.HoldLive(max(0, r.c.Live))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		defer stop()
		served <- r.service().Run(ctx, r.log.Conn())
	}()
	indexed := make(chan error, 1)
	go func() {
		defer stop()
		indexed <- r.index(ctx)
	}()
	derived := make(chan error, 1)
	go func() {
		defer stop()
		derived <- r.deriveLater(ctx)
	}()
	alerted := make(chan error, 1)
	go func() {
		defer stop()
		alerted <- r.followAlerts(ctx)
	}()
	tidied := make(chan struct{})
	go func() {
		defer close(tidied)
		r.tidy(ctx)
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watchLag(ctx)
	}()
	rebuilt := make(chan struct{})
	go func() {
		defer close(rebuilt)
		r.rebuilds(ctx)
	}()
	err = r.consume(ctx)
	stop()
	<-rebuilt
	<-watched
	<-tidied
	return errors.Join(err, <-served, <-indexed, <-derived, <-alerted, r.store.Close())
}

// consume records what the stream holds after the file's position.
func (r *Recorder) consume(ctx context.Context) error {
	var from wire.Position
	var derived uint64
	err := r.reach(ctx, func() (err error) {
		from, derived, err = r.store.reached(ctx)
		return err
	})
	if err != nil {
		return err
	}
	r.recorded.to(from.Seq)
	r.derived.to(derived)
	r.logger.InfoContext(ctx, "recording", "store", r.store.Name(), "position", from.Seq)
	consumer := eventlog.Consumer{Durable: name, From: from, Batch: r.c.Batch, Wait: r.c.Wait, Ahead: max(r.c.Batch, maxBatch)}
	return r.elsewhere(r.log.Consume(ctx, consumer, r.record))
}

// elsewhere says what to do if the store isn't of this stream.
func (r *Recorder) elsewhere(err error) error {
	if !errors.Is(err, eventlog.ErrIncarnation) {
		return err
	}
	return fmt.Errorf("%w; if the stream was restored from a backup, restore the store of that backup, too, or %s", err, r.store.anew())
}

// maxBatch bounds the events of a transaction.
const maxBatch = 16 << 10

// maxBlobs bounds the large fields that are held in memory for one transaction.
const maxBlobs = 32 << 20

// record stores entries in one transaction, or in a few if they refer to many
// large fields.
func (r *Recorder) record(ctx context.Context, entries []eventlog.Entry) error {
	b := Batch{Incarnation: r.log.Incarnation(), Blobs: map[string][]byte{}}
	size, from := 0, 0
	for i := range entries {
		fetched, err := r.prepare(ctx, &entries[i], b.Blobs)
		if err != nil {
			return err
		}
		if size += fetched; size > maxBlobs {
			b.Entries = entries[from : i+1]
			if err := r.commit(ctx, b); err != nil {
				return err
			}
			size, from = 0, i+1
			clear(b.Blobs)
		}
	}
	b.Entries = entries[from:]
	return r.commit(ctx, b)
}

// commit stores one transaction and reports what was odd about it.
func (r *Recorder) commit(ctx context.Context, b Batch) error {
	if len(b.Entries) == 0 {
		return nil
	}
	behind := b.Entries[len(b.Entries)-1].Behind > uint64(r.c.Batch)
	b.Later = behind
	var report Report
	begun := time.Now()
	ctx, span := r.log.Traced(ctx, name, b.Entries, begun)
	defer span.End()
	err := r.reach(ctx, func() (err error) {
		report, err = r.store.Record(ctx, b)
		return err
	})
	if err != nil {
		tracing.Fail(span, err)
		return err
	}
	r.recorded.busy(behind)
	r.metrics.recorded(report, time.Since(begun))
	r.reports(ctx, report)
	if report.Derived < report.Position.Seq {
		select {
		case r.later <- struct{}{}:
		default: // that is known
		}
	}
	return nil
}

// reports takes what a transaction came to.
func (r *Recorder) reports(ctx context.Context, report Report) {
	r.recorded.to(report.Position.Seq)
	r.derived.to(report.Derived)
	if report.Lost > 0 {
		r.logger.ErrorContext(ctx, "the stream dropped events before they were recorded", "lost", report.Lost, "position", report.Position.Seq)
	}
	if report.Gaps > 0 || report.Void > 0 || report.Bad > 0 || report.Refused > 0 {
		r.logger.WarnContext(ctx, "recorded events that are out of order",
			"gaps", report.Gaps, "void", report.Void, "bad", report.Bad, "refused", report.Refused, "position", report.Position.Seq)
	}
}

// prepare does for an entry what needs the server: dead letters for poison, and
// large fields. It goes on trying while the server is away. A process that dies
// between a dead letter and its transaction sends the letter twice.
func (r *Recorder) prepare(ctx context.Context, e *eventlog.Entry, blobs map[string][]byte) (fetched int, err error) {
	if e.Err != nil {
		return 0, r.patiently(ctx, func() error { return r.log.DeadLetter(ctx, name, e.Err.Error(), *e) })
	}
	for _, b := range e.Event.Blobs {
		if _, ok := blobs[b.SHA256]; ok {
			continue
		}
		err := r.patiently(ctx, func() error {
			data, err := r.log.Blob(ctx, b.SHA256)
			if errors.Is(err, eventlog.ErrBlobMissing) {
				r.logger.WarnContext(ctx, "blob is missing", "run", e.RunID, "node", e.NodeID, "position", e.Pos, "sha256", b.SHA256)
				return nil
			}
			if err == nil {
				blobs[b.SHA256] = data
				fetched += len(data)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return fetched, nil
}

// patience is the longest pause between two tries.
const patience = 5 * time.Second

// patiently repeats f until it works or ctx ends.
func (r *Recorder) patiently(ctx context.Context, f func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, patience) {
		err := f()
		if err == nil {
			return nil
		}
		r.logger.WarnContext(ctx, "waiting for the server", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// reach does something with the store, and repeats that while its database can't
// be reached. What was committed before the connection broke isn't recorded
// twice, since the store knows its position.
func (r *Recorder) reach(ctx context.Context, f func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, patience) {
		err := f()
		if err == nil || !away(err) || ctx.Err() != nil {
			return err
		}
		r.logger.WarnContext(ctx, "waiting for the database", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// service answers the verbs.
func (r *Recorder) service() api.Service {
	s := r.store
	endpoints := []api.Endpoint{
		api.Handle(wire.VerbLog, "get_log", func(ctx context.Context, q wire.LogRequest, f api.Form) (wire.LogResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			log, err := s.Log(ctx, q, time.Now(), f.Limit)
			log.Lag = lag
			return log, early(err, lag)
		}),
		api.Handle(wire.VerbStatus, "", func(ctx context.Context, q wire.StatusRequest, f api.Form) (wire.StatusResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			status, err := s.Status(ctx, q, time.Now(), f.Limit)
			if err == nil {
				r.alerts(ctx, status.RunID, &status.AgentStatus, status.Agents)
				status.AgentStatus = asked(q, status)
			}
			status.Lag = lag
			return status, early(err, lag)
		}),
		api.Handle(wire.VerbTop, "", func(ctx context.Context, q wire.TopRequest, f api.Form) (wire.TopResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			top, err := s.Top(ctx, q, time.Now(), f.Limit)
			for i := range top.Runs {
				r.alerts(ctx, top.Runs[i].RunID, &top.Runs[i].AgentStatus, top.Runs[i].Live)
			}
			top.Lag = lag
			return top, err
		}),
		api.Handle(wire.VerbApprovals, "", func(ctx context.Context, q wire.ApprovalsRequest, f api.Form) (wire.ApprovalsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			waits, err := s.Approvals(ctx, q, f.Limit)
			waits.Lag = lag
			return waits, early(err, lag)
		}),
		api.Handle(wire.VerbRuns, "", func(ctx context.Context, q wire.RunsRequest, f api.Form) (wire.RunsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			runs, err := s.Runs(ctx, q, time.Now(), f.Limit)
			runs.Lag = lag
			return runs, err
		}),
		api.Handle(wire.VerbEvents, "", func(ctx context.Context, q wire.EventsRequest, f api.Form) (wire.EventsResponse, error) {
			lag := r.catchUp(ctx, &r.recorded)
			events, err := s.Events(ctx, q, f.JSON, f.Limit)
			return events, early(err, lag)
		}),
		api.Handle(wire.VerbSearch, "", func(ctx context.Context, q wire.SearchRequest, f api.Form) (wire.SearchResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			r.indexed(ctx)
			found, err := s.Search(ctx, q, time.Now(), f.Limit)
			found.Lag = lag
			return found, early(err, lag)
		}),
		api.Handle(wire.VerbStats, "", func(ctx context.Context, q wire.StatsRequest, _ api.Form) (wire.StatsResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			stats, err := s.Stats(ctx, q, time.Now())
			stats.Lag = lag
			return stats, err
		}),
		api.Handle(wire.VerbDelete, "", func(ctx context.Context, q wire.DeleteRequest, _ api.Form) (wire.DeleteResponse, error) {
			lag := r.catchUp(ctx, &r.derived)
			answer, err := s.Delete(ctx, q, r.c.Retain.Grace, time.Now())
			if err == nil && q.Now {
				select {
				case r.deleted <- struct{}{}:
				default: // that is known
				}
			}
			return answer, early(err, lag)
		}),
		api.Handle(wire.VerbState, "", func(ctx context.Context, q wire.StateRequest, _ api.Form) (wire.StateResponse, error) {
			lag := r.catchUp(ctx, &r.recorded)
			state, err := s.StateAt(ctx, q)
			return state, early(err, lag)
		}),
	}
	return api.Service{Names: r.log.Names(), Name: name, Logger: r.logger, Tracer: r.log.Tracer(), Endpoints: endpoints}
}
