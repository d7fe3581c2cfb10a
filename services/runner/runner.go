package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/agent"
	"wake/internal/eventlog"
	"wake/internal/lease"
	"wake/internal/process"
	"wake/internal/transcript"
	"wake/pkg/subjects"
)

// Config are the settings of a runner.
type Config struct {
	// ID names the runner in claims and leases. It should stay the same when the
	// process restarts, since folders of runs stay with their runner. Required.
	ID string
	// Home is what only one process at a time can have, such as a random id in a
	// locked folder: leases of the same home are those of a process that is gone.
	// Default ID.
	Home string
	// MaxAgents bounds the nodes that are executed at once. Default 8.
	MaxAgents int
	// MaxWaiting bounds the agents that wait for a person and leave their place to others.
	// They keep their process; who is beyond it keeps its place too. Default 4 × MaxAgents.
	MaxWaiting int
	// Pools are the queues of nodes that the runner takes from, besides its own.
	// Default "default".
	Pools []string
	// Workspaces is the folder in which runs get their own. Required.
	Workspaces string
	// Providers are the agents by name, as flows name them.
	Providers map[string]agent.Provider
	// Ask asks a NATS subject, for hooks. Nil: such hooks fail.
	Ask func(ctx context.Context, subject string, question []byte) ([]byte, error)
	// Secrets are what flows may refer to by name, as ${secret.NAME} in env and in
	// settings of MCP servers. Options.Redact of the log should know their values.
	Secrets map[string]string
	// Fixtures opens a folder of recorded calls as a provider.
	Fixtures func(dir string) (agent.Provider, error)
	// PersistTimeout bounds the wait for events that must be stored before the
	// agent goes on. Default 30 s.
	PersistTimeout time.Duration
	// OfferAgain is how long a scheduled node waits for a worker until it is
	// offered again. Default 10 s.
	OfferAgain time.Duration
	// DrainTimeout is how long agents and commands may take to come to a safe point
	// when the runner ends. Default 20 s.
	DrainTimeout time.Duration
	// WorkspaceGrace is how long a run waits for the runner that holds its folder
	// until it is paused. Default 60 s.
	WorkspaceGrace time.Duration
}

func (c *Config) setDefaults() error {
	switch {
	case c.ID == "":
		return errors.New("runner: ID is required")
	case c.Workspaces == "":
		return errors.New("runner: Workspaces is required")
	}
	c.Home = cmp.Or(c.Home, c.ID)
	if c.MaxAgents <= 0 {
		c.MaxAgents = 8
	}
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 4 * c.MaxAgents
	}
	if len(c.Pools) == 0 {
		c.Pools = []string{subjects.DefaultPool}
	}
	if c.PersistTimeout <= 0 {
		c.PersistTimeout = 30 * time.Second
	}
	if c.OfferAgain <= 0 {
		c.OfferAgain = 10 * time.Second
	}
	if c.DrainTimeout <= 0 {
		c.DrainTimeout = 20 * time.Second
	}
	if c.WorkspaceGrace <= 0 {
		c.WorkspaceGrace = time.Minute
	}
	return nil
}

// Runner owns runs and works on their nodes.
type Runner struct {
	cfg      Config
	log      *eventlog.Log
	names    subjects.Names
	logger   *slog.Logger
	events   *feed
	commands *feed
	slots    slots
	resting  slots // of agents that wait for a person and have left their place
	active   *registry
	sessions *transcript.Store // session files of agents
	owned    *set              // runs that have an owner here
	working  *set              // executions that have a worker here, "<run>/<exec>"
	attempts *attempts
	dealt    *dealt
	maxAge   time.Duration // of events in the stream; 0: they don't age
	behind   atomic.Bool   // the recorder is too far behind for another run to begin
	refusing atomic.Bool   // the stream is too full for another run to begin
	full     atomic.Bool   // … for another execution to begin

	metrics  metrics
	tasks    sync.WaitGroup // owners and workers
	draining chan struct{}  // closed when Run is told to end: come to a safe point
}

// New returns a runner that publishes through log, whose Run must be running.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Runner, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	r := &Runner{
		cfg: cfg, log: log, names: log.Names(), logger: logger,
		events: newFeed(), commands: newFeed(),
		slots: make(slots, cfg.MaxAgents), resting: make(slots, cfg.MaxWaiting),
		owned: newSet(), working: newSet(), attempts: newAttempts(), dealt: newDealt(),
		draining: make(chan struct{}),
	}
	r.metrics = newMetrics(r)
	return r, nil
}

