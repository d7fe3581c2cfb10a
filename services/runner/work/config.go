package work

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/turn"
	"code.wake.dev/wake/services/runner/internal/view"
)

// Config is what workers need of their runner.
type Config struct {
	ID             string // of the runner
	Home           string // of the programs that it starts
	Workspaces     string
	User           *process.User // that agents and commands run as; nil: this process's own
	Providers      map[string]agent.Provider
	Fixtures       func(dir string) (agent.Provider, error) // nil: the runner has none
	Ask            func(ctx context.Context, subject string, question []byte) ([]byte, error)
	Secrets        map[string]string
	PersistTimeout time.Duration
	DrainTimeout   time.Duration
	AnchorEvery    time.Duration // 0: events don't age
	Draining       *turn.Signal
	Process        string // a name that no other process has
	NodeTrials     int    // how many processes in a row a node may end before its run is set aside

	Log      *eventlog.Log
	Logger   *slog.Logger
	Leases   *lease.Holder
	Runs     *view.Runs
	Queue    *queue.Queue
	Prices   agent.Prices      // of models, where a node says nothing else
	Sessions *transcript.Store // session files of agents
	Kept     *workspace.Store  // snapshots of the folders of runs; nil: none are taken
	Private  []string          // folders that are no part of a run's
	Working  *registry.Set     // executions that have a worker here, "<run>/<exec>"
	Shelf    *keeper.Shelf     // keepers of executions; nil: programs are children of this process
	Health   *health.Board     // is told which journals have no room
	// LeaveAgents says that a runner will come back here: what is still at work when this one has drained
	// is left to its keeper.
	LeaveAgents bool

	TakenOver, Lost       prometheus.Counter
	Agents, AgentFailures *prometheus.CounterVec // by provider
	FolderBytes           prometheus.Counter     // that snapshots of folders take

	begun time.Time
	alone chan struct{} // holds one while a node is tried that may have ended processes
}

// keeperFence returns how the processes of the runner's nodes end with their keepers.
func (c *Config) keeperFence() string {
	if c.Shelf == nil {
		return ""
	}
	return c.Shelf.Means()
}

// isKept reports whether an earlier worker of this runner has left processes of an offer's execution, or what they
// have said.
func (c *Config) isKept(o *wire.NodeOffer) bool {
	if c.Shelf == nil {
		return false
	}
	_, kept := c.Shelf.Find(o.RunID, o.NodeID, o.ExecID)
	return kept
}

// keeperLives reports whether the processes of an offer's execution may be at work in a keeper that this process
// hasn't ended: until its deadline no other worker may begin.
func (c *Config) keeperLives(ctx context.Context, o *wire.NodeOffer) bool {
	return c.isKept(o) && c.Shelf.Lives(context.WithoutCancel(ctx), keeper.Label{Run: o.RunID, Node: o.NodeID, Exec: o.ExecID})
}

func (c *Config) subjectNames() subjects.Names { return c.Log.Names() }
