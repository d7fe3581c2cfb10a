package owner

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/capacity"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/view"
)

// Config is what owners need of their runner.
type Config struct {
	ID             string // of the runner
	Workspaces     string
	User           *process.User // that works in them; nil: this process's own
	OfferAgain     time.Duration
	WorkspaceGrace time.Duration
	AnchorEvery    time.Duration // 0: events don't age
	Process        string        // a name that no other process has
	MaxTrials      int           // how many processes may end while they take a run over before it is set aside
	NodeTrials     int           // how many may end while they execute a node of it
	Draining       <-chan struct{}

	Log      *eventlog.Log
	Logger   *slog.Logger
	Leases   *lease.Holder
	Runs     *view.Runs
	Commands *command.Stream
	Queue    *queue.Queue
	Registry *registry.Registry
	Capacity *capacity.Gauge
	Kept     *workspace.Store // snapshots of folders; nil: none are restored
	Owned    *registry.Set    // runs that have an owner here

	TakenOver, Lost prometheus.Counter

	alone chan struct{} // holds one while a run is tried that has ended processes
}

func (c *Config) subjectNames() subjects.Names { return c.Log.Names() }

func (c *Config) newFolders() folders { return folders{c.Workspaces, c.User, c.Logger} }

func (c *Config) newForks() forks { return forks{c.Log, c.Runs, c.Queue} }

// Owners has an owner for each run that its runner owns.
type Owners struct{ cfg Config }

// New returns the owners of a runner: none yet.
func New(cfg Config) *Owners {
	cfg.alone = make(chan struct{}, 1)
	return &Owners{cfg}
}

// ErrNothing says that nothing says what a run is to do: no request has, and it hasn't begun.
var ErrNothing = errors.New("nothing says what the run is to do")

// Request is what the owner of a run is asked for. That of a run that has begun needs no
// more than its id.
type Request struct {
	wire.RunRequest

	Definition *flow.Definition // nil: the request has none
	Queued     bool             // by a message of the queue; else the run was found without an owner
	OnBegin    func()           // called when the log says that the run has begun, once
}

// Own owns a run until it has ended, ctx ends, or somebody else owns it. It fails, if the
// run hasn't begun, with [lease.ErrHeld], [ErrNothing], [capacity.ErrFull],
// [capacity.ErrBehind], a [NoFolderError], or an error that [command.Rejected] knows.
func (o *Owners) Own(ctx context.Context, r Request) error {
	if r.OnBegin == nil {
		r.OnBegin = func() {}
	}
	one := &owner{cfg: &o.cfg, runID: r.RunID, request: r.RunRequest, def: r.Definition, queued: r.Queued, onBegin: r.OnBegin}
	return one.ownRun(ctx)
}

// ForkEnded obeys the command to fork a run that has ended, and adds to its record.
func (o *Owners) ForkEnded(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	return o.cfg.newForks().askEnded(ctx, s, cmd, record)
}

// PoolOf returns the queue of nodes that only one runner may take, because it holds the
// folder of their run.
func PoolOf(runner string) string { return poolPrefix + runner }
