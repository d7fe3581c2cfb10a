package eventlog_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// bench starts a server that syncs before it acknowledges, or a cluster of three,
// and a process on it.
func bench(b *testing.B, replicas int) process {
	b.Helper()
	if replicas == 1 {
		nc := natstest.New(b, func(o *server.Options) { o.SyncAlways = true }).Conn(b)
		setUp(b, nc, topology.Config{})
		return start(b, nc, eventlog.Options{})
	}
	c := natstest.NewCluster(b, replicas)
	nc := c.Conn(b)
	setUp(b, nc, topology.Config{Replicas: replicas})
	c.WaitReady(b, "WAKE_EVENTS")
	return start(b, nc, eventlog.Options{})
}

// content makes an event of about 300 bytes.
const content = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz" +
	"0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz"

// atOnce calls f n times, by as many goroutines as there are workers, and
// returns the calls per second.
func atOnce(n, workers int, f func(worker int)) float64 {
	began := time.Now()
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for range n / workers {
				f(w)
			}
		})
	}
	working.Wait()
	return float64(n/workers*workers) / time.Since(began).Seconds()
}

// publishAlone publishes n events one by one, each awaited, without any
// expectation, and returns the events per second.
func publishAlone(b *testing.B, p process, n, publishers int) float64 {
	b.Helper()
	data := encoded(b, &wire.Event{RunID: "alone", NodeID: "n", Seq: 1, Epoch: 1, Payload: &wire.AgentText{Content: content}})
	return atOnce(n, publishers, func(i int) {
		if _, err := p.JetStream().Publish(b.Context(), fmt.Sprint("wake.events.alone.n", i, ".text"), data, jetstream.WithRetryAttempts(0)); err != nil {
			b.Error(err)
		}
	})
}

// Storing events by group commit against publishing them one by one, each
// awaited, by as many writers. One operation is one event.
func BenchmarkAppend(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		for _, writers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("replicas=%d/writers=%d", replicas, writers), func(b *testing.B) {
				p := bench(b, replicas)
				ws := make([]*eventlog.Writer, writers)
				for i := range ws {
					ws[i] = p.claim(fmt.Sprint("run", i%50), fmt.Sprint("n", i))
				}
				alone := publishAlone(b, p, max(200, 4*writers), writers)
				b.ResetTimer()
				rate := atOnce(max(b.N, writers), writers, func(w int) { appendTo(b, ws[w], text(content)) })
				b.ReportMetric(rate, "events/s")
				b.ReportMetric(rate/alone, "x-publish")
			})
		}
	}
}

// One writer that appends several events at once, against publishing them one by
// one, each awaited. One operation is one event.
func BenchmarkAppendTogether(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		for _, size := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("replicas=%d/events=%d", replicas, size), func(b *testing.B) {
				p := bench(b, replicas)
				w := p.claim("r", "n")
				alone := publishAlone(b, p, 300, 1)
				n := max(b.N/size, 1)
				b.ResetTimer()
				rate := float64(size) * atOnce(n, 1, func(int) {
					events := make([]*wire.Event, size)
					for i := range events {
						events[i] = text(content)
					}
					appendTo(b, w, events...)
				})
				b.ReportMetric(rate, "events/s")
				b.ReportMetric(rate/alone, "x-publish")
			})
		}
	}
}

// Events that no caller waits for.
func BenchmarkEnqueue(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			p := bench(b, replicas)
			ws := make([]*eventlog.Writer, 16)
			for i := range ws {
				ws[i] = p.claim(fmt.Sprint("run", i), "n")
			}
			b.ResetTimer()
			began := time.Now()
			n := max(b.N, len(ws))
			atOnce(n, len(ws), func(w int) {
				if err := ws[w].Enqueue(b.Context(), delta(content)); err != nil {
					b.Error(err)
				}
			})
			for _, w := range ws {
				if err := w.Flush(b.Context()); err != nil {
					b.Error(err)
				}
			}
			b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
		})
	}
}

// Reading a whole log back, decoded. One operation is one event.
func BenchmarkRead(b *testing.B) {
	for _, how := range []string{"read", "follow", "consume"} {
		b.Run(how, func(b *testing.B) {
			p := one(b, eventlog.Options{})
			w := p.claim("r", "n")
			n := max(b.N, 1000)
			for range n - 1 {
				if err := w.Enqueue(b.Context(), text(content)); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			began := time.Now()
			got := 0
			switch how {
			case "read":
				for _, err := range p.Read(b.Context(), eventlog.Query{}) {
					if err != nil {
						b.Fatal(err)
					}
					got++
				}
			case "follow":
				for _, err := range p.Follow(b.Context(), eventlog.Query{}) {
					if err != nil {
						b.Fatal(err)
					}
					if got++; got == n {
						break
					}
				}
			case "consume":
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				err := p.Consume(ctx, eventlog.Consumer{Durable: "recorder"}, func(_ context.Context, entries []eventlog.Entry) error {
					if got += len(entries); got == n {
						cancel()
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			if got != n {
				b.Errorf("%d events, want %d", got, n)
			}
			b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
		})
	}
}

// Reading the log of a run of ten events, as an owner does that takes it over, a fork, or a client that shows it. One operation is one run.
func BenchmarkReadRun(b *testing.B) {
	p := one(b, eventlog.Options{})
	w := p.claim("r", "n")
	for range 9 {
		if err := w.Enqueue(b.Context(), text(content)); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		got := 0
		for _, err := range p.Read(b.Context(), eventlog.Query{Run: "r"}) {
			if err != nil {
				b.Fatal(err)
			}
			got++
		}
		if got != 10 {
			b.Fatalf("%d events, want 10", got)
		}
	}
}

// What keys cost: storing events that no caller waits for, and reading them back.
func BenchmarkSealed(b *testing.B) {
	for _, how := range []string{"plain", "sealed"} {
		var o eventlog.Options
		if how == "sealed" {
			o.Keys = sealKeys(b, firstKey)
		}
		b.Run(how, func(b *testing.B) {
			p := one(b, o)
			w := p.claim("r", "n")
			for b.Loop() {
				if err := w.Enqueue(b.Context(), text(content)); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			began, n := time.Now(), 0
			for _, err := range p.Read(b.Context(), eventlog.Query{}) {
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(n), "ns/read")
		})
	}
}
