package capacity_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// While nothing begins a runner looks once a minute whether it could, and every five seconds while nodes do.
func TestIdleLooksSeldom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		g := capacity.New(log, logtest.Logger(t), prometheus.NewGauge(prometheus.GaugeOpts{}), health.NewBoard(logtest.Logger(t)), nil)
		ctx, stop := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { _ = g.Watch(ctx) })
		defer watch.Wait()
		defer stop()
		synctest.Wait()
		asked, err := log.Conn().SubscribeSync("$JS.API.CONSUMER.INFO.>") // one of each look
		if err != nil {
			t.Fatal(err)
		}
		looks := func(d time.Duration, begins bool) int {
			before, _, err := asked.Pending()
			if err != nil {
				t.Fatal(err)
			}
			for begun := time.Now(); time.Since(begun) < d; <-time.After(time.Second) {
				if begins {
					g.RefusesNodes()
				}
			}
			synctest.Wait()
			after, _, err := asked.Pending()
			if err != nil {
				t.Fatal(err)
			}
			return after - before
		}
		if n := looks(10*time.Minute, false); n < 8 || n > 11 {
			t.Errorf("%d looks in ten minutes in which nothing began", n)
		}
		if n := looks(10*time.Minute, true); n < 110 || n > 121 {
			t.Errorf("%d looks in ten minutes in which nodes began", n)
		}
	})
}
