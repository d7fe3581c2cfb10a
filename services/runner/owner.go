package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// owner schedules one run. It holds no state that the log doesn't.
type owner struct {
	runner  *Runner
	keeper  *lease.Keeper
	runID   string
	request wire.RunRequest
	def     *flow.Definition
	taken   func() // called when the log says that the run has begun, once
	begun   bool   // it was called

	lease  *lease.Lease
	writer *eventlog.Writer
	view   *view
	// written is the position of the owner's last event. It decides nothing
	// before it has folded that far.
	written uint64
	offered map[string]offered // by node
}

// offered says when an execution was last offered, and how long to wait until it
// is offered again. That grows: while no runner has room, the queue must not.
type offered struct {
	exec string
	at   time.Time
	wait time.Duration
}

// maxOfferAgain is how much longer than Config.OfferAgain that wait may become.
const maxOfferAgain = 32

// giveBack bounds what a task still does when its context has ended.
const giveBack = 5 * time.Second

// How long an owner that failed waits until it begins again.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// own owns the run until it has ended, ctx ends, or somebody else owns it. Once
// the run has begun, nobody else is told of it: an owner that fails, be it that
// the object store was away, begins again with what the log says.
func (o *owner) own(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := o.run(ctx)
		switch {
		case err == nil, ctx.Err() != nil, !o.begun:
			return err
		case errors.Is(err, lease.ErrHeld):
			return nil
		}
		o.runner.logger.Error("run has lost its owner", "run", o.runID, "error", err)
		sleep(ctx, pause)
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
	if v.state.Status == wire.RunIdle {
		return lease.ErrHeld
	}
	o.begin()
	return nil
}

func (o *owner) run(ctx context.Context) error {
	l, err := o.keeper.Acquire(ctx, o.runner.names.LeaseKey(o.runID, wire.RunNode))
	if errors.Is(err, lease.ErrHeld) && !o.begun {
		return o.held(ctx)
	}
	if err != nil {
		return err
	}
	o.lease = l
	defer o.release(ctx)
	// Looking before claiming saves a claim for a request that came twice.
	if o.view, err = o.runner.open(ctx, o.runID); err != nil {
		return err
	}
	defer o.view.close()
	if ended(o.view.state.Status) || o.view.state.Imported != "" {
		o.begin()
		return nil
	}
	if !l.Valid() { // reading took long: don't fence whoever holds it now
		return errLeaseLost
	}
	claim := eventlog.Claim{Runner: o.runner.cfg.ID, MinEpoch: l.Revision()}
	if o.writer, err = o.runner.log.Claim(ctx, o.runID, wire.RunNode, claim); err != nil {
		return err
	}
	defer o.closeWriter(ctx)
	_, o.written = o.writer.Last()
	if err := o.view.wait(ctx, o.written); err != nil {
		return err
	}
	if o.view.state.Status == wire.RunIdle {
		if err := o.start(ctx); err != nil {
			return err
		}
	} else if o.def, err = flow.FromRaw(o.view.state.Definition); err != nil {
		return fmt.Errorf("definition of run %s: %w", o.runID, err)
	}
	o.begin()
	return o.schedule(ctx)
}

// start begins a new run.
func (o *owner) start(ctx context.Context) error {
	workspace, err := o.workspace()
	if err != nil {
		return err
	}
	request := o.request
	request.Workspace = workspace
	return o.append(ctx, flow.Start(o.def, request))
}

// workspace returns the folder of the run, and makes it.
func (o *owner) workspace() (string, error) {
	dir := o.request.Workspace
	if dir == "" {
		dir = filepath.Join(o.runner.cfg.Workspaces, subjects.Escape(o.runID))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	return dir, nil
}

// schedule decides whenever something has happened, until the run has ended.
func (o *owner) schedule(ctx context.Context) error {
	o.offered = map[string]offered{}
	tick := time.NewTicker(o.runner.cfg.OfferAgain)
	defer tick.Stop()
	commands := o.runner.commands.subscribe(o.runner.names.Command(o.runID))
	defer commands.close()
	waiting, err := o.runner.readCommands(ctx, o.runID, o.view.state.CommandPos)
	if err != nil {
		return err
	}
	if err := o.obeyAll(ctx, waiting); err != nil {
		return err
	}
	kids := newChildren(o)
	defer kids.close()
	for {
		wake, err := o.decide(ctx)
		if err != nil {
			return err
		}
		if o.lease.Valid() {
			if err := kids.update(ctx); err != nil {
				return err
			}
		}
		if ended(o.view.state.Status) {
			return nil
		}
		o.offerAll(ctx)
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
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

func ended(s wire.RunStatus) bool { return s == wire.RunComplete || s == wire.RunAborted }

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

// place says which runners may take a node. Those of a run whose folder is
// here stay here.
func (o *owner) place(e *wire.Event) {
	p, ok := e.Payload.(*wire.NodeScheduled)
	if !ok || p.Error != "" {
		return
	}
	if o.def.Workspace == "" || o.def.Workspace == "run" {
		p.Pool = o.runner.ownPool()
	} else if p.Pool == "" {
		p.Pool = subjects.DefaultPool
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

// offerAll offers the executions that wait for a worker. An offer is a hint and
// may get lost with this process: so it is repeated as long as nobody has begun.
func (o *owner) offerAll(ctx context.Context) {
	if o.view.state.Status != wire.RunRunning {
		clear(o.offered) // workers begin nothing now; at once when it goes on
		return
	}
	again := o.runner.cfg.OfferAgain
	for node, n := range o.view.state.Nodes {
		if !n.Open() || n.Started != 0 || n.Pool == "" {
			continue
		}
		last := o.offered[node]
		if last.exec != n.Exec {
			last = offered{exec: n.Exec}
		}
		if time.Since(last.at) < last.wait {
			continue
		}
		if err := o.offer(ctx, node, n); err != nil {
			if ctx.Err() == nil {
				o.runner.logger.Warn("node not offered", "run", o.runID, "node", node, "error", err)
			}
			return
		}
		last.at, last.wait = time.Now(), min(max(2*last.wait, again), maxOfferAgain*again)
		o.offered[node] = last
	}
}

func (o *owner) offer(ctx context.Context, node string, n wire.NodeState) error {
	value, err := wire.Marshal(wire.NodeOffer{V: wire.Version, RunID: o.runID, NodeID: node, ExecID: n.Exec})
	if err != nil {
		return err
	}
	_, err = o.runner.log.JetStream().Publish(ctx, o.runner.names.QueueNode(n.Pool), value)
	return err
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
