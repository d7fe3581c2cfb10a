package replay_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/replay"
	"code.wake.dev/wake/pkg/wire"
)

// recording is events at the given milliseconds; an entry without an event has a
// negative one.
func recording(ms ...int64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		for i, at := range ms {
			e := eventlog.Entry{Pos: uint64(i + 1), Time: time.UnixMilli(max(at, -at))}
			if at >= 0 {
				e.Event = &wire.Event{Timestamp: at}
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func TestPlay(t *testing.T) {
	tests := []struct {
		name   string
		events []int64
		o      replay.Options
		want   []time.Duration
	}{
		{"as it happened", []int64{1000, 1500, 4000}, replay.Options{Speed: 1}, []time.Duration{0, 500 * time.Millisecond, 3 * time.Second}},
		{"ten times as fast", []int64{1000, 1500, 4000}, replay.Options{Speed: 10}, []time.Duration{0, 50 * time.Millisecond, 300 * time.Millisecond}},
		{"half as fast", []int64{1000, 2000}, replay.Options{Speed: 0.5}, []time.Duration{0, 2 * time.Second}},
		{"at once", []int64{1000, 1500, 4000}, replay.Options{}, []time.Duration{0, 0, 0}},
		{"a long night is cut", []int64{1000, 36_000_000, 36_001_000}, replay.Options{Speed: 2, MaxGap: 10 * time.Second}, []time.Duration{0, 5 * time.Second, 5500 * time.Millisecond}},
		{"time that goes back", []int64{5000, 1000, 6000}, replay.Options{Speed: 1}, []time.Duration{0, 0, time.Second}},
		{"what can't be read has its place", []int64{1000, -2000, 3000}, replay.Options{Speed: 1}, []time.Duration{0, time.Second, 2 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var got []time.Duration
				for _, err := range replay.Play(t.Context(), recording(tt.events...), tt.o) {
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, time.Since(start))
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// A slow screen doesn't make the rest late.
func TestPlayCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var last time.Duration
		for e, err := range replay.Play(t.Context(), recording(1000, 2000, 3000), replay.Options{Speed: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			last = time.Since(start)
			if e.Pos == 1 {
				<-time.After(1500 * time.Millisecond)
			}
		}
		if last != 2*time.Second {
			t.Errorf("last event after %s, want 2s", last)
		}
	})
}

func TestPlayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		n := 0
		var last error
		for _, err := range replay.Play(ctx, recording(1000, 36_000_000), replay.Options{Speed: 1}) {
			if last = err; err == nil {
				n++
			}
		}
		if n != 1 || !errors.Is(last, context.Canceled) {
			t.Errorf("%d events and %v, want one and the end of the context", n, last)
		}
	})
}

func TestPlayPassesErrorsOn(t *testing.T) {
	broken := errors.New("away")
	entries := func(yield func(eventlog.Entry, error) bool) { yield(eventlog.Entry{}, broken) }
	for _, err := range replay.Play(t.Context(), entries, replay.Options{}) {
		if !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	}
}
