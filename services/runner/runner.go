package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/intake"
	"code.wake.dev/wake/services/runner/internal/capacity"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/purse"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/turn"
	"code.wake.dev/wake/services/runner/internal/view"
	"code.wake.dev/wake/services/runner/owner"
	"code.wake.dev/wake/services/runner/work"
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
	// They keep their process; an agent beyond it keeps its place too. Default 4 × MaxAgents.
	MaxWaiting int
	// Pools are the queues of nodes that the runner takes from, besides its own.
	// Default "default".
	Pools []string
	// Workspaces is the folder in which runs get their own. Required.
	Workspaces string
	// User is the one that agents and commands run as, and owns the folders of runs; the shelf
	// has the same. Nil: the one of this process.
	User *process.User
	// Folders are others that have to have room for a node to begin, such as those of the spool
	// and of the keepers' journals.
	Folders []string
	// Providers are the agents by name, as flows name them.
	Providers map[string]agent.Provider
	// Ask asks a NATS subject, for hooks. Nil: such hooks fail.
	Ask func(ctx context.Context, subject string, question []byte) ([]byte, error)
	// Prices are those of models, where a node says nothing else; what is known of Anthropic's comes after them.
	Prices agent.Prices
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
	// Shelf has the keepers in which agents and commands run. Nil: they run as children of
	// this process.
	Shelf *keeper.Shelf
	// LeaveAgents has agents and commands that are at work when the runner has drained go on
	// in their keepers, since it will come back. Else they are interrupted.
	LeaveAgents bool
	// Health is told what keeps parts of the runner from their work. Default: one of its own.
	Health *health.Board
	// WorkspaceGrace is how long a run waits for the runner that holds its folder
	// until it goes on here with the last snapshot of it or, without one, is paused. Default 60 s.
	WorkspaceGrace time.Duration
	// ParkAfter is how long a run that does nothing but wait for a time or a command keeps its owner: then it is parked, and
	// costs a registration until it is woken. 0: it keeps it for ever.
	ParkAfter time.Duration
	// KeepFolders has snapshots taken of the folders of runs, so that forks and other runners
	// find them as they were.
	KeepFolders bool
	// Private are folders that are no part of a run's, wherever they lie: the data directory.
	Private []string
	// MaxTrials is how many processes in a row may end while they take a run over until it is set aside. Default 3.
	MaxTrials int
	// NodeTrials is how many may end while they execute a node that doesn't get on, until its run is set aside. All runners
	// have to agree on it. It is more, since a kill from outside nearly always hits a process that executes something, and
	// the last trial waits for its process to have lived for a while. Default 9.
	NodeTrials int
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
	if c.MaxTrials <= 0 {
		c.MaxTrials = 3
	}
	if c.NodeTrials <= 0 {
		c.NodeTrials = 9
	}
	if c.WorkspaceGrace <= 0 {
		c.WorkspaceGrace = time.Minute
	}
	return nil
}

// Runner owns runs and works on their nodes.
type Runner struct {
	cfg     Config
	log     *eventlog.Log
	logger  *slog.Logger
	metrics runnerMetrics

	runs     *view.Runs
	commands *command.Stream
	queue    *queue.Queue
	capacity *capacity.Gauge
	purse    *purse.Purse
	active   atomic.Pointer[registry.Registry] // nil before it was opened
	frozen   atomic.Int64                      // trees that its keepers have stopped
	owned    *registry.Set                     // runs that have an owner here
	working  *registry.Set                     // executions that have a worker here
	slots    work.Slots
	resting  work.Slots   // of agents that wait for a person and have left their slot
	draining *turn.Signal // given when Run is told to end: come to a safe point
}

// New returns a runner that publishes through log; log.Run must be running.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Runner, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	cfg.Health = cmp.Or(cfg.Health, health.NewBoard(logger))
	runs, q := view.NewRuns(log, logger), queue.New(log, logger)
	commands, err := command.NewStream(log, logger, runs, q)
	if err != nil {
		return nil, fmt.Errorf("runner: %w", err)
	}
	r := &Runner{
		cfg: cfg, log: log, logger: logger,
		runs: runs, queue: q, commands: commands, purse: purse.New(log),
		owned: registry.NewSet(), working: registry.NewSet(),
		slots: make(work.Slots, cfg.MaxAgents), resting: make(work.Slots, cfg.MaxWaiting),
		draining: turn.NewSignal(),
	}
	r.metrics = newMetrics(cfg.Providers)
	r.capacity = capacity.New(log, logger, r.metrics.fill, cfg.Health, append([]string{cfg.Workspaces}, cfg.Folders...))
	r.showLoad()
	return r, nil
}

