package oracle

import (
	"bytes"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// acknowledged: what the server said was stored is where it said.
func (c *check) acknowledged() {
	for _, a := range c.ledger.acknowledged {
		e := c.byPos[a.position]
		switch {
		case e == nil:
			c.violation(AcknowledgedIsStored, "", "", a.position, "%s was acknowledged, and isn't there", a.subject)
		case e.Subject != a.subject || !bytes.Equal(e.Data, a.data):
			c.violation(AcknowledgedIsStored, e.RunID, e.NodeID, a.position, "%s was acknowledged, another event is there", a.subject)
		}
	}
}

// sequences: each node's events are numbered without gap in the order of the stream, epochs grow with claims, and no writer writes
// behind the next one's claim.
func (c *check) sequences() {
	type node struct{ seq, epoch uint64 }
	for _, id := range c.order {
		nodes := map[string]node{}
		for _, e := range c.runs[id] {
			n := nodes[e.NodeID]
			if e.Event.Epoch < n.epoch {
				c.wrong(OneWriter, e, "epoch %d had been claimed", n.epoch)
				continue // no reader counts it
			}
			claim := claims(e)
			if e.Event.Seq != n.seq+1 {
				c.wrong(InOrder, e, "comes after seq %d", n.seq)
			}
			if !claim && e.Event.Epoch != n.epoch {
				c.wrong(OneWriter, e, "only epoch %d was claimed", n.epoch)
			}
			nodes[e.NodeID] = node{e.Event.Seq, e.Event.Epoch}
		}
	}
}

func claims(e *eventlog.Entry) bool {
	switch e.Event.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		return true
	}
	return false
}

// ownRun: an event is about the run, the node and the kind of its subject.
func (c *check) ownRun() {
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			if want := c.Names.Event(e.Event.RunID, e.Event.NodeID, string(e.Kind)); want != e.Subject {
				c.wrong(OwnRun, e, "the event of run %s, node %s stands on %s", e.Event.RunID, e.Event.NodeID, e.Subject)
			}
		}
	}
}

// storedOnce: no two places hold the same event.
func (c *check) storedOnce() {
	type place struct {
		run, node  string
		seq, epoch uint64
	}
	seen := map[place]uint64{}
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			p := place{e.Event.RunID, e.Event.NodeID, e.Event.Seq, e.Event.Epoch}
			if first, ok := seen[p]; ok {
				c.wrong(StoredOnce, e, "is at %d already", first)
			}
			seen[p] = e.Pos
		}
	}
}
