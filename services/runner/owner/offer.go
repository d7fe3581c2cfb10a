package owner

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/queue"
)

// maxOfferAgain is how much longer than Config.OfferAgain that wait may become.
const maxOfferAgain = 32

// offerAll offers the executions that wait for a worker. An offer is a hint and
// may get lost with this process: so it is repeated as long as no worker has
// them.
func (o *owner) offerAll(ctx context.Context) {
	if o.cfg.Capacity.RefusesNodes() || o.kids.sharesLeft() {
		return
	}
	shares := false
	for node, n := range o.view.State().Nodes {
		if !o.needsWorker(node, n) {
			o.notOffered(node, n)
			continue
		}
		if o.isSuspect(n) { // it is judged, not offered
			continue
		}
		if !shares && o.nodePool(n) == PoolOf(o.cfg.ID) { // with the worker of this process that takes it, at once or when there is room
			o.view.Share()
			shares = true
		}
		if err := o.offerNode(ctx, node, n); err != nil {
			if ctx.Err() == nil {
				o.cfg.Logger.Warn("node not offered", "run", o.runID, "node", node, "error", err)
			}
			return
		}
	}
	if !shares {
		o.view.Unshare()
	}
}

// needsWorker reports whether an execution is wanted and has no worker: it
// hasn't begun, or its worker has left it.
func (o *owner) needsWorker(node string, n wire.NodeState) bool {
	s := o.view.State()
	hold := s.Status == wire.RunPaused && n.Resume != nil && n.Resume.Hold
	if !n.Open() || n.Pool == "" || s.Status != wire.RunRunning && !hold {
		return false
	}
	if def := o.def.Node(node); def == nil || def.Type != flow.TypeAgent && def.Type != flow.TypeExec || n.Count > 0 && n.Index == nil {
		return false // the owner executes it
	}
	o.cfg.Leases.OnEnd(o.leaseKey(node), o.callFreed)
	return o.isFree(node, n)
}

// callFreed has the owner look for what to offer: a worker of this process has given a node's lease back, such as that of the attempt
// before the one that waits.
func (o *owner) callFreed() {
	o.freed.Store(true)
	o.loop.Call()
}

// isFree reports whether no process acts for a node, as far as this one has seen.
func (o *owner) isFree(node string, n wire.NodeState) bool {
	return o.cfg.Leases.Free(o.leaseKey(node), lease.Claimant{Runner: n.Runner, Process: n.Holder})
}

// notOffered notes that a node needs no offer at the moment. An execution that
// loses its worker is offered again at once if its agent has taken a turn since the last offer, or the worker lived for a while: else it
// may be the execution's fault.
func (o *owner) notOffered(node string, n wire.NodeState) {
	last, ok := o.offered[node]
	switch {
	case !ok:
	case o.view.State().Status != wire.RunRunning || !n.Open() || n.Exec != last.exec:
		delete(o.offered, node)
	case !last.begun:
		wait := min(o.cfg.OfferAgain, o.cfg.Leases.TTL())
		o.noteOffer(node, offerState{exec: n.Exec, at: time.Now(), wait: wait, begun: true, turns: last.turns, resumed: last.resumed})
	}
}

func (o *owner) offerNode(ctx context.Context, node string, n wire.NodeState) error {
	last := offerState{exec: n.Exec, resumed: o.view.State().ResumedAt}
	if known := o.offered[node]; known != nil && known.exec == n.Exec && known.resumed == last.resumed {
		last = *known
	}
	pool := o.nodePool(n)
	gotOn := last.begun && n.Turns > last.turns
	if pool == "" || !gotOn && time.Since(last.at) < last.wait {
		return nil
	}
	offer := wire.NodeOffer{V: wire.Version, RunID: o.runID, NodeID: node, ExecID: n.Exec}
	if pool == PoolOf(o.cfg.ID) {
		o.cfg.Offers.Put(queue.Offer{NodeOffer: offer, Trace: tracing.ParentOf(ctx), Since: time.Now()})
	} else if err := o.sendOffer(ctx, pool, offer); err != nil {
		return err
	}
	again := o.cfg.OfferAgain
	last.at, last.wait, last.begun, last.turns = time.Now(), min(max(2*last.wait, again), maxOfferAgain*again), false, n.Turns
	o.noteOffer(node, last)
	return nil
}

// sendOffer offers an execution to the runners of a pool.
func (o *owner) sendOffer(ctx context.Context, pool string, offer wire.NodeOffer) error {
	value, err := wire.Marshal(offer)
	if err != nil {
		return err
	}
	_, err = o.cfg.Log.Send(ctx, o.cfg.subjectNames().QueueNode(pool), value)
	return err
}

func (o *owner) noteOffer(node string, s offerState) {
	if o.offered == nil {
		o.offered = map[string]*offerState{}
	}
	o.offered[node] = &s
}

// isSuspect reports whether so many processes have claimed a node's execution, without anything to show for it, that it is
// judged once its worker is gone: the last of them tried it alone, and has neither passed nor left in order.
func (o *owner) isSuspect(n wire.NodeState) bool { return n.Trials >= o.cfg.NodeTrials }