// Run takes runs and nodes from the queue and executes them until ctx ends. Then
// it begins nothing more, lets what is at work come to a safe point for as long
// as Config.DrainTimeout, gives its leases back and returns. It may be called
// once.
func (r *Runner) Run(ctx context.Context) error {
	keeper, lastEvent, lastCommand, err := r.begin(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // it was told to end before it had begun
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Tasks outlive ctx by the time to drain, and what they live on outlives them.
	hard, force := context.WithCancel(context.WithoutCancel(ctx))
	defer force()
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBase()

	var intake, basis sync.WaitGroup
	part := func(group *sync.WaitGroup, ctx context.Context, name string, f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("runner: %s: %w", name, err))
				if group == &basis {
					force() // nothing comes to a safe point without it
				}
			}
		})
	}
	part(&basis, base, "leases", keeper.Run)
	part(&basis, base, "events", func(ctx context.Context) error { return r.followEvents(ctx, lastEvent+1) })
	part(&basis, base, "commands", func(ctx context.Context) error { return r.followCommands(ctx, lastCommand+1) })
	part(&basis, base, "active runs", r.followActive)
	part(&basis, base, "size of the log", r.watchFill)
	part(&intake, ctx, "active runs", func(ctx context.Context) error { return r.sweep(ctx, hard, keeper) })
	part(&intake, ctx, "stray commands", func(ctx context.Context) error { return r.catchAll(ctx, keeper) })
	part(&intake, ctx, "alerts", r.passAlerts)
	part(&intake, ctx, "answers", r.serve)
	part(&intake, ctx, "queue of runs", func(ctx context.Context) error { return r.takeRuns(ctx, hard, keeper) })
	for _, pool := range append([]string{r.ownPool()}, r.cfg.Pools...) {
		part(&intake, ctx, "queue of nodes", func(ctx context.Context) error { return r.takeNodes(ctx, hard, keeper, pool) })
	}
	<-ctx.Done()
	running := r.running()
	close(r.draining)
	r.keepList(base, running)
	intake.Wait() // from then on nobody begins a task
	late := time.AfterFunc(r.cfg.DrainTimeout, force)
	defer late.Stop()
	r.tasks.Wait()
	stopBase()
	basis.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// begin finds out where the log and the commands end, and clears up behind an
// earlier process. Owners read the log up to a point behind lastEvent, so that no
// event lies between what they read and what they are fed.
func (r *Runner) begin(ctx context.Context) (k *lease.Keeper, lastEvent, lastCommand uint64, err error) {
	if k, err = r.keeper(ctx); err != nil {
		return nil, 0, 0, err
	}
	if err = r.look(ctx); err != nil {
		return nil, 0, 0, err
	}
	r.endOrphans(ctx)
	if _, lastEvent, err = r.log.Bounds(ctx); err != nil {
		return nil, 0, 0, err
	}
	lastCommand, err = r.lastCommand(ctx)
	return k, lastEvent, lastCommand, err
}

// keeper returns the keeper of the runner's leases.
func (r *Runner) keeper(ctx context.Context) (*lease.Keeper, error) {
	return lease.NewKeeper(ctx, r.log.JetStream(), r.names.LeasesBucket(), lease.Identity{Runner: r.cfg.ID, Home: r.cfg.Home}, r.logger)
}

// look finds out what the runner has to know before it begins.
func (r *Runner) look(ctx context.Context) (err error) {
	js := r.log.JetStream()
	if r.sessions, err = transcript.Open(ctx, js, r.names, r.log.Keys()); err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	if r.active, err = newRegistry(ctx, js, r.names); err != nil {
		return err
	}
	events, err := js.Stream(ctx, r.names.EventsStream())
	if err != nil {
		return fmt.Errorf("runner: open the stream of events: %w", err)
	}
	r.maxAge = events.CachedInfo().Config.MaxAge
	return r.clearList(ctx)
}

// endOrphans ends agents of a runner that was killed here: they are nobody's any
// more.
func (r *Runner) endOrphans(ctx context.Context) {
	ended, err := process.EndOrphans(ctx, orphanGrace)
	if err != nil {
		r.logger.Warn("processes of an earlier runner are left", "error", err)
	} else if ended > 0 {
		r.logger.Info("processes of an earlier runner ended", "count", ended)
	}
}

// orphanGrace is how long processes of an earlier runner may take to end.
const orphanGrace = 2 * time.Second

// consumer returns the consumer of a queue subject, which all runners share.
func (r *Runner) consumer(ctx context.Context, durable, subject string) (jetstream.Consumer, error) {
	cfg := jetstream.ConsumerConfig{
		Durable:       durable,
		FilterSubject: subject,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       30 * time.Second,
		MaxDeliver:    -1, // an offer is obsolete when the log says so, not when it was tried often
		MaxAckPending: 1000,
	}
	if subject == r.names.QueueNode(r.ownPool()) {
		cfg.InactiveThreshold = 24 * time.Hour
	}
	c, err := r.log.JetStream().CreateOrUpdateConsumer(ctx, r.names.QueueStream(), cfg)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", durable, err)
	}
	return c, nil
}