// showLoad adds what the runner is doing to its metrics.
func (r *Runner) showLoad() {
	s := r.metrics
	s.Read("runs_owned", "Runs that this runner owns.", func() float64 { return float64(r.owned.Len()) })
	ofActive := func(read func(*registry.Registry) float64) func() float64 {
		return func() float64 {
			if active := r.active.Load(); active != nil {
				return read(active)
			}
			return 0
		}
	}
	s.Read("runs_parked", "Runs that are parked, by whatever runner; each runner tells all of them.",
		ofActive(func(g *registry.Registry) float64 { return float64(g.Parked()) }))
	s.Read("parked_late_seconds", "How late the most overdue of the parked runs is; each runner tells that of all of them.",
		ofActive(func(g *registry.Registry) float64 { return g.Late(time.Now()).Seconds() }))
	s.Read("keepers_frozen", "Keepers of this runner whose agent or command is stopped, since its lease was not renewed in time; looked at every 5 s.",
		func() float64 { return float64(r.frozen.Load()) })
	s.Read("nodes_working", "Nodes that this runner is at work on.", func() float64 { return float64(r.working.Len()) })
	s.Read("slots", "Nodes that it may work on at once.", func() float64 { return float64(cap(r.slots)) })
	s.Read("journal_bytes", "Bytes of the journals of agents and commands on this runner's disk.", func() float64 {
		if r.cfg.Shelf == nil {
			return 0
		}
		return float64(r.cfg.Shelf.Bytes())
	})
	s.Read("slots_used", "Slots that are taken.", func() float64 { return float64(len(r.slots)) })
	s.Read("agents_resting", "Agents that wait for a person and have left their slot to others.", func() float64 { return float64(len(r.resting)) })
	s.Read("cramped", "1 while it begins no nodes, since a disk of its own is full, else 0.", func() float64 { return boolValue(r.capacity.Cramped()) })
	s.Read("draining", "1 once it was told to end, else 0.", func() float64 { return boolValue(r.draining.IsGiven()) })
	s.Read("refusing_runs", "1 while it begins no runs, since the stream is full or the recorder far behind, else 0.",
		func() float64 { return boolValue(r.capacity.RefusesRuns()) })
	s.Read("refusing_nodes", "1 while it begins no nodes, since the stream is full, else 0.", func() float64 { return boolValue(r.capacity.RefusesNodes()) })
}

// surveyEvery is how often keepers are asked how they are, and how long they may take to answer.
const surveyEvery = 5 * time.Second

