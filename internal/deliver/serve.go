package deliver

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Endpoints answer how far the sinks of a log are, and what they didn't take.
func Endpoints(log *eventlog.Log) []api.Endpoint {
	return []api.Endpoint{
		api.Handle(wire.VerbSinks, "", func(ctx context.Context, _ wire.SinksRequest, _ api.Form) (wire.SinksResponse, error) {
			all, err := StoredStatuses(ctx, log)
			return wire.SinksResponse{Sinks: all}, err
		}),
		api.Handle(wire.VerbLetters, "", func(ctx context.Context, q wire.LettersRequest, f api.Form) (wire.LettersResponse, error) {
			return letterPage(ctx, log, q, f.Limit)
		}),
	}
}

// letterPage returns dead letters of at most so many bytes.
func letterPage(ctx context.Context, log *eventlog.Log, q wire.LettersRequest, limit int) (wire.LettersResponse, error) {
	r := wire.LettersResponse{Letters: []wire.Raw{}}
	err := readLetters(ctx, log, q.Sink, q.From, func(l Letter) bool {
		raw, err := wire.Marshal(l)
		if err != nil {
			return true // not reached: it was read
		}
		if limit -= 2 * len(raw); limit < 0 && len(r.Letters) > 0 { // JSON may double it
			r.Next = l.ID
			return false
		}
		r.Letters = append(r.Letters, raw)
		return true
	})
	return r, err
}

// Statuses asks how far all sinks are that ever were, by name.
func Statuses(ctx context.Context, nc *nats.Conn, names subjects.Names) ([]wire.SinkStatus, error) {
	r, err := api.Call[wire.SinksResponse](ctx, nc, names, wire.VerbSinks, wire.SinksRequest{})
	return r.Sinks, err
}

// Letters asks for the dead letters of a sink, or of all, the oldest first.
func Letters(ctx context.Context, nc *nats.Conn, names subjects.Names, sink string) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		for q := (wire.LettersRequest{Sink: sink}); ; {
			r, err := api.Call[wire.LettersResponse](ctx, nc, names, wire.VerbLetters, q)
			if err != nil {
				yield(Letter{}, err)
				return
			}
			for _, raw := range r.Letters {
				var l Letter
				if err := wire.Unmarshal(raw, &l); err != nil {
					yield(Letter{}, fmt.Errorf("read a dead letter: %w", err))
					return
				}
				if !yield(l, nil) {
					return
				}
			}
			if q.From = r.Next; q.From == 0 {
				return
			}
		}
	}
}

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
