package owner

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/wire"
)

func newAnchors() anchors { return anchors{begun: time.Now(), at: map[string]time.Time{}} }

func (a anchors) isDue(node string, every time.Duration) bool {
	last, ok := a.at[node]
	if !ok {
		last = a.begun
	}
	return time.Since(last) >= every
}

// anchorRun claims the run, and its open nodes without a worker, again before
// their last events age out of the stream: an empty node would take any writer.
func (o *owner) anchorRun(ctx context.Context) error {
	every := o.cfg.AnchorEvery
	if every <= 0 {
		return nil
	}
	if o.anchors.isDue(wire.RunNode, every) {
		pos, err := o.writer.Anchor(ctx, o.cfg.ID)
		if err != nil {
			return err
		}
		o.written = pos
		o.anchors.at[wire.RunNode] = time.Now()
	}
	for node, n := range o.view.State.Nodes {
		if node == wire.RunNode || !n.Open() || n.Seq == 0 || !o.anchors.isDue(node, every) {
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
