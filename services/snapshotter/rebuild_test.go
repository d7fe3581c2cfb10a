package snapshotter_test

import (
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/rebuild"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/snapshotter"
)

func order(t *testing.T, log *eventlog.Log) (desk *rebuild.Desk, id string) {
	t.Helper()
	desk, err := rebuild.Open(t.Context(), log.JetStream(), log.Names(), "snapshotter")
	if err != nil {
		t.Fatal(err)
	}
	o, err := desk.Place(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return desk, o.ID
}

func obeyed(t *testing.T, desk *rebuild.Desk, id string) {
	t.Helper()
	for range 1000 {
		p, err := desk.Progress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p.ID == id && p.Done {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatal("the order isn't obeyed")
}

// All snapshots are made again, whatever another process has made of them: by a service
// that runs, by two of them, and by one that is started later.
func TestRebuild(t *testing.T) {
	for name, services := range map[string]int{"running": 1, "two": 2, "stopped": 0} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				log := logtest.Start(t)
				stop := start(t, log, snapshotter.Config{})
				for range services - 1 {
					start(t, log, snapshotter.Config{})
				}
				for _, id := range []string{"r1", "r2", "r3"} {
					play(t, log, id, 5)
				}
				<-time.After(5 * time.Second)
				if services == 0 {
					stop()
				}
				wrong := load(t, log, "r1")
				wrong.FlowName, wrong.EventCount = "wrong", 1000
				put(t, bucket(t, log), encode(t, wrong))
				desk, id := order(t, log)
				if services == 0 {
					stop = start(t, log, snapshotter.Config{})
				}
				obeyed(t, desk, id)
				<-time.After(5 * time.Second)
				for _, id := range []string{"r1", "r2", "r3"} {
					same(t, load(t, log, id), fold(t, log, id, 0))
				}
				last := play(t, log, "r2", 2)
				<-time.After(5 * time.Second)
				same(t, load(t, log, "r2"), fold(t, log, "r2", 0))
				if got := position(t, log).Seq; got != last {
					t.Errorf("position %d, want %d", got, last)
				}
				stop()
			})
		})
	}
}

// A snapshot of a run whose beginning the log has dropped can't be made again: it
// stays.
func TestRebuildKeepsWhatTheLogHasDropped(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		stop := start(t, log, snapshotter.Config{})
		begin(t, log, "r1")
		<-time.After(5 * time.Second)
		old := load(t, log, "r1")
		s, err := log.JetStream().Stream(t.Context(), log.Names().EventsStream())
		if err != nil {
			t.Fatal(err)
		}
		c := s.CachedInfo().Config
		c.MaxAge = 2 * time.Minute
		if _, err := log.JetStream().UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		<-time.After(90 * time.Second)
		claim(t, log, "r1")
		<-time.After(60 * time.Second)
		stop()
		desk, id := order(t, log)
		stop = start(t, log, snapshotter.Config{})
		obeyed(t, desk, id)
		<-time.After(5 * time.Second)
		if got := load(t, log, "r1"); got.Status != old.Status || got.FlowName != old.FlowName || got.Status == wire.RunIdle {
			t.Errorf("%s %q, want %s %q", got.Status, got.FlowName, old.Status, old.FlowName)
		}
		stop()
	})
}
