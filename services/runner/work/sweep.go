package work

import (
	"context"
	"errors"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
)

// Sweep ends the keepers that no worker of this runner comes back to: their execution is over, or another runner has
// claimed the node. Their journals stay if a worker is still to tell what they have come to.
func (ws *Workers) Sweep(ctx context.Context) error { return ws.sweepAll(ctx, true) }

func (ws *Workers) sweepAll(ctx context.Context, telling bool) error {
	if ws.cfg.Shelf == nil {
		return nil
	}
	labels, err := ws.cfg.Shelf.List()
	if err != nil {
		return err
	}
	for _, l := range labels {
		if err := ws.sweepKeeper(ctx, l, telling); err != nil && ctx.Err() == nil {
			ws.cfg.Logger.Warn("keeper not looked after", "run", l.Run, "node", l.Node, "error", err)
		}
	}
	return nil
}

// KeepSwept sweeps once in a lease's time, until ctx ends: what is left then is frozen, or soon will be.
func (ws *Workers) KeepSwept(ctx context.Context) error {
	for ctx.Err() == nil {
		pull.Sleep(ctx, ws.cfg.Leases.TTL())
		if err := ws.sweepAll(ctx, false); err != nil {
			return err
		}
	}
	return nil
}

// Left returns offers of the executions that a former process of this runner has left to
// their keepers, and that are still this runner's, or have ended since: what they have come to is told then.
func (ws *Workers) Left(ctx context.Context) ([]wire.NodeOffer, error) {
	if ws.cfg.Shelf == nil {
		return nil, nil
	}
	labels, err := ws.cfg.Shelf.List()
	if err != nil {
		return nil, err
	}
	var offers []wire.NodeOffer
	for _, l := range labels {
		s, err := ws.cfg.Runs.State(ctx, l.Run)
		if err != nil {
			return nil, err
		}
		if (ws.isOurs(s, l) || ws.cfg.isLeftOver(s, l.Node, l.Exec)) && !ws.cfg.Working.Has(l.Run+"/"+l.Exec) {
			offers = append(offers, wire.NodeOffer{V: wire.Version, RunID: l.Run, NodeID: l.Node, ExecID: l.Exec})
		}
	}
	return offers, nil
}

// isOurs reports whether a keeper's execution goes on and is this runner's. A run that was aborted while this runner was
// away has ended without an end of its executions.
func (ws *Workers) isOurs(s *wire.State, l keeper.Label) bool {
	n, found := s.Nodes[l.Node]
	return found && !s.Status.Ended() && n.Exec == l.Exec && n.Open() && n.Runner == ws.cfg.ID
}

// sweepKeeper ends a keeper that its execution needs no more.
func (ws *Workers) sweepKeeper(ctx context.Context, l keeper.Label, telling bool) error {
	if ws.cfg.Working.Has(l.Run + "/" + l.Exec) {
		return nil
	}
	s, err := ws.cfg.Runs.State(ctx, l.Run)
	if err != nil {
		return err
	}
	if ws.isOurs(s, l) {
		return nil // a worker comes back to it
	}
	k, err := ws.cfg.Shelf.Attach(ctx, l)
	if err == nil {
		ws.cfg.Logger.Info("agent ended: its execution is over, or another runner's", "run", l.Run, "node", l.Node, "exec", l.Exec)
		err = k.Quit(0)
	}
	if err != nil && !errors.Is(err, keeper.ErrGone) {
		return err
	}
	if telling && ws.cfg.isLeftOver(s, l.Node, l.Exec) {
		return nil
	}
	return ws.cfg.Shelf.Remove(l)
}
