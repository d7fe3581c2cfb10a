package service_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/service"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func newGroup(grace time.Duration) *service.Group {
	return &service.Group{Log: slog.New(slog.DiscardHandler), Grace: grace}
}

// trail notes who ended, in order.
type trail struct {
	mu    sync.Mutex
	names []string
}

func (tr *trail) add(name string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.names = append(tr.names, name)
}

// actor ends some time after it was told to.
func (tr *trail) actor(name string, takes time.Duration) (string, func(context.Context) error) {
	return name, func(ctx context.Context) error {
		<-ctx.Done()
		<-time.After(takes)
		tr.add(name)
		return ctx.Err()
	}
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := newGroup(0)
		var ended trail
		g.Add(ended.actor("server", 0))
		g.Add(ended.actor("log", time.Second))
		g.Add(ended.actor("runner", 3*time.Second))
		time.AfterFunc(time.Minute, cancel)
		start := time.Now()
		if err := g.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		if want := []string{"runner", "log", "server"}; !slices.Equal(ended.names, want) {
			t.Errorf("ended %v, want %v", ended.names, want)
		}
		if d := time.Since(start); d != time.Minute+4*time.Second {
			t.Errorf("took %s, want 1m4s: one after the other", d)
		}
	})
}

func TestGroupEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, late := errors.New("disk is gone"), errors.New("could not flush")
		g := newGroup(0)
		var ended trail
		g.Add(ended.actor("server", 0))
		g.Add("recorder", func(context.Context) error { return broken })
		g.Add("log", func(ctx context.Context) error {
			<-ctx.Done()
			return late
		})
		err := g.Run(t.Context())
		if !errors.Is(err, broken) || !errors.Is(err, late) {
			t.Errorf("Run: %v, want both errors", err)
		}
		if want := []string{"server"}; !slices.Equal(ended.names, want) {
			t.Errorf("ended %v, want %v", ended.names, want)
		}
	})
}

func TestGroupStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		g := newGroup(5 * time.Second)
		var ended trail
		g.Add(ended.actor("server", 0))
		g.Add("runner", func(context.Context) error {
			<-release
			return nil
		})
		cancel()
		start := time.Now()
		err := g.Run(ctx)
		if !errors.Is(err, service.ErrOverdue) {
			t.Errorf("Run: %v, want ErrOverdue", err)
		}
		if got, want := err.Error(), "stop took too long: runner"; got != want {
			t.Errorf("error %q, want %q", got, want)
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("took %s, want 5s", d)
		}
		close(release)
		synctest.Wait()
	})
}
