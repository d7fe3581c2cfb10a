package registry

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// noticesService is in the key, in WAKE_STATE, of how far alerts are told.
const noticesService = "notices"

// Told is how far the alerts of a stream are told to parent runs.
type Told struct {
	V        int       `json:"v"`
	Created  int64     `json:"created"` // Unix ms, when the stream was made: it tells one from another
	Position uint64    `json:"position"`
	At       time.Time `json:"-"` // when it was last noted by this process
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
	return &t, nil
}

// KeepTold notes how far alerts are told.
func (g *Registry) KeepTold(ctx context.Context, t *Told) error {
	value, err := wire.Marshal(t)
	if err == nil {
		_, err = g.kv.Put(ctx, g.names.StateKey(noticesService, subjects.NoRun), value)
	}
	return err
}
