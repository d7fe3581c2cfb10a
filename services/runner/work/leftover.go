package work

import (
	"context"

	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// What a former process of this runner has left to its keeper may have been ended meanwhile by the owner of the run: the run's time is
// over, or it was aborted. No worker goes on with it; one ends it, and tells what it has come to.

// isLeftOver reports whether an execution is over, and a former process of this runner acted for it until then.
func (c *Config) isLeftOver(s *wire.State, node, exec string) bool {
	return isOver(s, node, exec) && c.wasLeft(s.Nodes[node])
}

// isOver reports whether an execution, the last of its node, was ended, by itself or with its run.
func isOver(s *wire.State, node, exec string) bool {
	n := s.Nodes[node]
	return n.Exec == exec && (s.Status.Ended() || !n.Open())
}

// wasLeft reports whether a former process of this runner has begun the node's last execution, and hasn't given it back.
func (c *Config) wasLeft(n wire.NodeState) bool {
	return n.Started >= n.Scheduled && n.Started != 0 && n.Runner == c.ID && n.Holder != "" && n.Holder != c.Process
}

// closeLeftOver ends what was left of the execution, and leaves the node.
func (w *Worker) closeLeftOver(ctx context.Context) error {
	x, err := w.prepareLeftOver(ctx)
	if err != nil {
		return w.leaveNode(ctx, false, false, err)
	}
	w.exec = x
	events, err := x.endLeftOver(ctx)
	if err != nil {
		w.cfg.Logger.Warn("what a former process has left is ended, and the log lacks what it had come to",
			"run", w.offer.RunID, "node", w.offer.NodeID, "exec", w.offer.ExecID, "error", err)
	}
	w.lease.Settle()
	x.hold.endKeeper()
	told, err := x.recordEnd(ctx, errWithdrawn, events, err)
	x.hold.removeJournals(err == nil)
	w.exec = nil // nothing of it is to be worked on
	return w.leaveNode(ctx, false, told, err)
}

// prepareLeftOver prepares the execution as it was when it was ended.
func (w *Worker) prepareLeftOver(ctx context.Context) (*execution, error) {
	x, missing, err := w.prepareExecution(ctx)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		return nil, missing
	}
	if n := w.view.State().Nodes[w.offer.NodeID]; !n.Open() {
		s, err := w.cfg.Runs.Uncancelled(ctx, w.offer.RunID, w.offer.NodeID, n.Ended)
		if err == nil {
			s, err = w.cfg.Runs.Whole(ctx, s)
		}
		if err != nil {
			return nil, err
		}
		x.setState(run.Clone(s))
	}
	x.entry.Resume = &wire.Resume{Hold: true} // nothing goes on
	return x, nil
}

// endLeftOver ends what was left of the execution, and returns what that has come to.
func (x *execution) endLeftOver(ctx context.Context) (events []*wire.Event, err error) {
	if x.hold, err = graspKeeper(ctx, x); err != nil {
		return nil, err
	}
	if x.node.Type == flow.TypeAgent {
		x.begun = true
		return nil, nil // its open calls are told with its end
	}
	if !x.hold.hasProgram(commandProgram) {
		return nil, nil
	}
	c := shell.Command{ExecID: x.offer.ExecID, Command: x.entry.Input.Get("command").Plain(), Limit: x.outputLimit()}
	var outcome shell.Outcome
	if c.Begin, err = x.recallCommand(ctx, &outcome); err != nil {
		return nil, err
	}
	ended, end := context.WithCancelCause(ctx)
	end(errWithdrawn)
	return x.driveCommand(ended, c, &outcome)
}
