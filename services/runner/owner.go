package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/internal/tracing"
	"wake/pkg/wire"
)

// owner schedules one run. It holds no state that the log doesn't.
type owner struct {
	runner  *Runner
	keeper  *lease.Keeper
	runID   string
	request wire.RunRequest  // what begins the run
	def     *flow.Definition // nil if the request has none
	asked   bool             // by a message of the queue; else it was found without an owner
	taken   func()           // called when the log says that the run has begun, once
	begun   bool             // it was called

	lease  *lease.Lease
	writer *eventlog.Writer
	view   *view
	before uint64 // the run's epoch when it was claimed
	epoch  uint64 // of the last claim, 0 before
	// written is the position of the owner's last event. It decides nothing
	// before it has folded that far.
	written uint64
	offered map[string]offered // by node
	// rejected are the positions of commands that came before the run, and are on
	// record for none. They may still come, after those behind them.
	rejected map[uint64]bool
	folder   folder
	anchors  anchors
}

// giveBack bounds what a task still does when its context has ended.
const giveBack = 5 * time.Second

// How long an owner that failed waits until it begins again.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

var (
	errFull    = errors.New("the stream of events is nearly full")
	errBehind  = errors.New("the stream of events is about to drop what isn't recorded")
	errDrained = errors.New("the runner is ending")
	errNothing = errors.New("nothing says what the run is to do")
)

// own owns the run until it has ended, ctx ends, or somebody else owns it. Once
// the run has begun, an owner that fails, be it that the object store was away,
// begins again with what the log says.
func (o *owner) own(ctx context.Context) error {
	r := o.runner
	if !r.owned.enter(o.runID) {
		return o.held(ctx)
	}
	defer r.owned.leave(o.runID)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := o.run(ctx)
		switch {
		case err == nil, ctx.Err() != nil, !o.begun:
			return err
		case errors.Is(err, errDrained):
			return r.handOver(ctx, o.runID)
		case errors.Is(err, lease.ErrHeld):
			return nil
		}
		if gone(err) {
			r.metrics.lost.WithLabelValues(ofRuns).Inc()
		}
		r.logger.Error("run has lost its owner", "run", o.runID, "error", err)
		select {
		case <-time.After(pause):
		case <-r.draining: // whoever sweeps next finds it
			return nil
		case <-ctx.Done():
		}
	}
}

// begin says once that the log has what the request asked for.
func (o *owner) begin() {
	if !o.begun {
		o.begun = true
		o.taken()
	}
}

// held looks whether a request for a run that has an owner is needless. It isn't
// before the run has begun: then its owner may still fail to.
func (o *owner) held(ctx context.Context) error {
	v, err := o.runner.open(ctx, o.runID)
	if err != nil {
		return err
	}
	v.close()
	_, registered := o.runner.active.get(o.runID)
	switch {
	case v.state.Status == wire.RunIdle && o.asks(),
		v.state.Status != wire.RunIdle && !over(v.state) && !registered: // nobody else would find it
		return lease.ErrHeld
	}
	o.begin()
	return nil
}

// asks reports whether the request says what a new run is to do.
func (o *owner) asks() bool { return o.def != nil || o.request.Fork != nil }

// lastOwner is who may still act for a run by what the log says, and by what its
// last owner left.
func lastOwner(s *wire.State, reg registration) string {
	n := s.Nodes[wire.RunNode]
	if s.Status == wire.RunIdle || n.Epoch == reg.Released {
		return "" // a claim alone begins nothing
	}
	return n.Runner
}

// over reports whether a run needs no owner any more.
func over(s *wire.State) bool { return ended(s.Status) || s.Imported != "" }

func ended(s wire.RunStatus) bool { return s == wire.RunComplete || s == wire.RunAborted }

