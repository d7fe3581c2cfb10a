package registry

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// A runner that was away until nothing was left of a registration, not even the mark of its end, doesn't take the run for an active one.
func TestGoneWhileAway(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
			t.Fatal(err)
		}
		kv, err := js.KeyValue(t.Context(), subjects.Default.StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		registries := [2]*Registry{}
		for i := range registries {
			registries[i] = newRegistry(js, kv, subjects.Default, "i", slog.New(slog.DiscardHandler))
		}
		away, other := registries[0], registries[1]
		watch := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = away.watchRegistrations(ctx) // it is ended
			}()
			<-time.After(time.Second)
			return func() { cancel(); <-done }
		}
		revisions := map[string]uint64{}
		for _, run := range []string{"ended", "goes on"} {
			if revisions[run], err = other.Put(t.Context(), Registration{Run: run, Parent: "goes on", Call: "c", Incarnation: "i"}); err != nil {
				t.Fatal(err)
			}
		}
		stop := watch()
		if _, ok := away.Get("ended"); !ok {
			t.Fatal("it isn't known")
		}
		stop()
		if err := other.Remove(t.Context(), "ended", revisions["ended"]); err != nil {
			t.Fatal(err)
		}
		if n := len(other.called["goes on"]); n != 1 {
			t.Errorf("%d runs are kept as those that calls have begun", n)
		}
		<-time.After(2 * time.Hour)
		stop = watch()
		defer stop()
		if _, ok := away.Get("ended"); ok {
			t.Error("a run that has ended is taken for an active one")
		}
		if _, ok := away.Get("goes on"); !ok {
			t.Error("a run that goes on is forgotten")
		}
		s, err := js.Stream(t.Context(), "KV_"+subjects.Default.StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		if n := s.CachedInfo().State.Msgs; n != 1 {
			t.Errorf("the bucket has %d messages", n)
		}
	})
}
