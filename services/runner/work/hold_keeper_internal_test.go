//go:build linux

package work

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// A keeper that takes long to start, as on a busy machine, has the deadline of the lease as it was renewed meanwhile. It would be frozen
// just before the next renewal but one.
func TestRenewedWhileOpening(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc, logger := natstest.New(t).Conn(t), slog.New(slog.DiscardHandler)
		logtest.Init(t, nc, topology.Config{})
		log := logtest.Open(t, nc)
		leases, err := lease.NewHolder(t.Context(), log.JetStream(), subjects.Default.LeasesBucket(), lease.Identity{Runner: "r", Process: "p"}, logger)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- leases.Run(ctx) }()
		defer func() {
			end()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		held, err := leases.Acquire(ctx, lease.Key{Run: "run1", Node: "a"}, lease.Claimant{})
		if err != nil {
			t.Fatal(err)
		}
		machine := keeper.Machine{Startup: leases.TTL() / 2, Main: func(*keeper.Task) int { return 0 }}
		defer machine.Off()
		shelf, err := keeper.NewShelf(ctx, keeper.ShelfConfig{Dir: t.TempDir(), Client: machine.Client()})
		if err != nil {
			t.Fatal(err)
		}
		cfg := &Config{Leases: leases, Shelf: shelf, Logger: logger, Health: health.NewBoard(logger)}
		h := &hold{
			cfg: cfg, label: keeper.Label{Run: "run1", Node: "a", Exec: "a#1"}, exec: &execution{cfg: cfg, offer: &wire.NodeOffer{}},
			log: &nodeLog{cfg: cfg, lease: held, writer: logtest.Claim(t, log, "run1", "a")},
		}
		before := held.Until()
		if err := h.openKeeper(ctx); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
		if freeze, _ := h.keeperDeadlines(); held.Until() == before || h.frozenAt.Load() != int64(freeze) {
			t.Errorf("the lease was renewed: %t; the keeper's deadline is %v, that of the lease %v", held.Until() != before, time.Duration(h.frozenAt.Load()), freeze)
		}
		h.endKeeper()
	})
}
