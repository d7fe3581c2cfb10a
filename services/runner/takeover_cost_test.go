//go:build parked

package runner_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

var manyLeft = flag.Int("left", 5000, "leave so `many` runs to the others in TestTakeoverCost")

// TestTakeoverCost: the runs of a runner that is gone have another owner within a lease's time to live and ten seconds. Two runners
// take them, some at a time. See make takeover.
func TestTakeoverCost(t *testing.T) {
	const writers = 64
	n := *manyLeft
	b := newBench(t)
	kv, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.LeasesBucket())
	if err != nil {
		t.Fatal(err)
	}
	session, err := wire.Marshal(map[string]any{"runner": "dead", "home": "dead", "process": "dead", "at": 1})
	if err != nil {
		t.Fatal(err)
	}
	due := time.Now().Add(time.Hour)
	all := func(do func(id string) error) {
		made := make(chan error)
		for w := range writers {
			go func() {
				var err error
				for i := w; i < n && err == nil; i += writers {
					err = do(fmt.Sprintf("run%05d", i))
				}
				made <- err
			}()
		}
		for range writers {
			if err := <-made; err != nil {
				t.Fatal(err)
			}
		}
	}
	all(func(id string) error {
		b.park(id, "dead", due, func(reg map[string]any) {
			delete(reg, "parked")
			delete(reg, "released")
		})
		return nil
	})
	claims := b.takeovers()
	for _, id := range []string{"r1", "r2"} {
		defer b.runner(id, &scripted{say: echo})()
	}
	if _, err := kv.Put(t.Context(), subjects.Default.SessionKey("dead", "dead"), session); err != nil {
		t.Fatal(err)
	}
	c0, t0 := cpu(t), time.Now() // the last renewal
	by, peak, more := map[string]int{}, 0, 0
	for seen := map[string]bool{}; len(seen) < n; {
		select {
		case e := <-claims:
			p := e.Event.Payload.(*wire.RunClaimed) // that is what is told
			if seen[e.RunID] {
				more++
			}
			seen[e.RunID] = true
			by[p.Runner]++
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d have an owner, and no other one for a minute", len(seen), n)
		}
		peak = max(peak, runtime.NumGoroutine())
	}
	took := time.Since(t0)
	t.Logf("%d runs had another owner within %s, %v, %d claims more than needed, %.1f ms of CPU each (the server's included), at most %d goroutines",
		n, took.Round(time.Millisecond), by, more, 1000*(cpu(t)-c0).Seconds()/float64(n), peak)
	if most := 20 * time.Second; took > most {
		t.Errorf("that is more than %s", most)
	}
}

// takeovers tells of each claim of a run from now on.
func (b *bench) takeovers() <-chan eventlog.Entry {
	_, last, err := b.log.Bounds(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	claims := make(chan eventlog.Entry, 1000)
	b.background(func(ctx context.Context) error {
		for e, err := range b.log.Follow(ctx, eventlog.Query{From: last + 1}) {
			if err != nil {
				return err
			}
			if e.Event == nil || e.Event.Type() != wire.TypeRunClaimed {
				continue
			}
			select {
			case claims <- e:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return claims
}
