package owner

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/services/runner/internal/capacity"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/purse"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/turn"
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
	ParkAfter      time.Duration // how long a run only waits until it is parked; 0: for ever
	Process        string        // a name that no other process has
	MaxTrials      int           // how many processes may end while they take a run over before it is set aside
	NodeTrials     int           // how many may end while they execute a node of it
	Draining       *turn.Signal

	Log      *eventlog.Log
	Logger   *slog.Logger
	Leases   *lease.Holder
	Runs     *view.Runs
	Commands *command.Stream
	Queue    *queue.Queue
	Offers   *queue.Offers // to this runner
	Registry *registry.Registry
	Capacity *capacity.Gauge
	Purse    *purse.Purse
	Kept     *workspace.Store // snapshots of folders; nil: none are restored
	Private  []string         // folders that are no part of a run's
	Owned    *registry.Set    // runs that have an owner here

	TakenOver, Lost, Parked, Woken, SetAside prometheus.Counter

	alone chan struct{} // holds one while a run is tried that has ended processes
}

func (c *Config) subjectNames() subjects.Names { return c.Log.Names() }

func (c *Config) newFolders() folders { return folders{c.Workspaces, c.User, c.Logger} }

// ErrNothing says that nothing says what a run is to do: no request has, and it hasn't begun.
var ErrNothing = errors.New("nothing says what the run is to do")

// PoolOf returns the queue of nodes that only one runner may take, because it holds the
// folder of their run.
func PoolOf(runner string) string { return poolPrefix + runner }

const poolPrefix = "at-"
