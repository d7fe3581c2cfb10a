//go:build linux

package sim_test

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// parkAfter is how long the runners of the world keep what only waits: in a quarter of the worlds for ever.
func (w *world) parkAfter() time.Duration {
	if w.keepers {
		return 0
	}
	return time.Duration(w.seed%4) * time.Second
}

// parked returns how many runs were parked, and woken, by all runners together.
func (w *world) parked() (parked, woken int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.runners {
		all := prometheus.NewRegistry()
		if err := all.Register(r); err != nil {
			w.t.Fatal(err)
		}
		families, err := all.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range families {
			switch f.GetName() {
			case "wake_runner_parked_total":
				parked += int(f.GetMetric()[0].GetCounter().GetValue())
			case "wake_runner_woken_total":
				woken += int(f.GetMetric()[0].GetCounter().GetValue())
			}
		}
	}
	return parked, woken
}