func (o *owner) run(ctx context.Context) (err error) {
	r := o.runner
	// Looking before claiming saves a claim for a request that came twice.
	if o.view, err = r.open(ctx, o.runID); err != nil {
		return err
	}
	defer o.view.close()
	reg, registered := r.active.get(o.runID)
	if over(o.view.state) && !registered {
		o.begin()
		return nil
	}
	o.lease, err = o.keeper.Acquire(ctx, r.names.LeaseKey(o.runID, wire.RunNode), lastOwner(o.view.state, reg))
	if errors.Is(err, lease.ErrHeld) && !o.begun {
		return o.held(ctx)
	}
	if err != nil {
		return err
	}
	defer o.release(ctx)
	if err := o.present(ctx); err != nil {
		return err
	}
	switch s := o.view.state; {
	case over(s):
		return o.finish(ctx)
	case s.Status == wire.RunIdle && !o.asks():
		return errNothing
	case s.Status == wire.RunIdle:
		if err := r.roomForRun(ctx); err != nil {
			return err
		}
	}
	return o.act(ctx)
}

// present folds what the former owner wrote up to the moment.
func (o *owner) present(ctx context.Context) error {
	last, found, err := o.runner.log.Last(ctx, o.runID, wire.RunNode)
	if err != nil || !found {
		return err
	}
	return o.view.catchUp(ctx, last.Pos)
}

// act claims the run, begins it or goes on with it, and schedules it. The run is
// registered first: from then on it is found by whoever looks for runs without an
// owner.
func (o *owner) act(ctx context.Context) error {
	taking, span := o.span(ctx)
	defer span.End()
	if err := o.claim(taking); err != nil {
		tracing.Fail(span, err)
		return err
	}
	defer o.closeWriter(ctx)
	over, err := o.goOn(taking)
	tracing.Fail(span, err)
	if err != nil || over {
		return err
	}
	o.begin()
	span.End()
	return o.schedule(taking)
}

// span starts the span of taking a run, which ends when it has begun or goes on.
func (o *owner) span(ctx context.Context) (context.Context, trace.Span) {
	t := o.runner.log.Tracer()
	if o.asked {
		names := o.runner.names
		return tracing.Process(ctx, t, tracing.Destination(names.Prefix(), names.QueueRun()), tracing.Run(o.runID))
	}
	return t.Start(ctx, tracing.RunTakenOver, trace.WithAttributes(tracing.Run(o.runID)))
}

// claim registers the run and makes the owner its writer.
func (o *owner) claim(ctx context.Context) error {
	r := o.runner
	if err := o.register(ctx); err != nil {
		return err
	}
	if !o.lease.Valid() { // reading took long: don't fence whoever holds it now
		return errLeaseLost
	}
	before := o.view.state.Nodes[wire.RunNode]
	o.before = before.Epoch
	claim := eventlog.Claim{Runner: r.cfg.ID, MinEpoch: o.lease.Revision(), AtSeq: before.Seq}
	writer, err := r.log.Claim(ctx, o.runID, wire.RunNode, claim)
	if err != nil {
		return err
	}
	o.writer = writer
	return nil
}

// goOn begins the run, or goes on with it, as soon as it has been folded up to the
// claim. It reports whether the run is over.
func (o *owner) goOn(ctx context.Context) (ended bool, err error) {
	_, o.written = o.writer.Last()
	if err := o.view.wait(ctx, o.written); err != nil {
		return false, err
	}
	other := o.before != o.epoch
	o.epoch = o.writer.Epoch()
	switch s := o.view.state; {
	case over(s):
		return true, o.finish(ctx)
	case s.Status == wire.RunIdle:
		return false, o.start(ctx)
	default:
		return false, o.takeOver(ctx, other)
	}
}

