package eventlog

import "code.wake.dev/wake/pkg/wire"

// LastEpochs has the epoch of each node's last claim, by which readers tell events of a writer that
// had been replaced. It is given the events of one run in log order.
type LastEpochs map[string]uint64

// IsVoid reports whether e, the next event of the run, comes from such a writer.
func (l LastEpochs) IsVoid(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		l[e.NodeID] = max(l[e.NodeID], e.Epoch)
	}
	return e.Epoch < l[e.NodeID]
}
