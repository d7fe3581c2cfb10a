package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/internal/run"
	"wake/internal/tracing"
	"wake/pkg/wire"
)

// worker executes one node once, from its beginning or from where another
// worker has left it.
type worker struct {
	runner *Runner
	keeper *lease.Keeper
	offer  wire.NodeOffer
	taken  func() // called when the offer has served its purpose

	lease   *lease.Lease
	span    trace.Span // of starting the node
	writer  *eventlog.Writer
	view    *view // belongs to the watch while it runs
	started time.Time
	halt    halt
	asked   approvals
	seat    *seat

	// What the execution needs of the run's state, as it was at the claim.
	state   *wire.State
	def     *flow.Definition
	node    *flow.Node
	workdir workdir

	begun  bool      // the agent's agent:start is stored
	told   bool      // the agent has been given notices; belongs to the watch while it runs
	output wire.Raw  // what there is of a command that fails
	away   time.Time // since when events weren't stored in time; zero: they are
}

var (
	// errWithdrawn ends an execution that the owner has cancelled.
	errWithdrawn = errors.New("withdrawn by the owner")
	// errTimeLimit ends an execution that takes too long.
	errTimeLimit = errors.New("time limit of the node")
	// errHalted ends an execution before it has begun: the run is paused, or the
	// runner ends.
	errHalted = errors.New("halted")
)

// run executes the node if it is still wanted. Who finds that somebody else has
// taken over leaves without a trace in the log.
func (w *worker) run(ctx context.Context) (err error) {
	r := w.runner
	if w.view, err = r.open(ctx, w.offer.RunID); err != nil {
		return err
	}
	defer w.view.close()
	// Looking before claiming saves a claim for an offer that is out of date.
	if !w.wanted() {
		w.taken()
		return nil
	}
	w.lease, err = w.acquire(ctx)
	if errors.Is(err, lease.ErrHeld) {
		return w.held()
	}
	if err != nil {
		return err
	}
	defer w.release(ctx)
	ctx = w.begins(ctx)
	defer w.span.End()
	before := w.last()
	if err := w.claim(ctx); gone(err) {
		return lease.ErrHeld // somebody else was faster
	} else if err != nil {
		tracing.Fail(w.span, err)
		return err
	}
	if !w.wanted() {
		return w.writer.Close(ctx)
	}
	if before != "" && before != r.cfg.ID {
		r.metrics.taken.WithLabelValues(ofNodes).Inc()
	}
	err = w.execute(ctx)
	tracing.Fail(w.span, err)
	if gone(err) {
		r.metrics.lost.WithLabelValues(ofNodes).Inc()
		r.logger.Warn("gave up: another runner has taken over", "run", w.offer.RunID, "node", w.offer.NodeID, "exec", w.offer.ExecID, "cause", err)
		return nil
	}
	return err
}

// begins starts the span of starting the node, which ends when its agent or command
// is at work.
func (w *worker) begins(ctx context.Context) context.Context {
	names := w.runner.names
	ctx, w.span = tracing.Process(ctx, w.runner.log.Tracer(), tracing.Destination(names.Prefix(), names.QueueNode("")),
		tracing.Run(w.offer.RunID), tracing.Node(w.offer.NodeID), tracing.Exec(w.offer.ExecID), tracing.Resumed(w.last() != ""))
	return ctx
}

// What an owner sees as free, this runner may see a moment later: it waits for a
// part of a lease's time to live before it hands the offer back, and looks every so
// often.
const (
	freeSoon = 5
	freeLook = 100
)

// acquire takes the lease of the node. One whose holder has just died isn't held
// for long any more.
func (w *worker) acquire(ctx context.Context) (*lease.Lease, error) {
	ttl := w.keeper.TTL()
	for until := time.Now().Add(ttl / freeSoon); ; {
		l, err := w.keeper.Acquire(ctx, w.key(), w.last())
		info, held := w.keeper.Holder(w.key())
		here := held && info.Runner == w.runner.cfg.ID
		if !errors.Is(err, lease.ErrHeld) || w.last() == "" || here || !time.Now().Before(until) {
			return l, err
		}
		sleep(ctx, ttl/freeLook)
		if ctx.Err() != nil {
			return nil, lease.ErrHeld
		}
	}
}

// key is the key of the node's lease.
func (w *worker) key() string { return w.runner.names.LeaseKey(w.offer.RunID, w.offer.NodeID) }

