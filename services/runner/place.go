package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/internal/lease"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// folder is what an owner knows of the folder of its run.
type folder struct {
	holder string    // the runner that has it
	gone   time.Time // since when neither that runner nor the folder is there; zero: one is
}

// ownPool is the queue of nodes that only this runner may take, because it
// holds the folder of their run.
func (r *Runner) ownPool() string { return poolAt(r.cfg.ID) }

const poolPrefix = "at-"

func poolAt(runner string) string { return poolPrefix + runner }

// makeWorkspace makes the folder of a run; "" is one of the runner's own.
func (r *Runner) makeWorkspace(run, dir string) (string, error) {
	if dir == "" {
		dir = filepath.Join(r.cfg.Workspaces, subjects.Escape(run))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	return dir, nil
}

// folderAttempts is how many owners may try to make the folder of a new run. The
// pauses between them double, from firstPause on: they take half a minute together.
const folderAttempts = 6

// noFolderError says that a runner couldn't make the folder of a new run, and when
// the next one may try.
type noFolderError struct {
	problem error
	after   time.Duration
}

func (e *noFolderError) Error() string { return e.problem.Error() }

func (e *noFolderError) Unwrap() error { return e.problem }

// withoutFolder gives other runners a chance to make the folder of a new run: it
// fails with a [noFolderError]. When enough have tried, the run begins by the events
// given and has failed at once. Each attempt has left a claim, and nothing else has
// left events in a run that hasn't begun.
func (o *owner) withoutFolder(ctx context.Context, problem error, begin []*wire.Event) error {
	attempt := o.view.state.Nodes[wire.RunNode].Seq
	if attempt < folderAttempts {
		return &noFolderError{problem: problem, after: firstPause << (max(attempt, 1) - 1)}
	}
	reason := fmt.Sprintf("the run has no folder: %v (%d attempts, the last by runner %s): make room for it there and start the run again, or name another folder",
		problem, attempt, o.runner.cfg.ID)
	o.runner.logger.Error("run without a folder has failed", "run", o.runID, "error", problem)
	return o.append(ctx, append(begin, &wire.Event{Payload: &wire.FlowComplete{
		FlowName: o.def.Name, Status: wire.FlowStatusFailed, Error: reason,
	}}))
}

// holderOf returns the runner that has the folder of a run, by the pools of its
// nodes; self if they don't say.
func holderOf(s *wire.State, self string) string {
	for _, n := range s.Nodes {
		if runner, ok := strings.CutPrefix(n.Pool, poolPrefix); ok {
			return runner
		}
	}
	return self
}

// bound reports whether the nodes of the run stay with the folder of the run.
func (o *owner) bound() bool { return o.def.Workspace == "" || o.def.Workspace == "run" }

// place says which runners may take a node.
func (o *owner) place(e *wire.Event) {
	p, ok := e.Payload.(*wire.NodeScheduled)
	if !ok || p.Error != "" {
		return
	}
	if o.bound() {
		p.Pool = poolAt(o.folder.holder)
	} else if p.Pool == "" {
		p.Pool = subjects.DefaultPool
	}
}

// pool returns who may work on a node at the moment; "" is nobody.
func (o *owner) pool(n wire.NodeState) string {
	switch {
	case n.Pool == "" || !o.bound():
		return n.Pool
	case !o.folder.gone.IsZero():
		return ""
	}
	return poolAt(o.folder.holder)
}

// keepFolder looks who has the folder of the run. If its runner is gone, this one
// takes its place if it sees the folder too. Otherwise the run waits for a while
// and is then paused, until that runner is back.
func (o *owner) keepFolder(ctx context.Context) error {
	if !o.bound() || ended(o.view.state.Status) {
		return nil
	}
	s := o.view.state
	there, err := o.folderIsThere(ctx)
	switch {
	case err != nil:
		return err
	case there && s.Status == wire.RunPaused && s.Reason == wire.PauseWorkspaceLost:
		o.folder.gone = time.Time{}
		return o.append(ctx, []*wire.Event{{Payload: &wire.FlowResumed{Strategy: strategyCrash}}})
	case there:
		o.folder.gone = time.Time{}
	case o.folder.gone.IsZero():
		o.folder.gone = time.Now()
		o.runner.logger.Warn("the folder of the run is away", "run", o.runID, "folder", s.Workspace, "runner", o.folder.holder)
	case s.Status == wire.RunRunning && time.Since(o.folder.gone) >= o.runner.cfg.WorkspaceGrace && o.needsFolder():
		o.folder.gone = time.Now() // whoever resumes it all the same has as much time again
		return o.append(ctx, []*wire.Event{{Payload: &wire.FlowPaused{
			Reason: wire.PauseWorkspaceLost,
			Message: fmt.Sprintf("folder %s is on runner %s, which is gone: start that runner again and the run goes on by itself, "+
				"put the folder where runner %s sees it, or fork the run", s.Workspace, o.folder.holder, o.runner.cfg.ID),
		}}})
	}
	return nil
}

func (o *owner) folderIsThere(ctx context.Context) (bool, error) {
	self := o.runner.cfg.ID
	if o.folder.holder != self && o.keeper.Present(o.folder.holder) {
		return true, nil
	}
	if info, err := os.Stat(o.view.state.Workspace); err != nil || !info.IsDir() {
		return false, nil //nolint:nilerr // what can't be looked at isn't there
	}
	if o.folder.holder == self {
		return true, nil
	}
	o.runner.logger.Info("the run goes on in its folder with another runner", "run", o.runID, "runner", self, "former", o.folder.holder)
	o.folder.holder = self
	return true, o.putRegistration(ctx, 0)
}

// needsFolder reports whether something waits for the folder.
func (o *owner) needsFolder() bool {
	for node, n := range o.view.state.Nodes {
		if o.waits(node, n) {
			return true
		}
	}
	return false
}

// offered says when an execution was last offered, and how long to wait until it
// is offered again. That grows: while no runner has room, the queue must not.
type offered struct {
	exec  string
	at    time.Time
	wait  time.Duration
	taken bool // somebody works on it since then
}

// maxOfferAgain is how much longer than Config.OfferAgain that wait may become.
const maxOfferAgain = 32

// offerAll offers the executions that wait for a worker. An offer is a hint and
// may get lost with this process: so it is repeated as long as nobody works on
// them.
func (o *owner) offerAll(ctx context.Context) {
	if o.runner.full.Load() {
		return
	}
	for node, n := range o.view.state.Nodes {
		if !o.waits(node, n) {
			o.notOffered(node, n)
			continue
		}
		if err := o.offer(ctx, node, n); err != nil {
			if ctx.Err() == nil {
				o.runner.logger.Warn("node not offered", "run", o.runID, "node", node, "error", err)
			}
			return
		}
	}
}

// waits reports whether an execution is wanted that nobody works on: one that
// hasn't begun, or one whose worker has left it.
func (o *owner) waits(node string, n wire.NodeState) bool {
	s := o.view.state
	hold := s.Status == wire.RunPaused && n.Resume != nil && n.Resume.Hold
	if !n.Open() || n.Pool == "" || s.Status != wire.RunRunning && !hold {
		return false
	}
	if def := o.def.Node(node); def == nil || def.Type != flow.TypeAgent && def.Type != flow.TypeExec || n.Count > 0 && n.Index == nil {
		return false // the owner executes it
	}
	key := o.runner.names.LeaseKey(o.runID, node)
	_, held := o.keeper.Holder(key)
	return !held && n.Started == 0 || o.keeper.Free(key, n.Runner)
}

// notOffered notes that a node needs no offer at the moment. An execution that
// loses its worker is offered again at once, save where that worker didn't come
// far: it may be the execution's fault.
func (o *owner) notOffered(node string, n wire.NodeState) {
	last, ok := o.offered[node]
	switch {
	case !ok:
	case o.view.state.Status != wire.RunRunning || !n.Open() || n.Exec != last.exec:
		delete(o.offered, node)
	case !last.taken:
		wait := min(o.runner.cfg.OfferAgain, o.keeper.TTL())
		o.offered[node] = offered{exec: n.Exec, at: time.Now(), wait: wait, taken: true}
	}
}

func (o *owner) offer(ctx context.Context, node string, n wire.NodeState) error {
	last := o.offered[node]
	if last.exec != n.Exec {
		last = offered{exec: n.Exec}
	}
	pool := o.pool(n)
	if pool == "" || time.Since(last.at) < last.wait {
		return nil
	}
	value, err := wire.Marshal(wire.NodeOffer{V: wire.Version, RunID: o.runID, NodeID: node, ExecID: n.Exec})
	if err != nil {
		return err
	}
	if _, err := o.runner.log.Send(ctx, o.runner.names.QueueNode(pool), value); err != nil {
		return err
	}
	again := o.runner.cfg.OfferAgain
	last.at, last.wait, last.taken = time.Now(), min(max(2*last.wait, again), maxOfferAgain*again), false
	o.offered[node] = last
	return nil
}

// anchors says when the run and its nodes were last claimed so that they don't
// age out of the stream.
type anchors struct {
	begun time.Time
	at    map[string]time.Time // by node
}

func newAnchors() anchors { return anchors{begun: time.Now(), at: map[string]time.Time{}} }

func (a anchors) due(node string, every time.Duration) bool {
	last, ok := a.at[node]
	if !ok {
		last = a.begun
	}
	return time.Since(last) >= every
}

// anchor claims the run, and its open nodes that nobody works on, again before
// their last events age out of the stream: an empty node would be anybody's.
func (o *owner) anchor(ctx context.Context) error {
	every := o.runner.maxAge / anchorParts
	if every <= 0 {
		return nil
	}
	if o.anchors.due(wire.RunNode, every) {
		pos, err := o.writer.Anchor(ctx, o.runner.cfg.ID)
		if err != nil {
			return err
		}
		o.written = pos
		o.anchors.at[wire.RunNode] = time.Now()
	}
	for node, n := range o.view.state.Nodes {
		if node == wire.RunNode || !n.Open() || n.Seq == 0 || !o.anchors.due(node, every) {
			continue
		}
		o.anchors.at[node] = time.Now()
		if err := o.anchorNode(ctx, node, n); err != nil && !errors.Is(err, lease.ErrHeld) {
			return err
		}
	}
	return nil
}

// anchorNode claims a node for a moment. That of a live worker is its own.
func (o *owner) anchorNode(ctx context.Context, node string, n wire.NodeState) error {
	r := o.runner
	key := r.names.LeaseKey(o.runID, node)
	if !o.keeper.Free(key, n.Runner) {
		return nil
	}
	l, err := o.keeper.Acquire(ctx, key, n.Runner)
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(ctx) }() // else it expires
	w, err := r.log.Claim(ctx, o.runID, node, eventlog.Claim{Runner: r.cfg.ID, ExecID: n.Exec, MinEpoch: l.Revision(), AtSeq: n.Seq})
	if err != nil {
		return err
	}
	return w.Close(ctx)
}
