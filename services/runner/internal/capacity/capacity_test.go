package capacity_test

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/services/runner/internal/capacity"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// Of runs that are about to begin at the same time few look for room: each look is three questions, for which the others
// would wait as well.
func TestOneLooksForAll(t *testing.T) {
	for name, lacking := range map[string]bool{"room": false, "no recorder": true} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				log := logtest.Start(t)
				if lacking {
					if err := log.JetStream().DeleteConsumer(t.Context(), log.Names().EventsStream(), subjects.RecorderConsumer); err != nil {
						t.Fatal(err)
					}
				}
				asked, err := log.Conn().SubscribeSync("$JS.API.>")
				if err != nil {
					t.Fatal(err)
				}
				g := capacity.New(log, logtest.Logger(t), prometheus.NewGauge(prometheus.GaugeOpts{}), health.NewBoard(logtest.Logger(t)), nil)
				var runs sync.WaitGroup
				for range 64 {
					runs.Go(func() {
						if err := g.RoomForRun(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				runs.Wait()
				if n, _, err := asked.Pending(); err != nil || n == 0 || n > 96 { // those that come while one looks need another
					t.Errorf("%d questions (%v), want at most half of the 192 of a look each", n, err)
				}
			})
		})
	}
}
