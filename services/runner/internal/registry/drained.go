package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// drainService is in the keys, in WAKE_STATE, of the lists of what was running.
const drainService = "drain"

// Drained is what a runner was doing when it was told to end.
type Drained struct {
	At    int64    `json:"at"` // Unix ms
	Runs  []string `json:"runs"`
	Nodes []string `json:"nodes"` // "<run>/<execution>"
}

// KeepDrained keeps a list of what a runner was doing: its next start logs
// what was interrupted.
func (g *Registry) KeepDrained(ctx context.Context, runner string, list Drained) error {
	ctx, cancel := tenure.Rest(ctx)
	defer cancel()
	value, err := wire.Marshal(list)
	if err != nil {
		return err
	}
	_, err = g.kv.Put(ctx, g.names.StateKey(drainService, runner), value)
	return err
}

// TakeDrained returns what a runner was doing when it was last told to end, and clears
// the list: from here on the log says what becomes of it.
func (g *Registry) TakeDrained(ctx context.Context, runner string) (list Drained, found bool, err error) {
	key := g.names.StateKey(drainService, runner)
	e, err := g.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return list, false, nil
	}
	if err != nil {
		return list, false, fmt.Errorf("runner: list of what was running: %w", err)
	}
	found = wire.Unmarshal(e.Value(), &list) == nil
	if err := g.kv.Delete(ctx, key); err != nil {
		return list, found, fmt.Errorf("runner: list of what was running: %w", err)
	}
	return list, found, nil
}
