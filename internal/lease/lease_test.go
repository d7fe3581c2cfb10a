package lease_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
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

// holder returns a holder that renews its leases until stop is called.
func holder(t *testing.T, js jetstream.JetStream, runner string) (k *lease.Holder, stop func()) {
	t.Helper()
	return holderOf(t, js, identity(runner, runner))
}

// identity is that of a new process.
func identity(runner, home string) lease.Identity {
	return lease.Identity{Runner: runner, Home: home, Process: rand.Text()}
}

func holderOf(t *testing.T, js jetstream.JetStream, id lease.Identity) (k *lease.Holder, stop func()) {
	t.Helper()
	k, err := lease.NewHolder(t.Context(), js, subjects.Default.LeasesBucket(), id, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop = start(t, k)
	t.Cleanup(stop)
	ids.Store(k, id)
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

// ids are the identities of holders.
var ids sync.Map

// node is the log's part of a lease: its last claim, which only a claim that knows of it may follow.
type node struct {
	mu    sync.Mutex
	epoch int
	last  lease.Claimant
}

var one = lease.Key{Run: "run", Node: "node"}

// take acquires the lease of the node and claims it.
func (n *node) take(ctx context.Context, k *lease.Holder) (*lease.Lease, error) {
	n.mu.Lock()
	epoch, last := n.epoch, n.last
	n.mu.Unlock()
	l, err := k.Acquire(ctx, one, last)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.epoch != epoch {
		l.Release()
		return nil, lease.ErrHeld
	}
	id, _ := ids.Load(k)
	n.epoch, n.last = n.epoch+1, lease.Claimant{Runner: id.(lease.Identity).Runner, Process: id.(lease.Identity).Process}
	mine := n.epoch
	l.Claimed(func(context.Context) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.epoch != mine {
			return lease.ErrLost
		}
		return nil
	})
	return l, nil
}

// giveBack says that nobody acts for the node.
func (n *node) giveBack(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last.Process = ""
	return nil
}

func (n *node) mustTake(t *testing.T, k *lease.Holder) *lease.Lease {
	t.Helper()
	l, err := n.take(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// mustNotTake wants the node to be held.
func (n *node) mustNotTake(t *testing.T, k *lease.Holder, why string) {
	t.Helper()
	if _, err := n.take(t.Context(), k); !errors.Is(err, lease.ErrHeld) {
		t.Errorf("%s: %v", why, err)
	}
}

func TestOneHolder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		l := n.mustTake(t, a)
		n.mustNotTake(t, a, "a second task of the process")
		n.mustNotTake(t, b, "another process")
		// It is renewed for as long as its holder runs.
		<-time.After(time.Hour)
		if !l.Valid() {
			t.Error("a renewed lease is not valid")
		}
		n.mustNotTake(t, b, "after an hour")
		if l.Release(); l.Valid() || a.Holds(one) {
			t.Error("a released lease is held")
		}
		n.mustNotTake(t, b, "released, but not in the log")
		if err := n.giveBack(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := n.mustTake(t, b)
		if l.Release(); !next.Valid() {
			t.Error("releasing twice took the next holder's lease")
		}
	})
}

// A process renews one key, however much it holds, and what it holds is told by the key.
func TestOneKey(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		for i := range 1000 {
			for _, node := range []string{wire.RunNode, "one", "two"} {
				if _, err := a.Acquire(t.Context(), lease.Key{Run: fmt.Sprint("run", i), Node: node}, lease.Claimant{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		s, err := js.Stream(t.Context(), "KV_"+subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		before := s.CachedInfo().State
		<-time.After(a.TTL())
		after, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if after.State.Msgs != 1 || after.State.LastSeq-before.LastSeq != 3 {
			t.Errorf("%d keys, %d writes in a time to live", after.State.Msgs, after.State.LastSeq-before.LastSeq)
		}
		all, err := keys.All(t.Context(), js, subjects.Default.LeasesBucket(), ">")
		if err != nil {
			t.Fatal(err)
		}
		var told lease.Session
		if err := wire.Unmarshal(all[0].Value, &told); err != nil || told.Runner != "a" || told.Runs != 1000 || told.Nodes != 2000 {
			t.Errorf("the key says %+v, %v", told, err)
		}
	})
}

// What its holder has abandoned is nobody else's until its time is over, and the holder's
// own again at once; then it is given back.
func TestAbandoned(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		for range 2 {
			l := n.mustTake(t, a)
			synctest.Wait()
			l.Abandon(n.giveBack)
			if l.Valid() {
				t.Error("an abandoned lease is valid")
			}
			n.mustNotTake(t, b, "at once")
		}
		<-time.After(a.TTL() / 2)
		n.mustNotTake(t, b, "within its time")
		<-time.After(a.TTL())
		n.mustTake(t, b)
	})
}

// What couldn't be given back is given back later, and what its process has taken again isn't.
func TestAbandonedAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		tries := 0
		n.mustTake(t, a).Abandon(func(ctx context.Context) error {
			if tries++; tries < 3 {
				return errors.New("the log is away")
			}
			return n.giveBack(ctx)
		})
		<-time.After(3 * a.TTL())
		if tries != 3 {
			t.Errorf("given back in %d tries", tries)
		}
		n.mustTake(t, b).Abandon(n.giveBack)
		l := n.mustTake(t, b)
		<-time.After(5 * a.TTL())
		if !l.Valid() {
			t.Error("what was taken again was given back")
		}
		n.mustNotTake(t, a, "taken again")
	})
}