// last returns who has begun the execution, "" if nobody has.
func (w *worker) last() string {
	n := w.view.state.Nodes[w.offer.NodeID]
	if n.Started == 0 {
		return ""
	}
	return n.Runner
}

// claim makes the worker the writer of the node, and its view the state at the
// position of the claim: what counts is whether the node was wanted there.
func (w *worker) claim(ctx context.Context) (err error) {
	if err := w.view.follow(ctx); err != nil {
		return err
	}
	if !w.lease.Valid() { // acquiring took long: don't fence whoever holds it now
		return errLeaseLost
	}
	n := w.view.state.Nodes[w.offer.NodeID]
	claim := eventlog.Claim{Runner: w.runner.cfg.ID, MinEpoch: w.lease.Revision(), ExecID: w.offer.ExecID, AtSeq: n.Seq}
	if w.writer, err = w.runner.log.Claim(ctx, w.offer.RunID, w.offer.NodeID, claim); err != nil {
		return err
	}
	w.taken()
	_, pos := w.writer.Last()
	return w.view.wait(ctx, pos)
}

// held judges an offer of a node whose lease can't be had. It is needless if this
// runner is at work on the node.
func (w *worker) held() error {
	n := w.view.state.Nodes[w.offer.NodeID]
	if info, ok := w.keeper.Holder(w.key()); ok && info.Runner == w.runner.cfg.ID && n.Started != 0 {
		w.taken()
		return nil
	}
	return lease.ErrHeld
}

// wanted reports whether the execution is the node's latest, has not ended, and
// the run is running; in a paused run, whether its open calls are to be dealt
// with.
func (w *worker) wanted() bool {
	s := w.view.state
	n, ok := s.Nodes[w.offer.NodeID]
	if !ok || n.Exec != w.offer.ExecID || !n.Open() {
		return false
	}
	hold := n.Started != 0 && n.Resume != nil && n.Resume.Hold
	return s.Status == wire.RunRunning || s.Status == wire.RunPaused && hold
}

// execute runs the node within its time limit and records how it ended.
func (w *worker) execute(ctx context.Context) error {
	n, missing, err := w.prepare(ctx)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if limit := w.timeLimit(); limit > 0 {
		timer := time.AfterFunc(limit, func() { cancel(errTimeLimit) })
		defer timer.Stop()
	}
	watch := w.watch(work, cancel)
	events, err := w.attempt(work, n, missing, watch.messages)
	cause := context.Cause(work)
	cancel(nil)
	watch.wait()
	return w.end(ctx, cause, events, err)
}

// prepare takes what the execution needs from the state. missing says that its
// input is gone.
func (w *worker) prepare(ctx context.Context) (n wire.NodeState, missing, err error) {
	w.state = run.Clone(w.view.state)
	if w.def, err = flow.FromRaw(w.state.Definition); err != nil {
		return n, nil, fmt.Errorf("definition of run %s: %w", w.offer.RunID, err)
	}
	if w.node = w.def.Node(w.offer.NodeID); w.node == nil {
		return n, nil, fmt.Errorf("run %s: the flow has no node %s", w.offer.RunID, w.offer.NodeID)
	}
	w.started = time.Now()
	w.halt.begin()
	w.seat.halted = w.halt.told
	n = w.state.Nodes[w.offer.NodeID]
	w.span.SetAttributes(tracing.Attempt(n.Attempt))
	input, missing := w.view.input(ctx, w.offer.NodeID)
	if missing != nil && !errors.Is(missing, errMissing) {
		return n, nil, missing
	} else if missing == nil {
		n.Input = input
	}
	return n, missing, nil
}

