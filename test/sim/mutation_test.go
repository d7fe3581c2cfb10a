//go:build mutants && linux

package sim_test

import (
	"slices"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/test/oracle"
)

// A defect in any of these places is found within some seeds: the checker can fail.
func TestMutants(t *testing.T) {
	runners := []string{"r1", "r2", "r3"}
	for _, x := range []struct {
		name  string
		of    []string
		bug   bug
		world func(*world)
		want  []oracle.Invariant
	}{
		{"a writer without an expectation", runners, unfenced, nil, []oracle.Invariant{oracle.OneWriter, oracle.InOrder, oracle.StoredOnce}},
		{"a writer that sends twice", runners, stubborn, nil, []oracle.Invariant{oracle.StoredOnce, oracle.OneWriter}},
		{"a writer that acknowledges before it stores", runners, liar, nil, []oracle.Invariant{oracle.AcknowledgedIsStored, oracle.InOrder}},
		{"a writer that takes the wrong run", runners, misdirected, nil, []oracle.Invariant{oracle.OwnRun, oracle.AcknowledgedIsStored, oracle.InOrder}},
		{"a snapshotter that saves position+1", []string{"snapshotter"}, shifter, nil, []oracle.Invariant{oracle.SnapshotIsFold}},
		{"a snapshotter that counts wrongly", []string{"snapshotter"}, corrupter, nil, []oracle.Invariant{oracle.SnapshotIsFold}},
		{"an alerter with random keys", []string{"alerter"}, noisy, nil, []oracle.Invariant{oracle.AlertedOnce}},
		{"an alerter that forgets to publish", []string{"alerter"}, mute, nil, []oracle.Invariant{oracle.AlertedOnce}},
		{"a deliverer that forgets to send", nil, nil, func(w *world) { w.web.bug = forgetful() }, []oracle.Invariant{oracle.DeliveredOnce}},
		{"a deliverer that repeats itself", nil, nil, func(w *world) { w.web.bug = repetitive(w) }, []oracle.Invariant{oracle.DeliveredOnce}},
		{"a recorder that drops poison", []string{"recorder"}, secretive, nil, []oracle.Invariant{oracle.NothingDropped}},
		{"a runner that leaves ended runs registered", runners, keepsRegistered, nil, []oracle.Invariant{oracle.ComesToAnEnd}},
		{"a runner that drops its leases", runners, leaseless, nil, []oracle.Invariant{oracle.ComesToAnEnd, oracle.ExecutedOnce, oracle.CommandOnRecord}},
		{"an agent that acts before its intent is stored", nil, nil, func(w *world) { w.hasty = true }, []oracle.Invariant{oracle.WorkedOnce}},
		{"an agent that forgets what it has begun", nil, nil, func(w *world) { w.forgetful = true }, []oracle.Invariant{oracle.WorkedOnce}},
	} {
		t.Run(x.name, func(t *testing.T) {
			const most = 150
			for seed := uint64(1); seed <= most; seed++ {
				var report oracle.Report
				natstest.Bubble(t, func(t *testing.T) {
					w := newWorld(t, seed, false)
					w.patience = 5 * time.Minute
					for _, name := range x.of {
						w.bugs[name] = x.bug
					}
					if x.world != nil {
						x.world(w)
					}
					report = w.play()
				})
				for _, v := range report.Violations {
					if slices.Contains(x.want, v.Invariant) {
						t.Logf("found by seed %d: %.200s", seed, v)
						return
					}
				}
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}
