package eventlog

import (
	"context"

	"code.wake.dev/wake/pkg/wire"
)

// GoesOn reports whether a run that had ended at a position, when its owner was of an epoch, has gone on since, as
// one may that had failed.
func GoesOn(ctx context.Context, r Reader, run string, ended, epoch uint64) (bool, error) {
	for e, err := range r.Read(ctx, Query{Run: run, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: ended + 1}) {
		if err != nil {
			return false, err
		}
		if e.Event == nil || e.Event.Epoch < epoch {
			continue
		}
		switch e.Event.Payload.(type) {
		case *wire.RunClaimed:
			epoch = e.Event.Epoch
		case *wire.FlowResumed:
			return true, nil
		}
	}
	return false, nil
}
