package bench_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// start returns a scratch installation on a server that syncs, and a log of it
// that runs as long as the test.
func start(t testing.TB) (*bench.Scratch, *eventlog.Log) {
	t.Helper()
	js := natstest.New(t, func(o *server.Options) { o.SyncAlways, o.JetStreamLimits.MaxBatchSize = true, eventlog.MaxBatch }).JetStream(t)
	s, err := bench.NewScratch(t.Context(), js, "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), js.Conn(), eventlog.Options{Names: s.Names})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- log.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, log
}

func streamsOf(t testing.TB, js jetstream.JetStream) []string {
	t.Helper()
	list := js.StreamNames(t.Context())
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range list.Name() {
			if !yield(name) {
				return
			}
		}
	})
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestScratchLeavesOthersAlone(t *testing.T) {
	s, _ := start(t)
	for _, name := range []string{"OTHER", "WAKEBENCH-TESTER_EVENTS"} {
		if _, err := s.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(streamsOf(t, s.JS)); n < 12 {
		t.Fatalf("%d streams, want those of an installation", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Remove(ended); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"OTHER", "WAKEBENCH-TESTER_EVENTS"}, streamsOf(t, s.JS)); diff != "" {
		t.Error(diff)
	}
	if _, err := bench.NewScratch(ended, s.JS, "late", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("NewScratch after the end: %v", err)
	}
	if n := len(streamsOf(t, s.JS)); n != 2 {
		t.Errorf("%d streams, want 2: an interrupted creation leaves some", n)
	}
}

func TestRow(t *testing.T) {
	count := map[int]float64{}
	measure := func(i int) bench.Measure {
		return func(context.Context) (float64, error) {
			count[i] += float64(i)
			return count[i], nil
		}
	}
	values, err := bench.Interleave(t.Context(), 3, measure(2), measure(1))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]float64{{2, 4, 6}, {1, 2, 3}}, values); diff != "" {
		t.Error(diff)
	}
	row := bench.NewRow("a", "ms", values[0]...).Versus("b", values[0], []float64{1, 1, 12})
	if want := (bench.Spread{Median: 2, Low: 0.5, High: 4}); *row.Ratio != want {
		t.Errorf("ratio %v, want %v", *row.Ratio, want)
	}
	for _, c := range []struct {
		goal *bench.Goal
		met  bool
	}{
		{row.AtLeast(2).Goal, true}, {row.AtLeast(2.1).Goal, false}, {row.AtMost(2).Goal, true}, {row.AtMost(1.9).Goal, false},
	} {
		if c.goal.Met != c.met {
			t.Errorf("%+v, want met: %t", *c.goal, c.met)
		}
	}
	if got := bench.Quantile([]float64{1, 2, 3, 4}, 0.99); got != 4 {
		t.Errorf("quantile %v, want 4", got)
	}
}

// What is resumed is what was prepared, and a raw consumer reads all of it.
func TestResume(t *testing.T) {
	s, log := start(t)
	if err := bench.Prepare(t.Context(), log, "r", 300); err != nil {
		t.Fatal(err)
	}
	if ms, err := bench.Resume(t.Context(), log, "r"); err != nil || ms <= 0 {
		t.Errorf("resume: %v, %v", ms, err)
	}
	if _, err := bench.Fork(t.Context(), log, "r", "sfp-1"); err != nil {
		t.Error(err)
	}
	if _, err := bench.Fork(t.Context(), log, "r", "sfp-99"); err == nil {
		t.Error("a fork at a point that isn't there")
	}
	if rate, err := s.Drink(t.Context(), 300, s.Names.RunEvents("r")); err != nil || rate <= 0 {
		t.Errorf("drink: %v, %v", rate, err)
	}
}

func BenchmarkIngest(b *testing.B) {
	const n = 10_000
	s, log := start(b)
	in, err := bench.NewIngest(b.Context(), log, "r", 16)
	if err != nil {
		b.Fatal(err)
	}
	data, err := bench.Encoded()
	if err != nil {
		b.Fatal(err)
	}
	for name, measure := range map[string]bench.Measure{
		"wake":  func(ctx context.Context) (float64, error) { return in.Store(ctx, n) },
		"batch": func(ctx context.Context) (float64, error) { return s.PublishBatches(ctx, data, n) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := measure(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkResume(b *testing.B) {
	_, log := start(b)
	if err := bench.Prepare(b.Context(), log, "r", 10_000); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := bench.Resume(b.Context(), log, "r"); err != nil {
			b.Fatal(err)
		}
	}
}
