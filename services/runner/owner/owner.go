package owner

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/turn"
	"code.wake.dev/wake/services/runner/internal/view"
)

// owner schedules one run. It holds no state that the log doesn't.
type owner struct {
	cfg     *Config
	runID   string
	request *wire.RunRequest // what begins the run; nil: it has begun
	def     *flow.Definition // nil if the request has none
	queued  bool             // see [Request]
	first   bool             // see [Request]
	fresh   bool             // neither the log nor another process has had anything of the run
	plan    *beginning       // of a fresh run; nil: it begins step by step
	onBegin func()
	begun   bool // it was called
	// workspaceAt is that of the request.
	workspaceAt string

	loop  *turn.Loop
	pause time.Duration   // before it begins again, if it fails
	lead  context.Context //nolint:containedctx // that of the schedule; nil: there is none yet
	kids  *children
	news  <-chan struct{} // see [purse.Purse.News]
	freed atomic.Bool     // see [owner.callFreed]
	wake  time.Time       // when it decides again, whether something happens or not
	timer *time.Timer     // calls the loop then; nil: it never had to
	// stirred is when something has happened last, resting what the owner looks at since, see [owner.beginRest].
	stirred time.Time
	resting *resting

	lease  *lease.Lease
	writer *eventlog.Writer
	view   *view.View
	last   *eventlog.Message // of the run's node before the claim
	before uint64            // the run's epoch when it was claimed
	epoch  uint64            // of the last claim, 0 before
	parked uint64            // the epoch in which the run was parked, if it was found so
	// registered is the revision of the run's registration by this owner.
	registered uint64
	// quiet is since when the run has had no event, quietAt the last one that it had.
	quiet   time.Time
	quietAt uint64
	// written is the position of the owner's last event. It decides nothing
	// before it has folded that far.
	written uint64
	offered map[string]*offerState // by node; a state isn't changed
	// rejected are the positions of commands that came before the run, and are on
	// record for none. They may still come, after those behind them.
	rejected command.Unobeyed
	commands *view.Subscription
	// strays says that a command that came before the run may be on record for none, and may yet come.
	strays  bool
	folder  folder
	anchors anchors
	trial   runTrial
}

// asked is the request that begins the run; of one that has begun it says no more than where its folder is to be.
func (o *owner) asked() *wire.RunRequest {
	if o.request == nil {
		return &wire.RunRequest{RunID: o.runID, WorkspaceAt: o.workspaceAt}
	}
	return o.request
}

// appendEvents appends events that are stored together or not at all.
func (o *owner) appendEvents(ctx context.Context, events []*wire.Event) error {
	return o.noteWritten(ctx, events, o.writer.Append)
}

// appendDecision appends the events of a decision, of which each follows from the state before it alone: what is left
// out, the next owner decides.
func (o *owner) appendDecision(ctx context.Context, events []*wire.Event) error {
	return o.noteWritten(ctx, events, o.writer.AppendEach)
}

func (o *owner) noteWritten(ctx context.Context, events []*wire.Event, store func(context.Context, ...*wire.Event) (uint64, error)) error {
	now := time.Now().UnixMilli()
	for _, e := range events {
		e.Timestamp = now
	}
	pos, err := store(ctx, events...)
	if err != nil {
		return err
	}
	o.written = pos
	return nil
}

// runTrial is the taking over of a run, until its owner has decided for it the first time. The count of
// trials stands in the run's registration before anything is done, so that it survives the process. A run
// that has been tried before is tried alone: if that ends the process, the run has done it, and not one of
// those that the same runner took over at the same time.
type runTrial struct {
	count int                    // this one and those before it that weren't passed
	last  *registry.Registration // nil: it is new
	leave func()                 // others may be tried alone; nil: this one isn't
}

// offerState says when an execution was last offered, and how long to wait until it
// is offered again. That grows: while no runner has room, the queue must not.
type offerState struct {
	exec  string
	at    time.Time
	wait  time.Duration
	begun bool // a worker has taken it since then
	turns int  // that its agent had taken by then
	// resumed is the run's last resumption by then: while the run was paused, a runner lets an offer fall.
	resumed uint64
}

// anchors says when the run and its nodes were last claimed so that they don't
// age out of the stream.
type anchors struct {
	begun time.Time
	claim uint64               // position of the owner's claim: what is behind it is younger than begun
	at    map[string]time.Time // by node
}

var (
	errDrained = errors.New("the runner is ending")
	errParked  = errors.New("the run is parked")
	errWaits   = errors.New("the run waits")
)

// leaseKey names the lease of a node, or of the run.
func (o *owner) leaseKey(node string) lease.Key { return lease.Key{Run: o.runID, Node: node} }

// folder is what an owner knows of the folder of its run.
type folder struct {
	holder string    // the runner that has it
	gone   time.Time // since when neither that runner nor the folder is there; zero: one is
	shared bool      // it is that of the parent, which stays with it
	own    bool      // it isn't

	movesTo   string // see [registry.Registration]
	movesFrom uint64
	moved     string
}

// isBound reports whether the nodes of the run stay with the folder of the run.
func (o *owner) isBound() bool { return o.def.IsBound() }
