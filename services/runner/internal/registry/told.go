package registry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// noticesService is in the key, in WAKE_STATE, of how far alerts are told.
const noticesService = "notices"

// Told is how far the alerts of a stream are told to parent runs.
type Told struct {
	V        int       `json:"v"`
	Created  int64     `json:"created"` // Unix ms, when the stream was made: it tells one from another
	Position uint64    `json:"position"`
	At       time.Time `json:"-"` // when it was last noted by this process
	Noted    uint64    `json:"-"` // the position that was
}

// Told returns how far the alerts of the stream are told that was made at a time and goes up to last: nothing
// if that was noted of another one.
func (g *Registry) Told(ctx context.Context, created time.Time, last uint64) (*Told, error) {
	none := &Told{V: wire.Version, Created: created.UnixMilli()}
	e, err := g.kv.Get(ctx, g.names.StateKey(noticesService, subjects.NoRun))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return none, nil
	}
	if err != nil {
		return nil, err
	}
	var t Told
	if wire.Unmarshal(e.Value(), &t) != nil || t.Created != none.Created || t.Position > last {
		return none, nil //nolint:nilerr // what can't be read says nothing
	}
	t.Noted = t.Position
	return &t, nil
}

// KeepTold notes how far alerts are told, unless another runner has noted more.
func (g *Registry) KeepTold(ctx context.Context, t *Told) error {
	now, err := g.Told(ctx, time.UnixMilli(t.Created), math.MaxUint64)
	if err != nil {
		return err
	}
	if now.Position < t.Position {
		value, err := wire.Marshal(t)
		if err != nil {
			return err
		}
		if _, err := g.kv.Put(ctx, g.names.StateKey(noticesService, subjects.NoRun), value); err != nil {
			return err
		}
	}
	t.Noted = t.Position
	return nil
}

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
	if err := keys.Delete(ctx, g.kv, key, 0); err != nil {
		return list, found, fmt.Errorf("runner: list of what was running: %w", err)
	}
	return list, found, nil
}
