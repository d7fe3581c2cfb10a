package feed_test

import (
	"fmt"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// BenchmarkRead reads a run of 100 000 events, from the stream and by requests.
func BenchmarkRead(b *testing.B) {
	d := open(b)
	const events = 100_000
	for n := 0; n < events; n += 1000 {
		list := make([]*wire.Event, 1000)
		for i := range list {
			list[i] = text(fmt.Sprintf("%d: what an agent says in a line or two, such as this", n+i))
		}
		logtest.Append(b, d.writer, list...)
	}
	for _, by := range []struct {
		name string
		r    eventlog.Reader
	}{{"stream", d.log}, {"feed", d.r}} {
		b.Run(by.name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				for _, err := range by.r.Read(b.Context(), eventlog.Query{Run: "r1"}) {
					if err != nil {
						b.Fatal(err)
					}
					n++
				}
				if n != events+1 {
					b.Fatalf("%d events", n)
				}
			}
			b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkLatency is the time from an append until a follower has the event.
func BenchmarkLatency(b *testing.B) {
	d := open(b)
	for _, by := range []struct {
		name string
		r    eventlog.Reader
	}{{"stream", d.log}, {"feed", d.r}} {
		b.Run(by.name, func(b *testing.B) {
			from := d.append("begin")
			come := make(chan time.Time)
			go func() {
				defer close(come)
				n := 0
				for _, err := range by.r.Follow(b.Context(), eventlog.Query{Run: "r1", From: from}) {
					if err != nil {
						b.Error(err)
						return
					}
					come <- time.Now()
					if n++; n == b.N+1 {
						return
					}
				}
			}()
			<-come
			var all time.Duration
			for range b.N {
				d.append("event")
				stored := time.Now()
				all += max(0, (<-come).Sub(stored))
			}
			<-come
			b.ReportMetric(float64(all.Microseconds())/float64(b.N), "µs-after-ack")
		})
	}
}
