package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
)

// isClosed reports whether a channel is, or has something.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Who waits for the end of a lease is told of it once, whatever ends it, and of a loss only where it is one: before the loss or behind it.
func TestEndIsTold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, stop := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		ended, lost := map[string]int{}, map[string]int{}
		tell := func(counts map[string]int, name string) func() { return func() { counts[name]++ } }
		other := lease.Key{Run: "run", Node: "other"}
		a.OnEnd(other, tell(ended, "not held"))
		released, err := a.Acquire(t.Context(), other, lease.Claimant{})
		if err != nil {
			t.Fatal(err)
		}
		a.OnEnd(other, tell(ended, "replaced"))
		a.OnEnd(other, tell(ended, "released"))
		released.OnLost(tell(lost, "released"))
		released.Release()
		released.Release()
		if released.IsLost() || isClosed(released.Lost()) || ended["released"] != 1 {
			t.Errorf("released: ended %v", ended)
		}
		if err := released.Await(t.Context()); !errors.Is(err, lease.ErrLost) {
			t.Errorf("awaiting what was released: %v", err)
		}

		l := n.mustTake(t, a)
		a.OnEnd(one, tell(ended, "lost"))
		l.OnLost(tell(lost, "replaced"))
		l.OnLost(tell(lost, "lost"))
		settle(b)
		stop()
		until(t, n, b)
		if l.IsLost() || isClosed(l.Lost()) || lost["lost"] > 0 {
			t.Error("it is lost before its holder can know")
		}
		t.Cleanup(start(t, a))
		synctest.Wait()
		if !l.IsLost() || !isClosed(l.Lost()) {
			t.Error("it isn't lost")
		}
		l.OnLost(tell(lost, "later"))
		l.OnLost(nil)
		l.Release()
		if want := map[string]int{"released": 1, "lost": 1}; len(ended) != len(want) || ended["released"] != 1 || ended["lost"] != 1 {
			t.Errorf("ended %v, want %v", ended, want)
		}
		if len(lost) != 2 || lost["lost"] != 1 || lost["later"] != 1 {
			t.Errorf("lost %v", lost)
		}
	})
}

// A channel that was asked for before the loss is closed by it, as one that is asked for behind it is.
func TestLostIsClosed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, stop := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		l := n.mustTake(t, a)
		before := l.Lost()
		settle(b)
		stop()
		until(t, n, b)
		t.Cleanup(start(t, a))
		synctest.Wait()
		if !isClosed(before) || !isClosed(l.Lost()) || a.Holds(one) {
			t.Error("it isn't lost")
		}
	})
}

// Renewals are told once each, to who asks, and none is told of a lease that is in doubt or over.
func TestRenewalsAreTold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, stop := holder(t, js, "a")
		l := n.mustTake(t, a)
		renewed := l.Renewed()
		if isClosed(renewed) {
			t.Error("renewed before it was asked for")
		}
		<-time.After(3 * a.TTL())
		synctest.Wait()
		if !isClosed(renewed) || isClosed(renewed) {
			t.Error("renewals aren't told, or more than the last")
		}
		stop()
		<-time.After(2 * a.TTL())
		proven := make(chan error)
		l.Claimed(func(context.Context) error { return <-proven })
		t.Cleanup(start(t, a))
		synctest.Wait()
		if isClosed(renewed) || l.Valid() || l.Until() > 0 {
			t.Error("a lease in doubt is renewed")
		}
		proven <- nil
		synctest.Wait()
		if !isClosed(renewed) || !l.Valid() {
			t.Error("that it was proven isn't told")
		}
		l.Release()
		<-time.After(a.TTL())
		if isClosed(renewed) || l.Until() > 0 {
			t.Error("a released lease is renewed")
		}
	})
}

// The session counts from the first renewal behind a gap, and not at all while it can't be renewed.
func TestSinceRenewal(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		a, stop := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "a")
		synctest.Wait()
		first := a.Since()
		if !first.Equal(time.Now()) {
			t.Errorf("renewed since %v", first)
		}
		<-time.After(10 * a.TTL())
		if !a.Since().Equal(first) {
			t.Errorf("renewed without a gap since %v, want %v", a.Since(), first)
		}
		stop()
		<-time.After(2 * a.TTL())
		t.Cleanup(start(t, a))
		synctest.Wait()
		if !a.Since().Equal(time.Now()) {
			t.Errorf("renewed since %v behind a gap", a.Since())
		}
		settle(a) // see TestOutage
		s.Stop()
		<-time.After(a.TTL())
		if !a.Since().IsZero() {
			t.Errorf("renewed since %v without a server", a.Since())
		}
		s.Start(t)
		back := time.Now()
		<-time.After(2 * a.TTL())
		if a.Since().Before(back) {
			t.Errorf("renewed since %v, and the server since %v", a.Since(), back)
		}
	})
}
