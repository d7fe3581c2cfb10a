package intake

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/services/runner/internal/capacity"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/view"
	"code.wake.dev/wake/services/runner/owner"
	"code.wake.dev/wake/services/runner/work"
)

// Config is what the intake needs of its runner.
type Config struct {
	ID      string // of the runner
	Pools   []string
	Slots   work.Slots // for nodes that are executed at once
	Resting work.Slots // for agents that wait for a person and have left their slot

	Log      *eventlog.Log
	Logger   *slog.Logger
	Leases   *lease.Holder
	Runs     *view.Runs
	Commands *command.Stream
	Queue    *queue.Queue
	Offers   *queue.Offers // of its owners
	Registry *registry.Registry
	Capacity *capacity.Gauge
	Owned    *registry.Set // runs that have an owner here

	Owners  *owner.Owners
	Workers *work.Workers

	RunWait, NodeWait prometheus.Observer // seconds that what is taken has waited in its queue
}

// Intake hands what comes to owners and workers.
type Intake struct {
	cfg      Config
	attempts *attempts
	dealt    *dealtCommands
	decided  map[string]callDecision // to calls of imported runs
	queues   *precedence
	tasks    sync.WaitGroup // owners and workers
}

// callDecision is the command that decides about a call.
type callDecision struct {
	pos uint64
	by  string
	at  time.Time
}

// New returns the intake of a runner.
func New(cfg Config) *Intake {
	return &Intake{cfg: cfg, attempts: newAttempts(), dealt: &dealtCommands{runs: map[string]uint64{}, nobodys: map[uint64]bool{}}, decided: map[string]callDecision{}, queues: newPrecedence()}
}

// Part is one thing that the intake does until its context ends.
type Part struct {
	Name string
	Run  func(context.Context) error
}

// Parts returns what the intake does. Owners and workers act under hard, which outlives
// the contexts of the parts.
func (in *Intake) Parts(hard context.Context) []Part {
	parts := []Part{
		{"active runs", func(ctx context.Context) error { return in.adoptRuns(ctx, hard) }},
		{"parked runs", func(ctx context.Context) error { return in.wakeRuns(ctx, hard) }},
		{"stray commands", in.catchAll},
		{"alerts", in.passAlerts},
		{"schedules", in.fireSchedules},
		{"agents left to keepers", in.offerLeft},
		{"offers of its owners", func(ctx context.Context) error { return in.takeOffers(ctx, hard) }},
		{"queue of runs", func(ctx context.Context) error { return in.takeRuns(ctx, hard) }},
	}
	for _, pool := range append([]string{owner.PoolOf(in.cfg.ID)}, in.cfg.Pools...) {
		parts = append(parts, Part{"queue of nodes of " + pool, func(ctx context.Context) error { return in.takeNodes(ctx, hard, pool) }})
	}
	return parts
}

// Note takes an event that has come. A record in the log of a run that no owner has registered isn't taken: the run may be an imported
// copy, and then the record has the position of a command to another installation.
func (in *Intake) Note(e eventlog.Entry) {
	p, ok := command.RecordOf(e)
	if !ok {
		return
	}
	if _, active := in.cfg.Registry.Get(e.RunID); active {
		in.dealt.noteOwner(in.subjectNames().Command(e.RunID), p.AtPos)
	} else if e.RunID == subjects.NoRun {
		in.dealt.noteNobody(p.AtPos)
	}
}

// Wait waits until no owner and no worker is left. No part may be at work any more.
func (in *Intake) Wait() {
	in.tasks.Wait()
	in.cfg.Owners.Wait()
}

func (in *Intake) subjectNames() subjects.Names { return in.cfg.Log.Names() }
