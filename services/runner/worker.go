package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// worker executes one node once.
type worker struct {
	runner *Runner
	keeper *lease.Keeper
	offer  wire.NodeOffer
	taken  func() // called when the offer has served its purpose

	lease   *lease.Lease
	writer  *eventlog.Writer
	view    *view
	started time.Time

	// What the execution needs of the run's state. The view itself belongs to
	// the watch from then on.
	node      *flow.Node
	workspace string
	fixtures  string
	provided  *wire.AgentStart // what the agent was asked

	output wire.Raw  // what there is of a command that fails
	away   time.Time // since when events weren't stored in time; zero: they are
}

// errWithdrawn ends an execution that the owner has cancelled.
var errWithdrawn = errors.New("withdrawn by the owner")

// run executes the node if it is still wanted.
func (w *worker) run(ctx context.Context) error {
	r := w.runner
	l, err := w.keeper.Acquire(ctx, r.names.LeaseKey(w.offer.RunID, w.offer.NodeID))
	if errors.Is(err, lease.ErrHeld) {
		return w.held(ctx)
	}
	if err != nil {
		return err
	}
	w.lease = l
	defer w.release(ctx)
	// Looking before claiming saves a claim for an offer that is out of date.
	if w.view, err = r.open(ctx, w.offer.RunID); err != nil {
		return err
	}
	defer w.view.close()
	if !w.wanted() {
		w.taken()
		return nil
	}
	if !l.Valid() { // reading took long: don't fence whoever holds it now
		return errLeaseLost
	}
	claim := eventlog.Claim{Runner: r.cfg.ID, MinEpoch: l.Revision(), ExecID: w.offer.ExecID}
	if w.writer, err = r.log.Claim(ctx, w.offer.RunID, w.offer.NodeID, claim); err != nil {
		return err
	}
	w.taken()
	// What counts is whether it was wanted at the position of the claim.
	_, pos := w.writer.Last()
	if err := w.view.wait(ctx, pos); err != nil {
		return err
	}
	if !w.wanted() {
		return w.writer.Close(ctx)
	}
	return w.execute(ctx)
}

// held looks whether an offer of a node that somebody works on is needless. It
// isn't before that has begun: it may still fail to.
func (w *worker) held(ctx context.Context) (err error) {
	if w.view, err = w.runner.open(ctx, w.offer.RunID); err != nil {
		return err
	}
	w.view.close()
	if w.wanted() {
		return lease.ErrHeld
	}
	w.taken()
	return nil
}

// wanted reports whether the execution is the node's latest, has not begun, and
// the run is running.
func (w *worker) wanted() bool {
	s := w.view.state
	n, ok := s.Nodes[w.offer.NodeID]
	return ok && s.Status == wire.RunRunning && n.Exec == w.offer.ExecID && n.Open() && n.Started == 0
}

// execute runs the node within its time limit and records how it ended.
func (w *worker) execute(ctx context.Context) error {
	def, err := flow.FromRaw(w.view.state.Definition)
	if err != nil {
		return fmt.Errorf("definition of run %s: %w", w.offer.RunID, err)
	}
	if w.node = def.Node(w.offer.NodeID); w.node == nil {
		return fmt.Errorf("run %s: the flow has no node %s", w.offer.RunID, w.offer.NodeID)
	}
	w.started, w.workspace, w.fixtures = time.Now(), w.view.state.Workspace, w.view.state.Fixtures
	if def.Workspace == "node" {
		if w.workspace, err = w.ownWorkspace(); err != nil {
			return err
		}
	}
	n := w.view.state.Nodes[w.offer.NodeID]
	input, missing := w.view.input(ctx, w.offer.NodeID)
	if missing != nil && !errors.Is(missing, errMissing) {
		return missing
	} else if missing == nil {
		n.Input = input
	}
	start := &wire.NodeStart{NodeType: string(w.node.Type), Attempt: n.Attempt, Iteration: n.Iteration, Input: n.Input}
	if err := w.append(ctx, &wire.Event{Payload: start}); err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if limit := w.timeLimit(); limit > 0 {
		timer := time.AfterFunc(limit, func() { cancel(errTimeLimit) })
		defer timer.Stop()
	}
	watch := w.watch(work, cancel)
	var events []*wire.Event
	switch {
	case missing != nil:
		err = &failure{message: fmt.Sprintf("input of the node: %v", missing), kind: wire.ErrorStartFailed}
	case w.node.Type == flow.TypeAgent:
		events, err = w.agent(work, n, watch.messages)
	case w.node.Type == flow.TypeExec:
		events, err = w.command(work, n)
	default:
		err = &failure{message: fmt.Sprintf("a worker can't execute a node of type %q", w.node.Type), kind: wire.ErrorStartFailed}
	}
	cause := context.Cause(work)
	cancel(nil)
	watch.wait()
	return w.end(ctx, cause, events, err)
}

