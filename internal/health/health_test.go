package health_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

func board() *health.Board { return health.NewBoard(slog.New(slog.DiscardHandler)) }

// What fails is begun again, sooner if it had worked; what won't go away ends it.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, lasting := board(), errors.New("for good")
		started, lives := time.Now(), 0
		err := b.Keep(t.Context(), "recorder", func(err error) bool { return errors.Is(err, lasting) }, func(context.Context) error {
			switch lives++; {
			case lives == 5:
				if b.Err() == nil || b.Err().Error() != "recorder: disk full" {
					t.Errorf("its board says %v", b.Err())
				}
				<-time.After(time.Hour)
				if b.Err() != nil {
					t.Errorf("after an hour its board says %v", b.Err())
				}
				started = time.Now()
			case lives > 6:
				if took := time.Since(started); took > time.Second {
					t.Errorf("after an hour of work it was begun again after %s", took)
				}
				return lasting
			}
			return errors.New("disk full")
		})
		if !errors.Is(err, lasting) || lives != 7 {
			t.Errorf("Keep: %v after %d lives", err, lives)
		}
	})
}

func TestKeepEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := board()
		go func() {
			<-time.After(time.Minute)
			cancel()
		}()
		if err := b.Keep(ctx, "x", func(error) bool { return false }, func(context.Context) error { return errors.New("no") }); err != nil {
			t.Errorf("Keep: %v", err)
		}
	})
}

// Others see what is wrong while it is, also if the process is killed and comes back.
func TestReports(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, err := jetstream.New(natstest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
			t.Fatal(err)
		}
		want := func(parts ...string) {
			t.Helper()
			<-time.After(5 * time.Second)
			reports, err := health.Reports(t.Context(), js, subjects.Default)
			var got []string
			for _, r := range reports {
				for _, x := range r.Troubles {
					got = append(got, r.Process+"/"+x.Part+"/"+x.Text)
				}
			}
			if err != nil || len(got) != len(parts) {
				t.Fatalf("%q, %v, want %q", got, err, parts)
			}
			for i := range got {
				if got[i] != parts[i] {
					t.Errorf("%q, want %q", got[i], parts[i])
				}
			}
		}
		publish := func(b *health.Board) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.Publish(ctx, js, subjects.Default, "up-1", "wake up on x") }()
			return func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		b := board()
		stop := publish(b)
		want()
		b.Set("recorder: recording", errors.New("disk full"))
		b.Set("runner: events", errors.New("away"))
		want("wake up on x/recorder: recording/disk full", "wake up on x/runner: events/away")
		b.Set("recorder: recording", nil)
		want("wake up on x/runner: events/away")
		<-time.After(time.Hour) // it is told again and again
		want("wake up on x/runner: events/away")
		b.Set("runner: events", nil)
		want()
		b.Set("runner: events", errors.New("away"))
		want("wake up on x/runner: events/away")
		again := publish(board()) // the next process of the same folder
		want()
		again()
		stop()
		want()
	})
}
