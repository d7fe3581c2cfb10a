package sim_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"wake/internal/natstest"
)

var (
	oneSeed = flag.Uint64("seed", 0, "play this `seed` only and print its history")
	seeds   = flag.Int("seeds", 40, "play so `many` seeds")
	from    = flag.Uint64("from", 1, "the first `seed`")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSim(t *testing.T) {
	if *oneSeed != 0 {
		play(t, *oneSeed, true)
		return
	}
	for i := range uint64(*seeds) {
		play(t, *from+i, false)
	}
}

// play plays a seed in a world of its own.
func play(t *testing.T, seed uint64, verbose bool) {
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		began := time.Now()
		natstest.Bubble(t, func(t *testing.T) {
			w := newWorld(t, seed, verbose)
			report := w.play()
			if verbose {
				t.Logf("history:\n%s", w.tail(1<<20))
				t.Logf("%+v", report)
			}
			for _, v := range report.Violations {
				t.Errorf("%s", v)
			}
			if t.Failed() && !verbose {
				t.Logf("history:\n%s\nagain: go test ./test/sim -seed %d", w.tail(60), seed)
			}
		})
		t.Logf("took %s", time.Since(began))
	})
}
