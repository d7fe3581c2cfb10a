package owner

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/wire"
)

func newAnchors(claim uint64) anchors {
	return anchors{begun: time.Now(), claim: claim}
}

func (a *anchors) noteAnchor(node string, at time.Time) {
	if a.at == nil {
		a.at = map[string]time.Time{}
	}
	a.at[node] = at
}

// lastAnchor returns when a node was claimed last, or had its last event. Where runs are parked, that of a node that is older than
// this owner counts from what is stored: else each owner would begin anew, and those that follow each other faster than nodes
// are claimed would let them age out.
func (o *owner) lastAnchor(ctx context.Context, node string, n wire.NodeState) (time.Time, error) {
	if last, ok := o.anchors.at[node]; ok {
		return last, nil
	}
	at := o.anchors.begun
	if o.cfg.ParkAfter > 0 && node != wire.RunNode && n.Scheduled < o.anchors.claim {
		last, found, err := o.cfg.Log.Last(ctx, o.runID, node)
		switch {
		case err != nil:
			return at, err
		case !found || last.Event == nil:
			at = time.Time{} // it is claimed at once
		default:
			at = time.UnixMilli(last.Event.Timestamp)
		}
	}
	o.anchors.noteAnchor(node, at)
	return at, nil
}

func (o *owner) isAnchorDue(ctx context.Context, node string, n wire.NodeState) (bool, error) {
	last, err := o.lastAnchor(ctx, node, n)
	return err == nil && time.Since(last) >= o.cfg.AnchorEvery, err
}

// nextAnchor returns when the run, or one of its open nodes, has to be claimed again, Unix ms; 0: never.
func (o *owner) nextAnchor(ctx context.Context) (int64, error) {
	if o.cfg.AnchorEvery <= 0 {
		return 0, nil
	}
	next := time.Time{}
	for node, n := range o.view.State().Nodes {
		if node != wire.RunNode && (!n.Open() || n.Seq == 0) {
			continue
		}
		last, err := o.lastAnchor(ctx, node, n)
		if err != nil {
			return 0, err
		}
		if at := last.Add(o.cfg.AnchorEvery); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next.UnixMilli(), nil
}

// anchorRun claims the run, and its open nodes without a worker, again before
// their last events age out of the stream: an empty node would take any writer.
func (o *owner) anchorRun(ctx context.Context) error {
	if o.cfg.AnchorEvery <= 0 {
		return nil
	}
	if due, err := o.isAnchorDue(ctx, wire.RunNode, wire.NodeState{}); err != nil {
		return err
	} else if due {
		pos, err := o.writer.Anchor(ctx, o.cfg.ID, o.cfg.Process)
		if err != nil {
			return err
		}
		o.written = pos
		o.anchors.noteAnchor(wire.RunNode, time.Now())
	}
	for node, n := range o.view.State().Nodes {
		if node == wire.RunNode || !n.Open() || n.Seq == 0 {
			continue
		}
		if due, err := o.isAnchorDue(ctx, node, n); err != nil {
			return err
		} else if !due {
			continue
		}
		o.anchors.noteAnchor(node, time.Now())
		if err := o.anchorNode(ctx, node); err != nil && !errors.Is(err, lease.ErrHeld) {
			return err
		}
	}
	return nil
}

// anchorNode claims a node for a moment, in which no process begins to act for it. That of a live worker is its own: it fails
// with [lease.ErrHeld].
func (o *owner) anchorNode(ctx context.Context, node string) error {
	if !o.isFree(node, o.view.State().Nodes[node]) {
		return lease.ErrHeld
	}
	last, found, err := o.cfg.Log.LastMessage(ctx, o.runID, node)
	if err != nil {
		return err
	}
	if found {
		if err := o.view.CatchUp(ctx, last.Pos); err != nil {
			return err
		}
	}
	n := o.view.State().Nodes[node]
	l, err := o.cfg.Leases.Acquire(ctx, o.leaseKey(node), lease.Claimant{Runner: n.Runner, Process: n.Holder})
	if err != nil {
		return err
	}
	defer l.Release()
	w, err := o.cfg.Log.Claim(ctx, o.runID, node, eventlog.Claim{Runner: o.cfg.ID, ExecID: n.Exec, MinEpoch: n.Epoch + 1, AtSeq: n.Seq, Last: &last})
	if errors.Is(err, eventlog.ErrFenced) {
		return lease.ErrHeld
	}
	if err != nil {
		return err
	}
	return w.Close(ctx)
}