// ownWorkspace makes a fresh folder for the execution.
func (w *worker) ownWorkspace() (string, error) {
	dir := filepath.Join(w.runner.cfg.Workspaces, subjects.Escape(w.offer.RunID), subjects.Escape(w.offer.ExecID))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	return dir, nil
}

// timeLimit returns how long the execution may take; 0 is no limit.
func (w *worker) timeLimit() time.Duration {
	if w.node.Policy == nil {
		return 0
	}
	return time.Duration(w.node.Policy.TimeoutMs) * time.Millisecond
}

var errTimeLimit = errors.New("time limit of the node")

// end records the end of the execution: its last events and its outcome in one
// commit. What had an outcome before it was interrupted keeps it; what was
// interrupted from outside has none.
func (w *worker) end(ctx context.Context, cause error, events []*wire.Event, err error) error {
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(giveBack, w.runner.cfg.PersistTimeout))
	defer cancel()
	switch {
	case errors.Is(cause, eventlog.ErrFenced), errors.Is(cause, errLeaseLost):
		return cause // somebody else may be at work: write nothing
	case err == nil && slices.ContainsFunc(events, outcome):
	case errors.Is(cause, errWithdrawn), ctx.Err() != nil:
		if w.node.Type == flow.TypeAgent && !slices.ContainsFunc(events, terminal) {
			events = append(events, &wire.Event{Payload: &wire.AgentAborted{Reason: reasonOf(cause)}})
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
		if err := w.append(final, events...); err != nil {
			return err
		}
	}
	return w.writer.Close(final)
}

// outcome reports whether e ends an execution.
func outcome(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.NodeComplete, *wire.NodeError:
		return true
	}
	return false
}

func reasonOf(cause error) string {
	if errors.Is(cause, errWithdrawn) {
		return "cancelled"
	}
	return "shutdown"
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

// record puts an event of the agent on record. Events that a crash must not
// lose are awaited, for a bounded time; the others follow in order. If storage
// stays away, only the intent of a tool and the session stop the agent.
func (w *worker) record(ctx context.Context, e *wire.Event) error {
	w.stamp(e)
	err := w.put(ctx, e)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, eventlog.ErrFenced), errors.Is(err, eventlog.ErrClosed):
		return err
	case must(e):
		return fmt.Errorf("%s not stored within %s: %w", e.Type(), w.runner.cfg.PersistTimeout, err)
	case errors.As(err, new(*wire.FieldError)):
		return w.setAside(ctx, e, err)
	}
	w.runner.logger.Warn("event not stored yet", "run", w.offer.RunID, "node", w.offer.NodeID, "type", e.Type(), "error", err)
	return nil
}

// put takes an event into the log, and waits for it if it is one to wait for.
func (w *worker) put(ctx context.Context, e *wire.Event) error {
	if !e.Type().Awaited() {
		return w.writer.Enqueue(ctx, e)
	}
	start := time.Now()
	wait, cancel := context.WithTimeout(ctx, w.runner.cfg.PersistTimeout)
	defer cancel()
	_, err := w.writer.Append(wait, e)
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
func (w *worker) setAside(ctx context.Context, e *wire.Event, reason error) error {
	w.runner.logger.Error("event refused", "run", w.offer.RunID, "node", w.offer.NodeID, "type", e.Type(), "error", reason)
	subject := w.runner.names.Event(w.offer.RunID, w.offer.NodeID, string(e.Type().Kind()))
	entry := eventlog.Entry{Subject: subject, Data: fmt.Appendf(nil, "%+v", e.Payload)}
	if err := w.runner.log.DeadLetter(ctx, "runner", reason.Error(), entry); err != nil {
		w.runner.logger.Error("dead letter not stored", "subject", subject, "error", err)
	}
	return nil
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