// attempt does the work of the node and returns the events that end it. Of an
// execution that has begun it is a continuation, without a second node:start.
func (w *worker) attempt(ctx context.Context, n wire.NodeState, missing error, messages <-chan wire.InboxEntry) ([]*wire.Event, error) {
	again := n.Started != 0
	var unusable *failure
	if err := w.openWorkdir(ctx); err != nil && !errors.As(err, &unusable) {
		return nil, err
	}
	if (w.halt.is() || w.runner.isDraining()) && !w.holds(n) {
		return nil, errHalted
	}
	if !again {
		start := &wire.NodeStart{NodeType: string(w.node.Type), Attempt: n.Attempt, Iteration: n.Iteration, Input: n.Input}
		if err := w.append(ctx, &wire.Event{Payload: start}); err != nil {
			return nil, err
		}
	}
	switch {
	case missing != nil:
		return nil, &failure{message: fmt.Sprintf("input of the node: %v", missing), kind: wire.ErrorStartFailed}
	case unusable != nil:
		return nil, unusable
	case w.node.Type == flow.TypeAgent:
		events, err := w.agent(ctx, n, messages)
		return w.audited(ctx, n, events, err)
	case w.node.Type == flow.TypeExec && again && !w.node.Idempotent:
		return nil, &failure{
			message: "its runner ended while the command was running; nobody knows what it has done",
			kind:    wire.ErrorInterrupted,
		}
	case w.node.Type == flow.TypeExec:
		events, err := w.command(ctx, n)
		return w.audited(ctx, n, events, err)
	}
	return nil, &failure{message: fmt.Sprintf("a worker can't execute a node of type %q", w.node.Type), kind: wire.ErrorStartFailed}
}

// holds reports whether only the open calls of the execution are to be dealt
// with.
func (w *worker) holds(n wire.NodeState) bool { return n.Resume != nil && n.Resume.Hold }

// timeLimit returns how long the execution may take; 0 is no limit.
func (w *worker) timeLimit() time.Duration {
	if w.node.Policy == nil {
		return 0
	}
	return time.Duration(w.node.Policy.TimeoutMs) * time.Millisecond
}

// end records the end of the execution: its last events and its outcome in one
// commit. What had an outcome before it was interrupted keeps it; what was
// interrupted has none and stays open.
func (w *worker) end(ctx context.Context, cause error, events []*wire.Event, err error) error {
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(giveBack, w.runner.cfg.PersistTimeout))
	defer cancel()
	switch {
	case gone(cause):
		return cause // somebody else may be at work: write nothing
	case gone(err):
		return err
	case err == nil && slices.ContainsFunc(events, outcome), errors.Is(err, errHalted):
	case errors.Is(cause, errWithdrawn):
		if w.begun && !slices.ContainsFunc(events, terminal) {
			events = append(events, &wire.Event{Payload: &wire.AgentAborted{Reason: "cancelled"}})
		}
	case ctx.Err() != nil: // the time to come to a safe point is over
		if w.begun && !slices.ContainsFunc(events, terminal) {
			events = append(events, &wire.Event{Payload: &wire.AgentPaused{Reason: pauseForced}})
		}
	case errors.Is(cause, errTimeLimit):
		events = append(events, w.failed(fmt.Sprintf("time limit of %s exceeded", w.timeLimit()), wire.ErrorTimeout))
	case err != nil:
		var failure *failure
		if !errors.As(err, &failure) {
			return err
		}
		events = append(events, w.failed(failure.message, failure.kind))
	}
	if !w.away.IsZero() {
		events = append([]*wire.Event{w.storageFailure()}, events...)
	}
	if len(events) > 0 {
		err := w.append(final, events...)
		if errors.As(err, new(*wire.FieldError)) {
			err = w.append(final, w.unfit(final, events, err))
		}
		if err != nil {
			return err
		}
	}
	return w.writer.Close(final)
}

// unfit sets the end of an execution aside that can't be stored, and returns
// another: without one the agent would be started again, for ever.
func (w *worker) unfit(ctx context.Context, events []*wire.Event, reason error) *wire.Event {
	for _, e := range events {
		w.setAside(ctx, e, reason)
	}
	end := &wire.NodeError{Error: "its end can't be stored: " + reason.Error(), ErrorType: wire.ErrorException}
	return &wire.Event{Payload: end}
}

// gone reports whether an error says that somebody else may be at work.
func gone(err error) bool { return errors.Is(err, eventlog.ErrFenced) || errors.Is(err, errLeaseLost) }

// outcome reports whether e ends an execution.
func outcome(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.NodeComplete, *wire.NodeError:
		return true
	}
	return false
}

// failure is an outcome of a node, as opposed to a fault of the worker.
type failure struct{ message, kind string }

func (f *failure) Error() string { return f.message }

func (w *worker) failed(message, kind string) *wire.Event {
	return &wire.Event{Payload: &wire.NodeError{
		Error: message, ErrorType: kind, Output: w.output, DurationMs: time.Since(w.started).Milliseconds(),
	}}
}

