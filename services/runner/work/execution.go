package work

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// execution is one execution of a node, by a worker that has claimed it.
type execution struct {
	cfg     *Config
	folders *folders
	offer   wire.NodeOffer
	log     *nodeLog
	seat    *Seat
	span    trace.Span // of starting the node
	halt    halt
	asked   approvals
	post    post

	// What the execution needs of the run's state, as it was at the claim.
	state *wire.State
	def   *flow.Definition
	node  *flow.Node
	entry wire.NodeState // the node's, with its input whole

	workdir  workdir
	hold     *hold           // of its processes; nil until it has some
	kept     *keptFolder     // nil until a snapshot is taken
	beside   sync.WaitGroup  // of snapshots that are taken while the agent has begun
	recorded <-chan struct{} // closed once that snapshot is on its way to the log, or there is none; nil: none follows
	started  time.Time
	begun    bool     // the agent's agent:start is stored
	output   wire.Raw // what there is of a command that fails
}

// isHoldOnly reports whether only the open calls of the execution are to be dealt
// with.
func (x *execution) isHoldOnly() bool { return x.entry.Resume != nil && x.entry.Resume.Hold }

// isHalted reports whether the execution is to begin nothing: the run is paused, or the runner ends.
func (x *execution) isHalted() bool { return x.halt.isTold() || x.cfg.Draining.IsGiven() }

// isKept reports whether an earlier worker of this runner has left processes of the execution, or what they
// have said.
func (x *execution) isKept() bool { return x.cfg.isKept(x.offer) }

// timeLimit returns how long the execution may take; 0 is no limit.
func (x *execution) timeLimit() time.Duration {
	if x.node.Policy == nil {
		return 0
	}
	return time.Duration(x.node.Policy.TimeoutMs) * time.Millisecond
}

func (x *execution) errorEvent(f *failure) *wire.Event {
	return &wire.Event{Payload: &wire.NodeError{
		Error: f.message, ErrorType: f.kind, Output: x.output, DurationMs: time.Since(x.started).Milliseconds(), RetryAt: f.retryAt,
	}}
}

func (x *execution) completeEvent(output wire.Raw) *wire.Event {
	return &wire.Event{Payload: &wire.NodeComplete{Output: output, DurationMs: time.Since(x.started).Milliseconds()}}
}

// endHalted ends an execution that is to begin nothing. If the runner ends, the keeper of an earlier worker stays.
func (x *execution) endHalted() error {
	paused := x.halt.isTold() && x.halt.reason != run.CauseShutdown
	if paused || !x.hold.canLeave() || !x.hold.inherited {
		return errHalted
	}
	x.hold.leaveKeeper()
	return errLeft
}

// leaveForced leaves the processes to their keeper if ctx, that of the work, has ended only since the runner's time to
// drain is over. It reports whether they are left.
func (x *execution) leaveForced(ctx context.Context) bool {
	if context.Cause(ctx) != context.Canceled || !x.hold.canLeave() { //nolint:errorlint // a cause that wraps it is another one
		return false
	}
	x.hold.leaveKeeper()
	return true
}
