package recorder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/trial"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
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
	// Removing is told how many of the runs that are past their time are removed, when that begins,
	// with each and, with 0 of 0, when it is over. It may be nil.
	Removing func(done, of int64)

	// Health is told what keeps it from recording. Default: one of its own.
	Health *health.Board
	// Trial is that of events that end the process. Default: none.
	Trial *trial.Trial
}

// Recorder records the stream of events and answers questions about it.
type Recorder struct {
	c      Config
	log    *eventlog.Log
	store  *Store // while it runs
	remedy string // for a store that is damaged; "": it was never open
	logger *slog.Logger

	recorded progress      // everything up to there is recorded
	derived  progress      // and what follows from that is derived
	alerted  progress      // alerts are recorded up to there
	later    chan struct{} // something was left to derive

	atOnce  bool          // each batch is synced
	deleted chan struct{} // a caller has deleted a run

	folderRest time.Time // until then no snapshot of a folder is looked for that can be dropped

	metrics recorderMetrics
}

// New returns a recorder of log. Its store is opened by [Recorder.Run].
func New(c Config, log *eventlog.Log, logger *slog.Logger) (*Recorder, error) {
	if c.Path == "" {
		return nil, errors.New("recorder: no store is given")
	}
	if err := database.CheckKind(c.Path); err != nil {
		return nil, err
	}
	c.Batch, c.Wait, c.Live = cmp.Or(c.Batch, 4096), cmp.Or(c.Wait, 5*time.Millisecond), cmp.Or(c.Live, 1000)
	c.Health = cmp.Or(c.Health, health.NewBoard(logger))
	var err error
	if c.Retain, err = c.Retain.WithDefaults(); err != nil {
		return nil, err
	}
	return &Recorder{c: c, log: log, logger: logger, deleted: make(chan struct{}, 1), later: make(chan struct{}, 1), metrics: newMetrics()}, nil
}

// CheckStore fails for the URL of a store of which there are none, and for one that can't be read.
func CheckStore(target string) error { return database.CheckKind(target) }

// What the recorder does with its store, as troubles with it are told.
const (
	opening      = name + ": opening the store"
	recording    = name + ": recording"
	derivingMore = name + ": deriving"
	indexing     = name + ": full text"
	alerting     = name + ": alerts"
	syncing      = name + ": syncing"
	fileKept     = name + ": file"
)

// maxBatch bounds the events of a transaction.
const maxBatch = 16 << 10

// patience is the longest pause between two tries.
const patience = 5 * time.Second

// retryServer repeats f until it works or ctx ends.
func (r *Recorder) retryServer(ctx context.Context, f func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, patience) {
		err := f()
		if err == nil {
			return nil
		}
		r.c.Trial.Waits()
		r.logger.WarnContext(ctx, "waiting for the server", "error", err)
		if pull.Sleep(ctx, wait); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// retryStore runs f on the store, and repeats that while its database can't be reached, its disk
// is full, or other processes use its file. What was committed before the connection broke
// isn't recorded twice, since the store knows its position.
func (r *Recorder) retryStore(ctx context.Context, what string, f func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, patience) {
		err := r.watchStore(what, f)
		switch {
		case err == nil:
			r.c.Health.Set(what, nil)
			return nil
		case ctx.Err() != nil || !goesAway(err):
			return err
		}
		r.c.Trial.Waits()
		r.c.Health.Set(what, err)
		if pull.Sleep(ctx, wait); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// storePatience is how long the store may take for one thing until that is a trouble: a database that is frozen, or a disk, refuses nothing.
const storePatience = 20 * time.Second

// watchStore runs f on the store, and tells when that takes too long.
func (r *Recorder) watchStore(what string, f func() error) error {
	told := make(chan struct{})
	late := time.AfterFunc(storePatience, func() {
		defer close(told)
		r.c.Health.Set(what, fmt.Errorf("the store hasn't answered for %s", storePatience))
	})
	err := f()
	if !late.Stop() {
		<-told
	}
	return err
}

// goesAway reports whether an error of the store may be over soon.
func goesAway(err error) bool {
	return !errors.Is(err, archive.ErrSegment) && (database.Away(err) || database.Passing(err))
}
