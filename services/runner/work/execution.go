package work

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// execution is one execution of a node, by a worker that has claimed it.
type execution struct {
	cfg     *Config
	folders *folders
	offer   *wire.NodeOffer
	log     *nodeLog
	seat    *Seat
	span    trace.Span // of starting the node
	halt    halt
	asked   approvals
	post    post

	// What the execution needs of the run's state, as it was at the claim.
	state  *wire.State // nil while the agent is at work: then there is only the origin
	origin runSettings
	def    *flow.Definition
	node   *flow.Node
	entry  nodeEntry // the node's, with its input whole

	workdir  workdir
	hold     *hold           // of its processes; nil until it has some
	kept     *keptFolder     // nil until a snapshot is taken
	beside   sync.WaitGroup  // of snapshots that are taken while the agent has begun
	recorded <-chan struct{} // closed once that snapshot is on its way to the log, or there is none; nil: none follows
	begun    bool            // the agent's agent:start is stored
	output   wire.Raw        // what there is of a command that fails

	outer  context.Context //nolint:containedctx // in which the end is recorded
	ctx    context.Context //nolint:containedctx // of the work, which lasts as long
	cancel context.CancelCauseFunc
	limit  *time.Timer   // of its time; nil: there is none
	since  time.Duration // when its time began, on the clock of process.Uptime
	watch  *watch

	drive *drive // the session of the agent that is at work; nil: none is
	// lingered says that the agent may have ended before it was given a message that has come.
	lingered bool
	lost     int  // keepers of the agent
	isDue    bool // the command of the node is to be run
	// unbegun says that no worker has begun the command, this one included.
	unbegun bool
	// events and err are how the execution has ended, when nothing is at work.
	events []*wire.Event
	err    error
}

// nodeEntry is what an execution needs of the state of its node.
type nodeEntry struct {
	Exec                                    string
	Execs, Attempt, Waits, Iteration, Turns int
	Started                                 uint64
	StartedAt                               int64
	Point                                   string
	Resume                                  *wire.Resume
	Fork                                    *wire.AgentPoint
	Asked                                   []wire.Question
	Input                                   wire.Raw
}

// entryOf takes the entry of a node.
func entryOf(n *wire.NodeState) nodeEntry {
	return nodeEntry{
		Exec: n.Exec, Execs: n.Execs, Attempt: n.Attempt, Waits: n.Waits, Iteration: n.Iteration, Turns: n.Turns,
		Started: n.Started, StartedAt: n.StartedAt, Point: n.Point, Resume: n.Resume, Fork: n.Fork, Asked: n.Asked, Input: n.Input,
	}
}

// runSettings is what an execution needs of the run's state all along.
type runSettings struct {
	fixtures  string
	overrides wire.Raw
	values    wire.Raw // the user's
	limits    wire.Raw
	folder    *wire.FolderSnapshot
	labels    map[string]string
}

// setState sets the state of the run, and with it the node's.
func (x *execution) setState(s *wire.State) {
	n := s.Nodes[x.offer.NodeID]
	x.state, x.entry = s, entryOf(&n)
	x.origin = runSettings{s.Fixtures, s.Overrides, s.State, s.Limits, s.Folder, s.Labels}
}

// isHoldOnly reports whether only the open calls of the execution are to be dealt
// with.
func (x *execution) isHoldOnly() bool { return x.entry.Resume != nil && x.entry.Resume.Hold }

// isHalted reports whether the execution is to begin nothing: the run is paused, or the runner ends.
func (x *execution) isHalted() bool { return x.halt.isTold() || x.cfg.Draining.IsGiven() }

// isKept reports whether an earlier worker of this runner has left processes of the execution, or what they
// have said.
func (x *execution) isKept() bool { return x.cfg.isKept(x.offer) }

// beginTime has the time of the execution, which may be limited, begin on the clock of process.Uptime. What its programs have said
// while they had no worker is recorded, if that takes no longer than a part of the limit.
func (x *execution) beginTime(since time.Duration) {
	x.since = since
	if limit := x.timeLimit(); limit > 0 {
		x.limit.Reset(max(since+limit-process.Uptime(), min(limit/lateShare, lateTime)))
	}
}

// readyTime is how much longer than its time an execution may take until it begins, with its folder cloned and a snapshot taken of it.
const readyTime = 10 * time.Minute

// How much of its time limit an execution has at least when a worker comes back to its programs: a part of it, and how long at most.
const (
	lateShare = 4
	lateTime  = 10 * time.Second
)

// timeLimit returns how long the execution may take; 0 is no limit.
func (x *execution) timeLimit() time.Duration {
	if x.node.Policy == nil {
		return 0
	}
	return time.Duration(x.node.Policy.TimeoutMs) * time.Millisecond
}

func (x *execution) errorEvent(f *failure) *wire.Event {
	return &wire.Event{Payload: &wire.NodeError{Error: f.message, ErrorType: f.kind, Output: failedOutput(x.output, f), RetryAt: f.retryAt}}
}

// failedOutput is the output of a command that has failed. Where its exit code tells nothing of that, as it has ended well for itself
// when its time was over, an error does: a flow that goes on decides by its output.
func failedOutput(output wire.Raw, f *failure) wire.Raw {
	if code, is := output.Get("exitCode").Any().(int64); !is || code != 0 {
		return output
	}
	fields, _ := output.Any().(map[string]any)
	fields["error"] = f.message
	return wire.RawOf(fields)
}

func (x *execution) completeEvent(output wire.Raw) *wire.Event {
	return &wire.Event{Payload: &wire.NodeComplete{Output: output}}
}

// roomAgain is how often it is tried to begin what the disk had no room for.
const roomAgain = 500 * time.Millisecond

// awaitRoom repeats f, with which something begins, while the disk has no room for that, as programs at work wait for room in
// their journals. It fails with errHalted when the execution is to begin nothing any more.
func (x *execution) awaitRoom(f func() error) error {
	err := f()
	if !process.IsFull(err) {
		return err
	}
	defer x.tellRoom("")
	for ; process.IsFull(err); err = f() {
		x.tellRoom(err.Error())
		pull.Sleep(x.ctx, roomAgain)
		switch {
		case x.ctx.Err() != nil:
			return context.Cause(x.ctx)
		case x.isHalted():
			return errHalted
		}
	}
	return err
}

// tellRoom says why the programs of the execution wait for room in their journals, or to begin; "": they don't.
func (x *execution) tellRoom(full string) {
	var trouble error
	if full != "" {
		trouble = fmt.Errorf("%s of run %s waits, its journal has no room: %s", x.offer.NodeID, x.offer.RunID, full)
	}
	x.cfg.Health.Set("runner: journal of "+x.offer.RunID+"/"+x.offer.ExecID, trouble)
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
