package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// connect returns a connection to a server that has a bucket of leases.
func connect(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	return js
}

// connectSynced is connect to a bucket as in a cluster.
func connectSynced(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js := connect(t, nc)
	syncBucket(t, js)
	return js
}

// syncBucket makes the bucket one that is synced and takes batches, as in a cluster.
func syncBucket(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	name := "KV_" + subjects.Default.LeasesBucket()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	c.PersistMode, c.AllowAtomicPublish = jetstream.DefaultPersistMode, true
	if err := js.DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// purge removes a lease behind its holder's back.
func purge(t *testing.T, js jetstream.JetStream, key string) {
	t.Helper()
	kv, err := js.KeyValue(t.Context(), subjects.Default.LeasesBucket())
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}

// holder returns a holder that renews its leases until stop is called.
func holder(t *testing.T, js jetstream.JetStream, runner string) (k *lease.Holder, stop func()) {
	t.Helper()
	return holderOf(t, js, lease.Identity{Runner: runner, Home: runner})
}

func holderOf(t *testing.T, js jetstream.JetStream, id lease.Identity) (k *lease.Holder, stop func()) {
	t.Helper()
	k, err := lease.NewHolder(t.Context(), js, subjects.Default.LeasesBucket(), id, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop = start(t, k)
	t.Cleanup(stop)
	return k, stop
}

// start runs a holder until stop is called.
func start(t *testing.T, k *lease.Holder) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestOneHolder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		l, err := a.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []*lease.Holder{a, b} {
			if _, err := k.Acquire(t.Context(), "run.node", ""); !errors.Is(err, lease.ErrHeld) {
				t.Errorf("second holder: %v", err)
			}
		}
		synctest.Wait()
		if info, held := b.Of("run.node"); !held || info.Runner != "a" {
			t.Errorf("holder is %+v, %t", info, held)
		}
		// It is renewed for as long as its holder runs.
		<-time.After(time.Hour)
		if !l.Valid() {
			t.Error("a renewed lease is not valid")
		}
		if _, err := b.Acquire(t.Context(), "run.node", ""); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("after an hour: %v", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, err := b.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatalf("after the release: %v", err)
		}
		if next.Revision() <= l.Revision() {
			t.Errorf("revision %d follows %d", next.Revision(), l.Revision())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("releasing twice: %v", err)
		}
		if !next.Valid() {
			t.Error("releasing twice took the next holder's lease")
		}
	})
}

// A holder gives back its own lease only: one that another holder has by now stays.
func TestReleaseOfAnother(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		l, err := a.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatal(err)
		}
		kv, err := js.KeyValue(t.Context(), subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(t.Context(), "run.node", []byte("another's")); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err == nil {
			t.Error("a lease of another was released")
		}
		if e, err := kv.Get(t.Context(), "run.node"); err != nil || string(e.Value()) != "another's" {
			t.Errorf("afterwards there is %v, %v", e, err)
		}
	})
}

// A lease that its holder has abandoned is nobody else's until it expires, and the holder's
// own again at once.
func TestAbandoned(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		for range 2 {
			l, err := a.Acquire(t.Context(), "run.node", "")
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			l.Abandon()
			if l.Valid() {
				t.Error("an abandoned lease is valid")
			}
			if _, err := b.Acquire(t.Context(), "run.node", "a"); !errors.Is(err, lease.ErrHeld) {
				t.Errorf("at once: %v", err)
			}
		}
		<-time.After(a.TTL() + time.Second)
		if _, err := b.Acquire(t.Context(), "run.node", "a"); err != nil {
			t.Errorf("after its time: %v", err)
		}
	})
}

// A holder that stops renewing may begin nothing shortly before somebody else
// can hold the lease.
func TestExpiry(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, stop := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		l, err := a.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatal(err)
		}
		stop()
		<-time.After(a.TTL() - a.TTL()/10 + time.Millisecond)
		if l.Valid() {
			t.Error("a lease about to expire is valid")
		}
		if _, err := b.Acquire(t.Context(), "run.node", ""); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("before the end of its time: %v", err)
		}
		<-time.After(a.TTL())
		if _, err := b.Acquire(t.Context(), "run.node", ""); err != nil {
			t.Errorf("after the end of its time: %v", err)
		}
	})
}

// A lease that was released is free at the moment, too, at which the bucket forgets the release: between the questions of
// who wants it.
func TestForgottenRelease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		for range 30 {
			var acquired sync.WaitGroup
			for n := range 50 {
				acquired.Go(func() {
					key := fmt.Sprint("run.node", n)
					l, err := a.Acquire(t.Context(), key, "")
					if err != nil {
						t.Errorf("%s: %v", key, err)
						return
					}
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			acquired.Wait()
			<-time.After(a.TTL())
		}
	})
}

// A holder whose lease somebody else took is told.
func TestLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		l, err := a.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatal(err)
		}
		purge(t, js, "run.node")
		b, _ := holder(t, js, "b")
		if _, err := b.Acquire(t.Context(), "run.node", ""); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Lost():
		case <-time.After(time.Minute):
			t.Fatal("the holder was not told")
		}
		if l.Valid() {
			t.Error("a lost lease is valid")
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("releasing a lost lease: %v", err)
		}
		if info, held := b.Of("run.node"); !held || info.Runner != "b" {
			t.Errorf("holder is %+v, %t", info, held)
		}
	})
}

// A lease that vanished while nobody took it is taken again (RULES 6).
func TestTakenAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		l, err := a.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatal(err)
		}
		purge(t, js, "run.node")
		<-time.After(a.TTL())
		if !l.Valid() {
			t.Error("the lease was not taken again")
		}
		b, _ := holder(t, js, "b")
		if _, err := b.Acquire(t.Context(), "run.node", ""); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("second holder: %v", err)
		}
	})
}

// The time to live is the bucket's: one of a key would be gone with its first
// renewal (RULES 6).
func TestBucketWithoutTTL(t *testing.T) {
	js := natstest.JetStream(t)
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "forever"}); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.NewHolder(t.Context(), js, "forever", lease.Identity{Runner: "a", Home: "a"}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("leases that never expire were accepted")
	}
}

// A server that is away for longer than a lease lives costs no lease: its holder
// begins nothing meanwhile, and has it again when the server is back (RULES 6).
func TestOutage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		js := connect(t, s.Conn(t, nats.ReconnectBufSize(-1)))
		a, _ := holder(t, js, "a")
		l, err := a.Acquire(t.Context(), "run.node", "")
		if err != nil {
			t.Fatal(err)
		}
		settle(a) // a watch that is just beginning would hold a lock meanwhile, which stops the bubble's clock
		s.Stop()
		<-time.After(time.Minute)
		if l.Valid() {
			t.Error("a lease that nobody could renew is valid")
		}
		s.Start(t)
		<-time.After(a.TTL())
		select {
		case <-l.Lost():
			t.Error("the lease is lost though nobody took it")
		default:
		}
		if !l.Valid() {
			t.Error("the lease was not taken again")
		}
		b, _ := holder(t, js, "b")
		if _, err := b.Acquire(t.Context(), "run.node", ""); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("second holder: %v", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	})
}
