package snapshotter_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/services/snapshotter"
)

// BenchmarkCatchUp folds what the log holds already, with no snapshots, beside a consumer that reads and decodes the same.
func BenchmarkCatchUp(b *testing.B) {
	nc := natstest.Start(b)
	logtest.Init(b, nc, topology.Config{})
	log, err := eventlog.Open(b.Context(), nc, eventlog.Options{}) // a test's log shows its position without end
	if err != nil {
		b.Fatal(err)
	}
	logtest.Go(b, log.Run)
	var runs []string
	for i := range 20 {
		runs = append(runs, fmt.Sprint("behind", i))
	}
	if _, err := bench.Fill(b.Context(), log, runs, 10_000); err != nil {
		b.Fatal(err)
	}
	wanted := 0
	for _, err := range log.Read(b.Context(), eventlog.Query{Kinds: snapshot.Kinds}) {
		if err != nil {
			b.Fatal(err)
		}
		wanted++
	}
	measure := func(name string, f func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			began := used(b)
			for b.Loop() {
				f(b)
			}
			b.ReportMetric(float64((used(b)-began).Nanoseconds())/float64(wanted*b.N), "cpu-ns/event")
		})
	}
	measure("snapshotter", func(b *testing.B) {
		for _, bucket := range []string{log.Names().SnapshotsBucket(), log.Names().StateBucket()} {
			purge(b, log.JetStream(), "KV_"+bucket)
		}
		s, stop := startOn(b, log, snapshotter.Config{})
		registry := prometheus.NewRegistry()
		registry.MustRegister(s)
		for tick := time.Tick(5 * time.Millisecond); folded(b, registry) < wanted; {
			<-tick
		}
		stop()
	})
	measure("raw", func(b *testing.B) {
		got, errDone := 0, errors.New("done")
		c := eventlog.Consumer{Durable: subjects.SnapshotterConsumer, Kinds: snapshot.Kinds, Wait: 20 * time.Millisecond}
		err := log.Consume(b.Context(), c, func(_ context.Context, entries []eventlog.Entry) error {
			if got += len(entries); got < wanted {
				return nil
			}
			return errDone
		})
		if !errors.Is(err, errDone) {
			b.Fatal(err)
		}
	})
}

func purge(b *testing.B, js jetstream.JetStream, stream string) {
	s, err := js.Stream(b.Context(), stream)
	if err == nil {
		err = s.Purge(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
}

// folded is how many events a snapshotter has read.
func folded(b *testing.B, registry *prometheus.Registry) int {
	families, err := registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "wake_snapshotter_events_total" {
			return int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return 0
}

// used is the processor time that the process has taken.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
