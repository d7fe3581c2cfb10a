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
	return anchors{begun: time.Now(), claim: claim, at: map[string]time.Time{}}
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
	o.anchors.at[node] = at
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
	for node, n := range o.view.State.Nodes {
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
		pos, err := o.writer.Anchor(ctx, o.cfg.ID)
		if err != nil {
			return err
		}
		o.written = pos
		o.anchors.at[wire.RunNode] = time.Now()
	}
	for node, n := range o.view.State.Nodes {
		if node == wire.RunNode || !n.Open() || n.Seq == 0 {
			continue
		}
		if due, err := o.isAnchorDue(ctx, node, n); err != nil {
			return err
		} else if !due {
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
	key := o.cfg.subjectNames().LeaseKey(o.runID, node)
	if !o.cfg.Leases.Free(key, n.Runner) {
		return nil
	}
	l, err := o.cfg.Leases.Acquire(ctx, key, n.Runner)
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(ctx) }() // else it expires
	w, err := o.cfg.Log.Claim(ctx, o.runID, node, eventlog.Claim{Runner: o.cfg.ID, ExecID: n.Exec, MinEpoch: l.Revision(), AtSeq: n.Seq})
	if err != nil {
		return err
	}
	return w.Close(ctx)
}
