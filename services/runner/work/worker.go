package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/view"
)

// Worker takes one offer, and executes the node once, from its beginning or from where
// another worker has left it.
type Worker struct {
	cfg      *Config
	folders  *folders
	offer    *wire.NodeOffer
	onSettle func(first bool) // called when the offer has served its purpose
	first    bool             // no other offer's worker is at work
	seat     *Seat

	lease   *lease.Lease
	trial   offerTrial
	span    trace.Span // of starting the node
	writer  *eventlog.Writer
	view    *view.View // belongs to the watch while it runs
	exec    *execution // nil: there is nothing to be executed
	left    bool       // a former process of this runner has left it to its keeper
	unbegun bool       // the workers before have given the node back before they had begun its command
}

// begin begins to execute the node if it is still wanted. A worker that finds that another
// one has taken over leaves no trace in the log.
func (w *Worker) begin(ctx context.Context) (err error) {
	if err = w.openView(ctx); err != nil {
		return err
	}
	// Looking before claiming saves a claim for an offer that is out of date.
	wanted := w.isWanted()
	if !wanted && !w.isLeftOver() {
		w.settleOffer()
		return nil
	}
	if wanted && !w.enterTrial() {
		return lease.ErrHeld
	}
	ctx, claimed, err := w.takeNode(ctx)
	switch {
	case !claimed:
		return err
	case w.isWanted():
	case w.left && w.isOver():
		return w.closeLeftOver(ctx)
	default:
		return w.leaveNode(ctx, false, false, nil)
	}
	x, missing, err := w.prepareExecution(ctx)
	if err != nil {
		x.log.passTrial(ctx, &w.trial)
		return w.leaveNode(ctx, false, false, err)
	}
	w.exec = x
	w.beginExecution(ctx, missing)
	return nil
}

// openView opens the view of the run, with what its owner has shared if that wants the execution: else the log may have more.
func (w *Worker) openView(ctx context.Context) (err error) {
	if w.view = w.cfg.Runs.Join(ctx, w.offer.RunID); w.view != nil {
		if w.isWanted() {
			return nil
		}
		w.view.Close()
	}
	w.view, err = w.cfg.Runs.Open(ctx, w.offer.RunID)
	return err
}

// Work executes the node to its end. It wants a goroutine of its own: while the agent says nothing, little is on its stack.
func (w *Worker) Work() error {
	for w.exec.drive != nil {
		last, err := w.exec.drive.recordEvents()
		w.exec.endSession(last, err)
	}
	err := w.endExecution()
	w.close()
	return err
}

// close lets other offers of the execution be taken.
func (w *Worker) close() {
	w.trial.leaveTrial() // not deferred: no other trial may begin while a panic of this node ends the process
	if w.view != nil {
		w.view.Close()
	}
	if w.first {
		w.cfg.Working.Leave(w.offer.RunID + "/" + w.offer.ExecID)
	}
}

// settleOffer says that the offer has served its purpose.
func (w *Worker) settleOffer() {
	entered := w.cfg.Working.Enter(w.offer.RunID + "/" + w.offer.ExecID)
	w.first = w.first || entered
	w.onSettle(entered)
}

// takeNode claims the node. It begins the span of starting it, unless another worker has it.
func (w *Worker) takeNode(ctx context.Context) (_ context.Context, claimed bool, err error) {
	last, err := w.takeLease(ctx)
	if errors.Is(err, lease.ErrHeld) {
		return ctx, false, w.judgeHeld()
	}
	if err != nil {
		return ctx, false, err
	}
	before := w.lastRunner()
	w.left = w.wasLeft() && w.cfg.isKept(w.offer)
	w.unbegun = w.isUnbegun() // the claim ends what the log says of those before
	ctx = w.beginSpan(ctx, before)
	if err := w.claimNode(ctx, last); err != nil {
		w.lease.Release()
		if tenure.Over(err) {
			err = lease.ErrHeld // another worker was faster
		} else {
			tracing.Fail(w.span, err)
		}
		w.span.End()
		return ctx, false, err
	}
	if before != "" && before != w.cfg.ID && w.isWanted() {
		w.cfg.TakenOver.Inc()
	}
	return ctx, true, nil
}

// reportEnd reports how the execution ended for this worker. That another one has taken over is none of the runner's errors.
func (w *Worker) reportEnd(err error) error {
	tracing.Fail(w.span, err)
	if tenure.Over(err) {
		w.cfg.Lost.Inc()
		w.cfg.Logger.Warn("gave up: another runner has taken over", "run", w.offer.RunID, "node", w.offer.NodeID, "exec", w.offer.ExecID, "cause", err)
		return nil
	}
	return err
}

