package owner

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/view"
)

// resting is all that an owner looks at while nothing happens in its run: as long as that is as it was, nothing follows from the
// run's state, which is packed.
type resting struct {
	due    int64  // when something is to be done, Unix ms; 0: never
	folder string // where the folder of the run is to be; "": it has none
	acting []acting
}

// acting is a node that a process acts for.
type acting struct {
	node string
	by   lease.Claimant
}

// beginRest packs the run's state if nothing has happened for a while, and nothing can follow from it but what [owner.stillRests] notices.
func (o *owner) beginRest(ctx context.Context, due int64) error {
	if o.resting = nil; time.Since(o.stirred) < view.PackAfter || !o.lease.Valid() || o.isTended(o.kids) || !o.folder.gone.IsZero() {
		return nil
	}
	r := &resting{due: due}
	s := o.view.State()
	for node, n := range s.Nodes {
		switch {
		case node == wire.RunNode || !n.Open():
		case !o.isFree(node, n):
			r.acting = append(r.acting, acting{node, lease.Claimant{Runner: n.Runner, Process: n.Holder}})
		case !o.nodeWaits(node, n):
			return nil
		}
	}
	if len(r.acting) == 0 && o.cfg.ParkAfter > 0 {
		return nil // it is about to be parked
	}
	anchor, err := o.nextAnchor(ctx)
	if err != nil {
		return err
	}
	if anchor != 0 && (due == 0 || anchor < due) {
		r.due = anchor
	}
	if o.isBound() {
		r.folder = s.Workspace
	}
	o.resting = r
	o.view.Pack()
	return nil
}

// stillRests reports whether nothing is to be decided, since all is as it was when the owner began to rest.
func (o *owner) stillRests() bool {
	r := o.resting
	if r == nil || r.due != 0 && time.Now().UnixMilli() >= r.due {
		return false
	}
	for _, a := range r.acting {
		if o.cfg.Leases.Free(o.leaseKey(a.node), a.by) {
			return false
		}
	}
	switch self := o.folder.holder == o.cfg.ID; {
	case r.folder == "":
		return true
	case self:
		return isFolder(r.folder)
	default:
		return o.cfg.Leases.Present(o.folder.holder)
	}
}
