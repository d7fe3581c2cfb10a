package deliver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// StoredStatuses returns how far all sinks are that ever were, by name.
func StoredStatuses(ctx context.Context, log *eventlog.Log) ([]wire.SinkStatus, error) {
	stream, err := log.JetStream().Stream(ctx, log.Names().AlertsStream())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", log.Names().AlertsStream(), err)
	}
	states, err := log.Bucket(ctx, log.Names().StateBucket())
	if err != nil {
		return nil, err
	}
	entries, err := states.All(ctx, log.Names().ServiceStates(service))
	if err != nil {
		return nil, err
	}
	all := []wire.SinkStatus{}
	for _, e := range entries {
		var r targetRecord
		_, sink, err := log.Names().ParseStateKey(e.Key)
		if err != nil || wire.Unmarshal(e.Value, &r) != nil {
			continue
		}
		s := wire.SinkStatus{Sink: sink, Attempts: r.Tried.Count}
		if last := stream.CachedInfo().State.LastSeq; last > r.Position {
			s.Behind = last - r.Position
		}
		for _, b := range r.Held {
			for _, n := range b.Digest.Count {
				s.Held += n
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b wire.SinkStatus) int { return strings.Compare(a.Sink, b.Sink) })
	return all, nil
}