// leaveNode reports why the worker leaves the node, and gives it back. left says that its processes live on: until this process
// ends no other has them, and then the next one of this home. told says that the log has it already that the worker doesn't act
// any more.
func (w *Worker) leaveNode(ctx context.Context, left, told bool, err error) error {
	err = w.reportEnd(err)
	switch {
	case left:
	case told:
		w.lease.Release()
	case w.cfg.keeperLives(ctx, w.offer):
		w.lease.Abandon(w.giveBack)
	default:
		w.lease.Settle()
		rest, cancel := tenure.Rest(ctx)
		if failed := w.giveBack(rest); failed != nil { // it may be stored later
			w.cfg.Logger.Warn("node not given back", "run", w.offer.RunID, "node", w.offer.NodeID, "error", failed)
			w.lease.Abandon(w.giveBack)
		} else {
			w.lease.Release()
		}
		cancel()
	}
	w.span.End()
	return err
}

// giveBack says in the log that the worker doesn't act for the node any more.
func (w *Worker) giveBack(ctx context.Context) error {
	unbegun := w.unbegun
	if w.exec != nil {
		unbegun = w.exec.unbegun
	}
	_, err := w.writer.Append(ctx, &wire.Event{ExecID: w.offer.ExecID, Payload: w.cfg.emptyClaim(unbegun)})
	if err == nil {
		err = w.writer.Close(ctx)
	}
	if tenure.Over(err) || errors.Is(err, eventlog.ErrClosed) {
		return nil
	}
	return err
}

// beginSpan starts the span of starting the node, which ends when its agent or command
// is at work.
func (w *Worker) beginSpan(ctx context.Context, before string) context.Context {
	names := w.cfg.subjectNames()
	ctx, w.span = tracing.Process(ctx, w.cfg.Log.Tracer(), tracing.Destination(names.Prefix(), names.QueueNode("")),
		tracing.Run.String(w.offer.RunID), tracing.Node.String(w.offer.NodeID), tracing.Exec.String(w.offer.ExecID), tracing.Resumed.Bool(before != ""))
	return ctx
}

// What an owner sees as free, this runner may see a moment later: it waits for a
// part of a lease's time to live before it hands the offer back, and looks every so
// often.
const (
	freeSoon = 5
	freeLook = 100
)

// takeLease takes the lease of the node, and returns the last message of the node, behind which it is free. If its holder has
// just died it isn't held for long any more.
func (w *Worker) takeLease(ctx context.Context) (last eventlog.Message, err error) {
	ttl := w.cfg.Leases.TTL()
	for until := time.Now().Add(ttl / freeSoon); ; {
		if last, err = w.foldPresent(ctx); err != nil {
			return last, err
		}
		w.lease, err = w.cfg.Leases.Acquire(ctx, w.leaseKey(), w.lastClaimant())
		here := w.cfg.Leases.Holds(w.leaseKey())
		if !errors.Is(err, lease.ErrHeld) || here || !time.Now().Before(until) {
			return last, err
		}
		pull.Sleep(ctx, ttl/freeLook)
		if ctx.Err() != nil {
			return last, lease.ErrHeld
		}
	}
}

// foldPresent folds what the former worker wrote up to the moment, and returns the last of it.
func (w *Worker) foldPresent(ctx context.Context) (last eventlog.Message, err error) {
	last, found, err := w.cfg.Log.LastMessage(ctx, w.offer.RunID, w.offer.NodeID)
	if err != nil || !found {
		return last, err
	}
	return last, w.view.CatchUp(ctx, last.Pos)
}

// leaseKey is the key of the node's lease.
func (w *Worker) leaseKey() lease.Key { return lease.Key{Run: w.offer.RunID, Node: w.offer.NodeID} }

// lastClaimant returns the process that may still act for the node, by the log.
//
//go:noinline // a copy of the node's state would stay on the stack for as long as the agent works
func (w *Worker) lastClaimant() lease.Claimant {
	n := w.view.State().Nodes[w.offer.NodeID]
	return lease.Claimant{Runner: n.Runner, Process: n.Holder}
}

// lastRunner returns the runner that began the execution; "": none.
//
//go:noinline // as lastClaimant
func (w *Worker) lastRunner() string {
	n := w.view.State().Nodes[w.offer.NodeID]
	if n.Started == 0 {
		return ""
	}
	return n.Runner
}

// wasLeft is [Config.wasLeft] of the node.
//
//go:noinline // as lastClaimant
func (w *Worker) wasLeft() bool { return w.cfg.wasLeft(w.view.State().Nodes[w.offer.NodeID]) }

// isOver reports whether the execution, the last of its node, was ended.
//
//go:noinline // as lastClaimant
func (w *Worker) isOver() bool { return isOver(w.view.State(), w.offer.NodeID, w.offer.ExecID) }

// isLeftOver reports whether the execution is over, and what was left of it here is to be ended.
func (w *Worker) isLeftOver() bool { return w.isOver() && w.wasLeft() && w.cfg.isKept(w.offer) }

// isUnbegun reports whether it is known that no worker has begun the command of the execution, though one was about to.
//
//go:noinline // as lastClaimant
func (w *Worker) isUnbegun() bool { return w.view.State().Nodes[w.offer.NodeID].Unbegun }