func (w *worker) completed(output wire.Raw) *wire.Event {
	return &wire.Event{Payload: &wire.NodeComplete{Output: output, DurationMs: time.Since(w.started).Milliseconds()}}
}

// stamp completes the events of the execution.
func (w *worker) stamp(events ...*wire.Event) {
	now := time.Now().UnixMilli()
	for _, e := range events {
		e.ExecID = w.offer.ExecID
		if e.Timestamp == 0 {
			e.Timestamp = now
		}
	}
}

func (w *worker) append(ctx context.Context, events ...*wire.Event) error {
	w.stamp(events...)
	_, err := w.writer.Append(ctx, events...)
	return err
}

// record puts events of the agent on record; of several, the last decides how.
// Events that a crash must not lose are awaited, for a bounded time; the others
// follow in order. If storage stays away, only the intent of a tool and the session
// stop the agent. A worker that has lost its lease records nothing.
func (w *worker) record(ctx context.Context, events ...*wire.Event) error {
	select {
	case <-w.lease.Lost():
		return errLeaseLost
	default:
	}
	w.stamp(events...)
	e := events[len(events)-1]
	err := w.put(ctx, e, events)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, eventlog.ErrFenced), errors.Is(err, eventlog.ErrClosed):
		return err
	case must(e) && errors.As(err, new(*wire.FieldError)):
		w.setAside(ctx, e, err)
		return &failure{message: fmt.Sprintf("%s can't be stored: %v", e.Type(), err), kind: wire.ErrorException}
	case must(e):
		return fmt.Errorf("%s not stored within %s: %w", e.Type(), w.runner.cfg.PersistTimeout, err)
	case errors.As(err, new(*wire.FieldError)):
		w.setAside(ctx, e, err)
		return nil
	}
	w.runner.logger.Warn("event not stored yet", "run", w.offer.RunID, "node", w.offer.NodeID, "type", e.Type(), "error", err)
	return nil
}

// put takes events into the log, and waits for them if the last is one to wait
// for.
func (w *worker) put(ctx context.Context, last *wire.Event, events []*wire.Event) error {
	if !last.Type().Awaited() {
		return w.writer.Enqueue(ctx, last)
	}
	start := time.Now()
	wait, cancel := context.WithTimeout(ctx, w.runner.cfg.PersistTimeout)
	defer cancel()
	_, err := w.writer.Append(wait, events...)
	switch {
	case err == nil && !w.away.IsZero():
		failed := w.storageFailure()
		w.stamp(failed)
		w.away = time.Time{}
		return w.writer.Enqueue(ctx, failed)
	case errors.Is(err, eventlog.ErrAmbiguous) && w.away.IsZero():
		w.away = start
	}
	return err
}

// storageFailure says on record that events weren't stored in time, which is
// over.
func (w *worker) storageFailure() *wire.Event {
	return &wire.Event{Payload: &wire.StorageFailure{
		Message: "storage was away: events that are awaited were stored late",
		SinceMs: w.away.UnixMilli(), UntilMs: time.Now().UnixMilli(),
	}}
}

// setAside moves an event that can't be stored to the dead letters; the agent
// goes on.
func (w *worker) setAside(ctx context.Context, e *wire.Event, reason error) {
	w.runner.logger.Error("event refused", "run", w.offer.RunID, "node", w.offer.NodeID, "type", e.Type(), "error", reason)
	subject := w.runner.names.Event(w.offer.RunID, w.offer.NodeID, string(e.Type().Kind()))
	entry := eventlog.Entry{Subject: subject, Data: []byte(w.runner.log.Redacted(fmt.Sprintf("%+v", e.Payload)))}
	if err := w.runner.log.DeadLetter(ctx, "runner", reason.Error(), entry); err != nil {
		w.runner.logger.Error("dead letter not stored", "subject", subject, "error", err)
	}
}

// must reports whether the agent can't go on without e being stored.
func must(e *wire.Event) bool {
	switch p := e.Payload.(type) {
	case *wire.AgentStart, *wire.SessionBound:
		return true
	case *wire.ToolIntent:
		return !p.Idempotent
	}
	return false
}

func (w *worker) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	if err := w.lease.Release(ctx); err != nil {
		w.runner.logger.Warn("lease not released", "run", w.offer.RunID, "node", w.offer.NodeID, "error", err)
	}
}