// watchKeepers counts the trees that the keepers of this runner have stopped, as far as they answer, until ctx ends.
func (r *Runner) watchKeepers(ctx context.Context) error {
	tick := time.NewTicker(surveyEvery)
	defer tick.Stop()
	for r.cfg.Shelf != nil {
		wait, cancel := context.WithTimeout(ctx, surveyEvery)
		found, err := r.cfg.Shelf.Survey(wait)
		cancel()
		if err != nil {
			r.logger.Debug("keepers don't answer", "error", err)
		}
		r.frozen.Store(int64(len(slices.DeleteFunc(found, func(f keeper.Finding) bool { return !f.Frozen }))))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

func boolValue(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Describe implements [prometheus.Collector].
func (r *Runner) Describe(ch chan<- *prometheus.Desc) { r.metrics.Describe(ch) }

// Collect implements [prometheus.Collector].
func (r *Runner) Collect(ch chan<- prometheus.Metric) { r.metrics.Collect(ch) }

// Run takes runs and nodes from the queue and executes them until ctx ends. Then
// it begins nothing more, lets what is at work come to a safe point for as long
// as Config.DrainTimeout, gives its leases back and returns. It may be called
// once.
//
// A server that is away, that moves, or that has lost a consumer ends none of it: what
// fails is begun again. It ends by itself only with [eventlog.ErrIncarnation], when a key is
// missing, or when the connection is closed.
func (r *Runner) Run(ctx context.Context) error {
	var f footing
	err := r.cfg.Health.Keep(ctx, "runner", isLasting, func(ctx context.Context) (err error) {
		f, err = r.openFooting(ctx)
		return err
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Tasks outlive ctx by the time to drain, and what they live on outlives them.
	hard, force := context.WithCancel(context.WithoutCancel(ctx))
	defer force()
	defer context.AfterFunc(hard, r.draining.Call)() // owners have no hook of their own for it
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBase()

	var incoming, basis sync.WaitGroup
	part := func(group *sync.WaitGroup, ctx context.Context, name string, f func(context.Context) error) {
		group.Go(func() {
			if err := r.cfg.Health.Keep(ctx, "runner: "+name, isLasting, f); err != nil {
				cancel(fmt.Errorf("runner: %s: %w", name, err))
				if group == &basis {
					force() // nothing comes to a safe point without it
				}
			}
		})
	}
	r.active.Store(f.active)
	workers, in := r.makeParts(f)
	part(&basis, base, "leases", f.leases.Run)
	next := f.lastEvent + 1
	part(&basis, base, "events", func(ctx context.Context) error { return r.runs.Follow(ctx, &next, in.Note) })
	part(&basis, base, "commands", func(ctx context.Context) error { return r.commands.Follow(ctx, f.lastCommand+1) })
	part(&basis, base, "active runs", f.active.Follow)
	part(&basis, base, "size of the log", r.capacity.Watch)
	part(&basis, base, "shared budgets", r.purse.Follow)
	part(&basis, base, "frozen agents", r.watchKeepers)
	// What a former process has left of an execution that is over ends before anything begins in its folder.
	if err := workers.Sweep(ctx); err != nil {
		r.logger.Warn("keepers not looked after", "error", err)
	}
	part(&incoming, ctx, "keepers", workers.KeepSwept)
	part(&incoming, ctx, "folders of removed runs", r.dropRemovedFolders)
	if f.folders != nil {
		part(&incoming, ctx, "snapshots of folders", func(ctx context.Context) error { return r.servePacks(ctx, f.folders) })
	}
	for _, p := range in.Parts(hard) {
		part(&incoming, ctx, p.Name, p.Run)
	}
	<-ctx.Done()
	running := registry.Drained{At: time.Now().UnixMilli(), Runs: r.owned.List(), Nodes: r.working.List()}
	r.draining.Give()
	r.keepDrained(base, f.active, running)
	incoming.Wait() // from then on no task begins
	late := time.AfterFunc(r.cfg.DrainTimeout, force)
	defer late.Stop()
	in.Wait()
	stopBase()
	basis.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// isLasting reports whether an error doesn't go away by itself.
func isLasting(err error) bool {
	return errors.Is(err, eventlog.ErrIncarnation) || errors.Is(err, seal.ErrNoKey) || errors.Is(err, nats.ErrConnectionClosed)
}

// makeParts makes the owners, the workers, and the intake that hands them their work.
func (r *Runner) makeParts(f footing) (*work.Workers, *intake.Intake) {
	cfg, m, anchorEvery := r.cfg, r.metrics, f.maxAge/anchorParts
	offers := queue.NewOffers()
	private := append(slices.Clone(cfg.Private), cfg.Workspaces)
	owners := owner.New(owner.Config{
		ID: cfg.ID, Workspaces: cfg.Workspaces, User: cfg.User, OfferAgain: cfg.OfferAgain, WorkspaceGrace: cfg.WorkspaceGrace,
		Process: f.process, MaxTrials: cfg.MaxTrials, NodeTrials: cfg.NodeTrials,
		AnchorEvery: anchorEvery, ParkAfter: cfg.ParkAfter, Draining: r.draining,
		Log: r.log, Logger: r.logger, Leases: f.leases, Runs: r.runs, Commands: r.commands, Queue: r.queue, Offers: offers,
		Registry: f.active, Capacity: r.capacity, Purse: r.purse, Owned: r.owned, Kept: f.folders, Private: private,
		TakenOver: m.takenOver.WithLabelValues(ofRuns), Lost: m.lost.WithLabelValues(ofRuns), Parked: m.parked, Woken: m.woken, SetAside: m.setAside,
	})
	workers := work.New(work.Config{
		ID: cfg.ID, Home: cfg.Home, Workspaces: cfg.Workspaces, User: cfg.User, Providers: cfg.Providers, Fixtures: cfg.Fixtures, Ask: cfg.Ask, Secrets: cfg.Secrets,
		PersistTimeout: cfg.PersistTimeout, DrainTimeout: cfg.DrainTimeout, AnchorEvery: anchorEvery, Draining: r.draining,
		Process: f.process, NodeTrials: cfg.NodeTrials,
		Log: r.log, Logger: r.logger, Leases: f.leases, Runs: r.runs, Queue: r.queue, Sessions: f.sessions, Kept: f.folders, Private: private, Working: r.working,
		Prices: cfg.Prices, Shelf: cfg.Shelf, LeaveAgents: cfg.LeaveAgents, Health: cfg.Health,
		TakenOver: m.takenOver.WithLabelValues(ofNodes), Lost: m.lost.WithLabelValues(ofNodes),
		Agents: m.agents, AgentFailures: m.agentFailures, FolderBytes: m.folderBytes,
	})
	return workers, intake.New(intake.Config{
		ID: cfg.ID, Pools: cfg.Pools, Slots: r.slots, Resting: r.resting,
		Log: r.log, Logger: r.logger, Leases: f.leases, Runs: r.runs, Commands: r.commands, Queue: r.queue, Offers: offers,
		Registry: f.active, Capacity: r.capacity, Owned: r.owned, Owners: owners, Workers: workers,
		RunWait: m.waited.WithLabelValues(ofRuns), NodeWait: m.waited.WithLabelValues(ofNodes),
	})
}

// anchorParts is how often a run and its nodes are anchored within the time that the
// stream keeps an event: a node without its last event would take any writer.
const anchorParts = 3

// footing is what a runner finds on the server when it begins.
type footing struct {
	process  string // names this process, and no other one
	leases   *lease.Holder
	sessions *transcript.Store
	folders  *workspace.Store // nil: folders aren't kept
	active   *registry.Registry
	maxAge   time.Duration // of events in the stream; 0: they don't age

	lastEvent, lastCommand uint64
}

// openFooting finds out where the log and the commands end, and clears up behind an
// earlier process. Owners read the log up to a point behind lastEvent, so that no
// event lies between what they read and what they are fed.
func (r *Runner) openFooting(ctx context.Context) (f footing, err error) {
	js, names := r.log.JetStream(), r.log.Names()
	f.process = uuid.NewString()
	if f.leases, err = lease.NewHolder(ctx, js, names.LeasesBucket(), lease.Identity{Runner: r.cfg.ID, Home: r.cfg.Home, Process: f.process}, r.logger); err != nil {
		return f, err
	}
	if f.sessions, err = transcript.Open(ctx, js, names, r.log.Keys()); err != nil {
		return f, fmt.Errorf("runner: %w", err)
	}
	if r.cfg.KeepFolders {
		if f.folders, err = workspace.Open(ctx, js, names, r.log.Keys()); err != nil {
			return f, fmt.Errorf("runner: %w", err)
		}
	}
	if f.active, err = registry.Open(ctx, r.log, r.logger); err != nil {
		return f, err
	}
	events, err := js.Stream(ctx, names.EventsStream())
	if err != nil {
		return f, fmt.Errorf("runner: open the stream of events: %w", err)
	}
	f.maxAge = events.CachedInfo().Config.MaxAge
	list, found, err := f.active.TakeDrained(ctx, r.cfg.ID)
	if found {
		r.logger.Info("was running when this runner last ended", append(drainedAttrs(list), "at", time.UnixMilli(list.At))...)
	}
	if err != nil {
		return f, err
	}
	r.endOrphans(ctx)
	if _, f.lastEvent, err = r.log.Bounds(ctx); err != nil {
		return f, err
	}
	f.lastCommand, err = r.commands.Begin(ctx, f.lastEvent)
	return f, err
}

// keepDrained keeps a list of what was running: the next start logs what was
// interrupted.
func (r *Runner) keepDrained(ctx context.Context, active *registry.Registry, list registry.Drained) {
	r.logger.Info("ending: what is running comes to a safe point", append(drainedAttrs(list), "within", r.cfg.DrainTimeout)...)
	if len(list.Runs)+len(list.Nodes) == 0 {
		return
	}
	if err := active.KeepDrained(ctx, r.cfg.ID, list); err != nil {
		r.logger.Warn("list of what was running not kept", "error", err)
	}
}

// drainedAttrs names the first of what was running, so that a line stays one, and how much it is in all.
func drainedAttrs(list registry.Drained) []any {
	const most = 20
	return []any{
		"active_runs", len(list.Runs), "runs", list.Runs[:min(len(list.Runs), most)],
		"active_nodes", len(list.Nodes), "nodes", list.Nodes[:min(len(list.Nodes), most)],
	}
}

// Secrets returns where a definition has secrets itself, see [owner.Secrets].
func Secrets(def *flow.Definition, where func(wire.Payload) ([]string, error)) ([]string, error) {
	return owner.Secrets(def, where)
}

// endOrphans ends agents of a runner that was killed here: no worker has them any
// more.
func (r *Runner) endOrphans(ctx context.Context) {
	ended, err := process.EndOrphans(ctx, r.cfg.Home, orphanGrace)
	if err != nil {
		r.logger.Warn("processes of an earlier runner are left", "error", err)
	} else if ended > 0 {
		r.logger.Info("processes of an earlier runner ended", "count", ended)
	}
}

// orphanGrace is how long processes of an earlier runner may take to end.
const orphanGrace = 2 * time.Second
