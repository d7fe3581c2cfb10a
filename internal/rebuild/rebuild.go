// Package rebuild orders services to derive everything again, and tells how far
// they are.
//
// An order is a key of WAKE_STATE, rebuild.<service>: a service that runs notices
// it within [Every], one that doesn't when it starts. Each process keeps the id of
// the last order that it has obeyed with its position, so an order is obeyed once
// and a crash doesn't lose it. How far a service is it writes to
// rebuilding.<service>.
package rebuild

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Every is how often a service looks for an order.
const Every = 2 * time.Second

// Order is what a service has been told.
type Order struct {
	ID string `json:"id"` // "": nothing
	At int64  `json:"at"` // Unix ms
}

// Progress is how far a service is with an order. What it counts, runs or
// positions of the log, is its own choice.
type Progress struct {
	ID    string `json:"id"` // of the order
	Part  uint64 `json:"part"`
	Of    uint64 `json:"of"`
	Unit  string `json:"unit"` // events or positions
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"` // why it ended before that
	At    int64  `json:"at"`              // Unix ms
}

// Desk is where orders for one service are left.
type Desk struct {
	kv       jetstream.KeyValue
	order    string // key
	progress string // key
}

// Open returns the desk of a service.
func Open(ctx context.Context, js jetstream.JetStream, names subjects.Names, service string) (*Desk, error) {
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return nil, fmt.Errorf("rebuild: open %s: %w", names.StateBucket(), err)
	}
	return &Desk{kv: kv, order: names.StateKey("rebuild", service), progress: names.StateKey("rebuilding", service)}, nil
}

// Place leaves an order. It takes the place of an earlier one.
func (d *Desk) Place(ctx context.Context) (Order, error) {
	o := Order{ID: rand.Text(), At: time.Now().UnixMilli()}
	return o, d.putValue(ctx, d.order, o)
}

// Order returns the last order, or the empty one.
func (d *Desk) Order(ctx context.Context) (o Order, err error) {
	return o, d.getValue(ctx, d.order, &o)
}

// Report writes how far the service is.
func (d *Desk) Report(ctx context.Context, p Progress) error {
	p.At = time.Now().UnixMilli()
	return d.putValue(ctx, d.progress, p)
}

// Progress returns what was last reported, or the empty one.
func (d *Desk) Progress(ctx context.Context) (p Progress, err error) {
	return p, d.getValue(ctx, d.progress, &p)
}

func (d *Desk) putValue(ctx context.Context, key string, v any) error {
	data, err := wire.Marshal(v)
	if err == nil {
		_, err = d.kv.Put(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("rebuild: write %s: %w", key, err)
	}
	return nil
}

func (d *Desk) getValue(ctx context.Context, key string, v any) error {
	e, err := d.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err == nil {
		err = wire.Unmarshal(e.Value(), v)
	}
	if err != nil {
		return fmt.Errorf("rebuild: read %s: %w", key, err)
	}
	return nil
}
