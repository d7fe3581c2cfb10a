package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/internal/run"
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
	taken   func() // called when the log says that the run has begun

	lease  *lease.Lease
	writer *eventlog.Writer
	view   *view
	// written is the position of the owner's last event. It decides nothing
	// before it has folded that far.
	written uint64
	offered map[string]time.Time // execution → when it was last offered
}

// giveBack bounds what a task still does when its context has ended.
const giveBack = 5 * time.Second

// run owns the run until it has ended, ctx ends, or somebody else owns it.
func (o *owner) run(ctx context.Context) error {
	l, err := o.keeper.Acquire(ctx, o.runner.names.LeaseKey(o.runID, wire.RunNode))
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
	if ended(o.view.state.Status) {
		o.taken()
		return nil
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
	}
	o.taken()
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
	o.offered = map[string]time.Time{}
	tick := time.NewTicker(o.runner.cfg.OfferAgain)
	defer tick.Stop()
	commands := o.runner.commands.subscribe(o.runID)
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
		if err := kids.update(ctx); err != nil {
			return err
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
			err = errors.New("lease lost")
		case <-o.writer.Fenced():
			err = eventlog.ErrFenced
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
		state, err := o.whole(ctx)
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

// whole returns the state with the values that the object store keeps: the
// scheduler looks into them.
func (o *owner) whole(ctx context.Context) (*wire.State, error) {
	return run.Inline(o.view.state, func(sha256 string) ([]byte, error) {
		b, err := o.runner.log.Blob(ctx, sha256)
		if errors.Is(err, eventlog.ErrBlobMissing) {
			return nil, fs.ErrNotExist
		}
		return b, err
	})
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
	for node, n := range o.view.state.Nodes {
		if !n.Open() || n.Started != 0 || n.Pool == "" {
			continue
		}
		if last, ok := o.offered[n.Exec]; ok && time.Since(last) < o.runner.cfg.OfferAgain {
			continue
		}
		if err := o.offer(ctx, node, n); err != nil {
			if ctx.Err() == nil {
				o.runner.logger.Warn("node not offered", "run", o.runID, "node", node, "error", err)
			}
			return
		}
		o.offered[n.Exec] = time.Now()
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