// claimNode makes the worker the writer of the node behind its last message, and its view the state at the
// position of the claim: what counts is whether the node was wanted there.
func (w *Worker) claimNode(ctx context.Context, last eventlog.Message) (err error) {
	if !w.lease.Valid() { // acquiring took long: don't fence the worker that holds it now
		return tenure.ErrLeaseLost
	}
	n := w.view.State().Nodes[w.offer.NodeID]
	claim := eventlog.Claim{
		Runner: w.cfg.ID, Process: w.cfg.Process, Fence: w.cfg.keeperFence(), ExecID: w.offer.ExecID, MinEpoch: n.Epoch + 1, AtSeq: n.Seq, Last: &last,
	}
	if w.writer, err = w.cfg.Log.Claim(ctx, w.offer.RunID, w.offer.NodeID, claim); err != nil {
		return err
	}
	w.lease.Claimed(tenure.Proof(w.writer, w.cfg.ID, w.cfg.Process))
	w.settleOffer()
	_, pos := w.writer.Last()
	return w.view.Wait(ctx, pos)
}

// judgeHeld judges an offer when the node's lease can't be had. It is needless if this
// runner is at work on the node.
func (w *Worker) judgeHeld() error {
	if w.cfg.Leases.Holds(w.leaseKey()) && w.view.State().Nodes[w.offer.NodeID].Started != 0 {
		w.settleOffer()
		return nil
	}
	return lease.ErrHeld
}

// isWanted reports whether the execution is the node's latest, has not ended, and
// the run is running; in a paused run, whether its open calls are to be dealt
// with.
//
//go:noinline // as lastClaimant
func (w *Worker) isWanted() bool {
	s := w.view.State()
	n, ok := s.Nodes[w.offer.NodeID]
	if !ok || n.Exec != w.offer.ExecID || !n.Open() {
		return false
	}
	hold := n.Started != 0 && n.Resume != nil && n.Resume.Hold
	return s.Status == wire.RunRunning || s.Status == wire.RunPaused && hold
}

// beginExecution has the node begin within its time limit.
func (w *Worker) beginExecution(ctx context.Context, missing error) {
	x := w.exec
	x.outer = ctx
	work, cancel := context.WithCancelCause(ctx)
	x.ctx, x.cancel, x.since = work, cancel, process.Uptime()
	if limit := x.timeLimit(); limit > 0 {
		// Its time begins when it does, see [execution.beginNode].
		x.limit = time.AfterFunc(limit+readyTime, func() { cancel(errTimeLimit) })
	}
	x.watch = newWatch(x, w.view, &w.trial)
	x.watch.begin(work, cancel)
	x.events, x.err = x.beginNode(work, missing)
}

// endExecution records how the node ended, unless it has
// left its processes to a worker that comes back, and leaves it.
func (w *Worker) endExecution() error {
	x, ctx := w.exec, w.exec.outer
	events, err := x.endNode(x.ctx)
	cause, halted := context.Cause(x.ctx), errors.Is(err, errHalted)
	x.cancel(nil)
	if x.limit != nil {
		x.limit.Stop()
	}
	x.watch.stop()
	if !tenure.Over(cause) && !tenure.Over(err) { // else another worker may be at work
		x.log.passTrial(ctx, &w.trial)
	}
	w.lease.Settle()
	x.hold.endKeeper() // once the log says that the worker doesn't act, another one may begin
	told, err := x.recordEnd(ctx, cause, events, err)
	if x.kept != nil {
		x.folders.leaveFolder(x.kept)
	}
	x.hold.removeJournals(err == nil && !halted || tenure.Over(err))
	return w.leaveNode(ctx, x.hold.isLeft(), told, err)
}

// prepareExecution takes what the execution needs from the state. missing says that its
// input is gone.
func (w *Worker) prepareExecution(ctx context.Context) (x *execution, missing, err error) {
	x = &execution{
		cfg: w.cfg, folders: w.folders, offer: w.offer, seat: w.seat, span: w.span,
		log: &nodeLog{cfg: w.cfg, offer: w.offer, lease: w.lease, writer: w.writer},
	}
	x.setState(run.Clone(w.view.State()))
	if x.def, err = w.cfg.Runs.Definition(x.state.Definition); err != nil {
		return x, nil, fmt.Errorf("definition of run %s: %w", w.offer.RunID, err)
	}
	if x.node = x.def.Node(w.offer.NodeID); x.node == nil {
		return x, nil, fmt.Errorf("run %s: the flow has no node %s", w.offer.RunID, w.offer.NodeID)
	}
	x.unbegun = x.node.Type == flow.TypeExec && (w.unbegun || x.entry.Started == 0 && !x.isKept())
	x.log.played = x.node.Type == flow.TypeAgent && x.state.Fixtures != ""
	x.seat.halt = &x.halt
	x.span.SetAttributes(tracing.Attempt.Int(x.entry.Attempt))
	input, missing := w.view.Input(ctx, w.offer.NodeID)
	if missing != nil && !errors.Is(missing, view.ErrMissing) {
		return x, nil, missing
	} else if missing == nil {
		x.entry.Input = input
	}
	return x, missing, nil
}
