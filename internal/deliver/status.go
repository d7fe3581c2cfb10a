package deliver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// Status says how far a sink is.
type Status struct {
	Sink     string `json:"sink"`
	Behind   uint64 `json:"behind"`   // alerts that aren't decided yet, at most
	Held     int    `json:"held"`     // alerts that wait for a digest
	Attempts int    `json:"attempts"` // failed, of what is being sent
}

// Statuses returns how far all sinks are that ever were, by name.
func Statuses(ctx context.Context, log *eventlog.Log) ([]Status, error) {
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
	var all []Status
	for _, e := range entries {
		var r record
		_, sink, err := log.Names().ParseStateKey(e.Key)
		if err != nil || wire.Unmarshal(e.Value, &r) != nil {
			continue
		}
		s := Status{Sink: sink, Attempts: r.Tried.Count}
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
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Sink, b.Sink) })
	return all, nil
}