// start begins a new run.
func (o *owner) start(ctx context.Context) error {
	if o.request.Fork != nil {
		return o.startFork(ctx)
	}
	if o.def == nil {
		return errNothing
	}
	begin := flow.Start(o.def, o.request)
	if problem, err := o.ownSecrets(); err != nil {
		return err
	} else if problem != "" {
		o.runner.logger.Error("run not begun: its flow has a secret in it", "run", o.runID)
		return o.append(ctx, append(begin, &wire.Event{Payload: &wire.FlowComplete{
			FlowName: o.def.Name, Status: wire.FlowStatusFailed, Error: problem,
		}}))
	}
	workspace, err := o.request.Workspace, error(nil)
	if at := o.request.WorkspaceAt; at == "" || at == o.runner.cfg.ID {
		workspace, err = o.runner.makeWorkspace(o.runID, workspace)
	}
	if err != nil {
		return o.withoutFolder(ctx, err, begin)
	}
	request := o.request
	request.Workspace = workspace
	events := flow.Start(o.def, request)
	switch unawaited, err := o.unawaited(ctx); {
	case err != nil:
		return err
	case unawaited:
		events = append(events, &wire.Event{Payload: &wire.FlowAborted{Reason: "nobody waits for it any more"}})
	}
	return o.append(ctx, events)
}

// takeOver goes on with a run that has begun. One that was running is resumed on
// record, unless it is this owner itself that begins again. Agents that are at
// work with other runners go on undisturbed; the others are told by it how.
func (o *owner) takeOver(ctx context.Context, other bool) (err error) {
	s := o.view.state
	if o.def, err = flow.FromRaw(s.Definition); err != nil {
		return fmt.Errorf("definition of run %s: %w", o.runID, err)
	}
	o.runner.logger.Info("run taken over", "run", o.runID, "status", s.Status)
	if other {
		o.runner.metrics.taken.WithLabelValues(ofRuns).Inc()
	}
	if !other || s.Status != wire.RunRunning {
		return nil
	}
	return o.append(ctx, []*wire.Event{{Payload: &wire.FlowResumed{Strategy: strategyCrash}}})
}

