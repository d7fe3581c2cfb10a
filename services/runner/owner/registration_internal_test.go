package owner

import (
	"errors"
	"log/slog"
	"testing"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// TestForeignRegistrationStays has an owner that stood still for longer than its lease take an ended run out of the active ones, which
// another owner has registered meanwhile, since it goes on with it.
func TestForeignRegistrationStays(t *testing.T) {
	log := logtest.Start(t)
	logger := slog.New(slog.DiscardHandler)
	leases, err := lease.NewHolder(t.Context(), log.JetStream(), log.Names().LeasesBucket(), lease.Identity{Runner: "r1", Home: "h1", Process: "p1"}, logger)
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, leases.Run)
	reg, err := registry.Open(t.Context(), log, logger)
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{runID: "run1", cfg: &Config{Log: log, Leases: leases, Registry: reg, Logger: logger}}
	if o.lease, err = leases.Acquire(t.Context(), o.leaseKey(wire.RunNode), lease.Claimant{}); err != nil {
		t.Fatal(err)
	}
	own := registry.Registration{Run: "run1", Runner: "r1", Process: "p1", Incarnation: log.Incarnation()}
	if o.registered, err = reg.Put(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	o.lease.Release()
	other := own
	other.Runner, other.Process = "r2", "p2"
	revision, err := reg.Put(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.deregisterRun(t.Context()); !errors.Is(err, tenure.ErrLeaseLost) {
		t.Errorf("the former owner ends with %v", err)
	}
	if _, stored, err := reg.Load(t.Context(), "run1"); err != nil || stored != revision {
		t.Errorf("the registration of the new owner has revision %d (%v), not %d", stored, err, revision)
	}
}