// A holder that stops renewing may begin nothing shortly before another one
// can hold the lease.
func TestExpiry(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, stop := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		l := n.mustTake(t, a)
		settle(b)
		stop()
		<-time.After(a.TTL() - a.TTL()/10 - a.TTL()/3)
		n.mustNotTake(t, b, "before the end of its time")
		<-time.After(a.TTL() / 3)
		if l.Valid() {
			t.Error("a lease about to expire is valid")
		}
		<-time.After(a.TTL())
		n.mustTake(t, b)
	})
}

// A holder is told what other processes have claimed while its session had expired, and keeps the rest.
func TestLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		n := new(node)
		nc := s.Conn(t, nats.ReconnectBufSize(-1))
		a, stop := holder(t, connect(t, nc), "a")
		b, _ := holder(t, connect(t, s.Conn(t)), "b")
		l := n.mustTake(t, a)
		kept, err := a.Acquire(t.Context(), lease.Key{Run: "run", Node: "other"}, lease.Claimant{})
		if err != nil {
			t.Fatal(err)
		}
		proofs := 0
		kept.Claimed(func(context.Context) error {
			if proofs++; proofs < 3 {
				return errors.New("the log is away")
			}
			return nil
		})
		settle(b)
		stop()
		took, next := until(t, n, b)
		if took < a.TTL()-a.TTL()/3 || l.Valid() || kept.Valid() {
			t.Errorf("taken after %s, valid %t and %t", took, l.Valid(), kept.Valid())
		}
		defer start(t, a)()
		synctest.Wait()
		if l.Valid() || kept.Valid() || kept.Until() > 0 {
			t.Error("a lease that isn't proven is valid")
		}
		if err := l.Await(t.Context()); !errors.Is(err, lease.ErrLost) {
			t.Errorf("awaiting a lost lease: %v", err)
		}
		if err := kept.Await(t.Context()); err != nil || proofs != 3 {
			t.Errorf("awaiting the other one: %v after %d proofs", err, proofs)
		}
		select {
		case <-l.Lost():
		default:
			t.Error("Lost is open")
		}
		if l.Release(); !next.Valid() || a.Holds(one) {
			t.Error("waking up took the lease back")
		}
	})
}

// A session that is taken out of the bucket is put there again, and nothing is free meanwhile: that is no word of its process.
func TestTakenOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		l := n.mustTake(t, a)
		settle(b)
		kv, err := js.KeyValue(t.Context(), subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		id, _ := ids.Load(a)
		if err := kv.Purge(t.Context(), subjects.Default.SessionKey("a", id.(lease.Identity).Process)); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			n.mustNotTake(t, b, "its session was taken out")
			<-time.After(a.TTL() / 50)
		}
		if !l.Valid() {
			t.Error("the lease isn't valid")
		}
	})
}

// Leases that never expire, and answers of replicas that are behind, are no leases. The time to live is the bucket's: one of a
// key would be gone with its first renewal (RULES 6).
func TestUnfitBuckets(t *testing.T) {
	js := natstest.JetStream(t)
	for name, c := range map[string]jetstream.StreamConfig{
		"forever": {Subjects: []string{"$KV.forever.>"}},
		"any":     {Subjects: []string{"$KV.any.>"}, MaxAge: time.Minute, AllowDirect: true},
	} {
		c.Name, c.MaxMsgsPerSubject, c.AllowRollup = "KV_"+name, 1, true
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		_, err := lease.NewHolder(t.Context(), js, name, identity("a", "a"), slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "wake init") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that is away for longer than a session lives costs no lease: its holder
// begins nothing meanwhile, and has it again when the server is back (RULES 6).
func TestOutage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, n := natstest.New(t), new(node)
		js := connect(t, s.Conn(t, nats.ReconnectBufSize(-1)))
		a, _ := holder(t, js, "a")
		l := n.mustTake(t, a)
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
			t.Error("the lease was not proven")
		}
		b, _ := holder(t, js, "b")
		n.mustNotTake(t, b, "second holder")
	})
}

// A renewal is none if its answer comes when other processes may have found the session gone, though it was asked for in time.
func TestLateAnswer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		slow := &faulty{JetStream: js, gate: make(chan struct{}, 1)}
		a, _ := holder(t, slow, "a")
		l := n.mustTake(t, a)
		proofs := 0
		l.Claimed(func(context.Context) error { proofs++; return nil })
		settle(a)
		slow.late.Store(int64(a.TTL() * 4 / 5))
		<-time.After(3 * a.TTL())
		slow.late.Store(0)
		<-time.After(a.TTL())
		if proofs == 0 || !l.Valid() {
			t.Errorf("%d proofs, valid %t", proofs, l.Valid())
		}
	})
}

// A proof that is under way is waited for before its holder says that it doesn't act any more, and none begins afterwards: it would
// say that it does.
func TestSettled(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, stop := holder(t, js, "a")
		l := n.mustTake(t, a)
		begun, end := make(chan struct{}), make(chan struct{})
		proofs := 0
		l.Claimed(func(context.Context) error {
			proofs++
			begun <- struct{}{}
			<-end
			return errors.New("the log is away")
		})
		stop()
		<-time.After(2 * a.TTL())
		defer start(t, a)()
		<-begun
		settled := make(chan struct{})
		go func() {
			l.Settle()
			close(settled)
		}()
		synctest.Wait()
		select {
		case <-settled:
			t.Error("the proof that is under way wasn't waited for")
		default:
		}
		close(end)
		<-settled
		<-time.After(3 * a.TTL())
		if proofs != 1 || l.Valid() {
			t.Errorf("%d proofs, valid %t", proofs, l.Valid())
		}
	})
}