// schedule decides whenever something has happened, until the run has ended.
func (o *owner) schedule(ctx context.Context) error {
	o.offered = map[string]offered{}
	o.anchors = newAnchors()
	tick := time.NewTicker(min(o.runner.cfg.OfferAgain, o.keeper.TTL()/10))
	defer tick.Stop()
	commands := o.runner.commands.subscribe(o.runner.names.Command(o.runID))
	defer commands.close()
	waiting, err := o.unobeyed(ctx)
	if err != nil {
		return err
	}
	if err := o.obeyAll(ctx, waiting); err != nil {
		return err
	}
	kids := newChildren(o)
	defer kids.close()
	if err := kids.abortLeft(ctx); err != nil {
		return err
	}
	for {
		wake, err := o.step(ctx, kids)
		if err != nil {
			return err
		}
		if ended(o.view.state.Status) {
			if err := o.obeyAll(ctx, commands.take()); err != nil {
				return err
			}
			return o.finish(ctx)
		}
		timer := time.NewTimer(max(0, time.Until(time.UnixMilli(wake))))
		if wake == 0 {
			timer.Stop()
		}
		select {
		case <-o.view.more():
			err = o.view.follow(ctx)
		case <-kids.news:
		case <-commands.more:
			err = o.obeyAll(ctx, commands.take())
		case <-timer.C:
		case <-tick.C:
		case <-o.lease.Lost():
			err = errLeaseLost
		case <-o.writer.Fenced():
			err = eventlog.ErrFenced
		case <-o.runner.draining:
			err = o.giveUp(ctx)
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// step does what follows from the state: decisions, what they mean for children,
// offers, and claims that keep the run in the log. It returns when to decide
// again (Unix ms), or 0. Without a valid lease it does nothing: somebody else may
// be about to.
func (o *owner) step(ctx context.Context, kids *children) (wake int64, err error) {
	if !o.lease.Valid() {
		return 0, nil
	}
	if wake, err = o.decide(ctx); err != nil {
		return 0, err
	}
	if err := o.keepFolder(ctx); err != nil {
		return 0, err
	}
	if err := kids.update(ctx); err != nil {
		return 0, err
	}
	if ended(o.view.state.Status) {
		return 0, nil
	}
	o.offerAll(ctx)
	return wake, o.anchor(ctx)
}

// decide appends decisions until there are none, and returns when to decide
// again (Unix ms), or 0.
func (o *owner) decide(ctx context.Context) (wake int64, err error) {
	for {
		if err := o.view.wait(ctx, o.written); err != nil {
			return 0, err
		}
		if !o.lease.Valid() {
			return 0, nil
		}
		state, err := o.view.whole(ctx)
		if err != nil {
			return 0, err
		}
		d, err := flow.Decide(o.def, state, time.Now().UnixMilli())
		if err != nil {
			return 0, fmt.Errorf("decide: %w", err)
		}
		if len(d.Events) == 0 {
			return d.Wake, nil
		}
		for _, e := range d.Events {
			o.place(e)
		}
		if err := o.append(ctx, d.Events); err != nil {
			return 0, err
		}
	}
}

func (o *owner) append(ctx context.Context, events []*wire.Event) error {
	now := time.Now().UnixMilli()
	for _, e := range events {
		e.Timestamp = now
	}
	pos, err := o.writer.Append(ctx, events...)
	if err != nil {
		return err
	}
	o.written = pos
	return nil
}

// finish leaves nothing behind of a run that has ended: children that nobody
// wants are told, and nobody looks for the run any more.
func (o *owner) finish(ctx context.Context) error {
	kids := newChildren(o)
	defer kids.close()
	if err := kids.abortLeft(ctx); err != nil {
		return err
	}
	if err := o.deregister(ctx); err != nil {
		return err
	}
	o.begin()
	return nil
}

// giveUp says that the owner doesn't act any more, for those who come when its
// lease has been forgotten.
func (o *owner) giveUp(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, giveBack)
	defer cancel()
	if o.runner.log.Conn().IsConnected() {
		if err := o.putRegistration(wait, o.epoch); err != nil {
			o.runner.logger.Warn("run not given back, it is taken over all the same", "run", o.runID, "error", err)
		}
	}
	return errDrained
}

// register puts the run among the active ones. What an earlier owner knew of its
// folder stays.
func (o *owner) register(ctx context.Context) error {
	r := o.runner
	reg, _, err := r.active.load(ctx, o.runID)
	if err != nil {
		return err
	}
	if reg.Incarnation != r.log.Incarnation() || o.view.state.Status == wire.RunIdle {
		reg.Folder = o.request.WorkspaceAt
	}
	o.folder.holder = reg.Folder
	if o.folder.holder == "" {
		o.folder.holder = holderOf(o.view.state, r.cfg.ID)
	}
	return o.putRegistration(ctx, 0)
}

func (o *owner) putRegistration(ctx context.Context, released uint64) error {
	r := o.runner
	s := o.view.state
	parent, call := s.ParentRun, s.ParentCall
	if s.Status == wire.RunIdle {
		parent, call = o.request.ParentRun, o.request.ParentCall
	}
	return r.active.put(ctx, registration{
		Run: o.runID, Runner: r.cfg.ID, Folder: o.folder.holder, Parent: parent, Call: call,
		Since: time.Now().UnixMilli(), Released: released, Incarnation: r.log.Incarnation(), Trace: tracing.ParentOf(ctx),
	})
}

func (o *owner) deregister(ctx context.Context) error {
	reg, revision, err := o.runner.active.load(ctx, o.runID)
	if err != nil || revision == 0 {
		return err
	}
	if reg.Incarnation != o.runner.log.Incarnation() {
		return nil
	}
	return o.runner.active.remove(ctx, o.runID, revision)
}

func (o *owner) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	if err := o.lease.Release(ctx); err != nil {
		o.runner.logger.Warn("lease not released", "run", o.runID, "error", err)
	}
}

func (o *owner) closeWriter(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	if err := o.writer.Close(ctx); err != nil && !errors.Is(err, eventlog.ErrFenced) {
		o.runner.logger.Warn("events of the run not flushed", "run", o.runID, "error", err)
	}
}
