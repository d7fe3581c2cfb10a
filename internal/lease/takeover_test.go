package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
)

// until tries to take a node every tenth of a second, and
// returns how long that took.
func until(t *testing.T, n *node, k *lease.Holder) (time.Duration, *lease.Lease) {
	t.Helper()
	start := time.Now()
	for time.Since(start) < time.Minute {
		l, err := n.take(t.Context(), k)
		if err == nil {
			return time.Since(start), l
		}
		if !errors.Is(err, lease.ErrHeld) {
			t.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatal("never acquired")
	return 0, nil
}

// settle lets the holders see what there is, for longer than a lease lives.
func settle(k *lease.Holder) { <-time.After(3*k.TTL() + k.TTL()/10) }

// A dead holder is followed within its time to live and two seconds, and not before
// its session has expired. One that holds nothing more is gone at once (RULES 6).
func TestDeath(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, die := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		_, leave := holder(t, js, "c")
		n.mustTake(t, a)
		settle(b)
		die()
		leave()
		synctest.Wait()
		if !b.Present("a") || b.Present("c") {
			t.Error("a runner that has gone in order is there, or one that still holds something isn't")
		}
		if b.Free(one, n.last) {
			t.Error("what a session that hasn't expired claims is free")
		}
		took, _ := until(t, n, b)
		if least, most := a.TTL()-a.TTL()/3, a.TTL()+2*time.Second; took < least || took > most {
			t.Errorf("taken over after %s, want %s to %s", took, least, most)
		}
	})
}

// A server with a clock that was put back keeps the session of a dead holder for as much longer: here for two hours. A rival goes by
// the rival's own clock, whether it has seen the last renewal, forgotten it since, or not been there yet.
func TestClockPutBack(t *testing.T) {
	for name, late := range map[string]time.Duration{"at once": 0, "much later": 20 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				js, n := connect(t, natstest.Start(t)), new(node)
				a, die := holder(t, js, "a")
				b, _ := holder(t, js, "b")
				n.mustTake(t, a)
				claimed := n.last
				settle(b)
				c, leave := holder(t, js, "c") // it learns from the bucket how long sessions live
				leave()
				stream, err := js.Stream(t.Context(), "KV_"+subjects.Default.LeasesBucket())
				if err != nil {
					t.Fatal(err)
				}
				config := stream.CachedInfo().Config
				config.MaxAge += 2 * time.Hour
				if _, err := js.UpdateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
				die()
				<-time.After(late)
				took, l := until(t, n, b)
				if took > a.TTL()+2*time.Second {
					t.Errorf("taken over after %s", took)
				}
				l.Release()
				n.last = claimed
				t.Cleanup(start(t, c))
				if took, _ := until(t, n, c); took < c.TTL() || took > c.TTL()+2*time.Second {
					t.Errorf("a rival that began then took over after %s", took)
				}
			})
		})
	}
}

// A rival that has just started can't know whether the holder could renew: it waits
// a whole time to live. The holder's own next process needn't (RULES 6).
func TestJustStarted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, die := holder(t, js, "a")
		n.mustTake(t, a)
		die()
		<-time.After(time.Hour) // the session is long gone
		b, stop := holder(t, js, "b")
		took, l := until(t, n, b)
		if took < b.TTL() || took > b.TTL()+2*time.Second {
			t.Errorf("taken over after %s", took)
		}
		l.Release()
		stop()
		<-time.After(time.Hour)
		n.last.Runner = "a" // as if it had never been b's
		next, _ := holder(t, js, "a")
		if took, _ := until(t, n, next); took > time.Second {
			t.Errorf("its own next process waited %s", took)
		}
	})
}

// A process that was killed is followed by the next one of its home at once, while
// its session is still there. Another home with the same name isn't it (RULES 6).
func TestSameHome(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, die := holder(t, js, "a")
		n.mustTake(t, a)
		die()
		namesake, leave := holderOf(t, js, identity("a", "elsewhere"))
		n.mustNotTake(t, namesake, "another home")
		leave()
		next, _ := holder(t, js, "a")
		if took, _ := until(t, n, next); took > time.Second {
			t.Errorf("the next process of the home waited %s", took)
		}
	})
}

// A claim must not name a session of which the server knows nothing.
func TestNoSessionYet(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		slow := &faulty{JetStream: js, gate: make(chan struct{}, 1)}
		slow.gate <- struct{}{}
		a, _ := holder(t, slow, "a")
		if _, err := a.Acquire(t.Context(), one, lease.Claimant{}); err == nil || errors.Is(err, lease.ErrHeld) {
			t.Errorf("acquired without a session: %v", err)
		}
		<-slow.gate
		<-time.After(a.TTL())
		if _, err := a.Acquire(t.Context(), one, lease.Claimant{}); err != nil {
			t.Error(err)
		}
	})
}

// A rival asks the leader before it takes anything: its watch may be behind.
func TestLeaderIsAsked(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, _ := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		n.mustTake(t, a)
		settle(b)
		b.Forget(n.last.Process)
		if !b.Free(one, n.last) {
			t.Fatal("not free")
		}
		n.mustNotTake(t, b, "its session is there")
		if b.Holds(one) {
			t.Error("what wasn't taken is held")
		}
	})
}

// RULES 6: after an outage longer than leases live, all have expired and anybody
// could create them. Those who hold them get them back.
func TestOutageStealsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, n := natstest.New(t), new(node)
		b, _ := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "b")
		<-time.After(b.TTL() / 4) // the rival renews before the holder does
		a, _ := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "a")
		l := n.mustTake(t, a)
		settle(b)
		s.Stop()
		<-time.After(5*a.TTL() + a.TTL()/4)
		s.Start(t)
		for range 100 { // the rival is as fast as it can be
			n.mustNotTake(t, b, "the holder is alive")
			<-time.After(a.TTL() / 50)
		}
		if !l.Valid() {
			t.Error("the holder didn't get its lease back")
		}
		if !b.Present("a") {
			t.Error("the holder isn't there")
		}
	})
}

// What nobody has begun needs no waiting, and of many tasks of a process one
// gets it.
func TestNobodyHadBegun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		got := make(chan error, 10)
		for range cap(got) {
			go func() {
				_, err := a.Acquire(t.Context(), one, lease.Claimant{})
				got <- err
			}()
		}
		won := 0
		for range cap(got) {
			if err := <-got; err == nil {
				won++
			} else if !errors.Is(err, lease.ErrHeld) {
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d tasks hold the lease", won)
		}
	})
}

// faulty is a server on which the session can't be written at times, with
// whatever waits for it, or is answered for late, whose first watch may go deaf, and which may not be
// watched at all.
type faulty struct {
	jetstream.JetStream
	gate  chan struct{} // full: Put stalls
	late  atomic.Int64  // by how much its answers come later, ns
	deaf  bool
	blind atomic.Bool
}

func (f *faulty) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := f.JetStream.KeyValue(ctx, bucket)
	return stalling{kv, f}, err
}

type stalling struct {
	jetstream.KeyValue
	f *faulty
}

func (s stalling) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	s.f.gate <- struct{}{}
	defer func() { <-s.f.gate }()
	defer func() { <-time.After(time.Duration(s.f.late.Load())) }()
	return s.KeyValue.Put(context.WithoutCancel(ctx), key, value)
}

var errBlind = errors.New("no watch is to be had")

func (f *faulty) CreateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if f.blind.Load() {
		return nil, errBlind
	}
	if f.deaf {
		f.deaf, c.FilterSubject = false, "$KV."+subjects.Default.LeasesBucket()+".nothing"
	}
	return f.JetStream.CreateConsumer(ctx, stream, c)
}

// A process that was stopped itself doesn't know what others could do meanwhile,
// such as where everything was stopped at once (RULES 6).
func TestStalledRival(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, stall := holder(t, js, "a")
		slow := &faulty{JetStream: js, gate: make(chan struct{}, 1)}
		b, _ := holder(t, slow, "b")
		held := n.mustTake(t, a)
		settle(b)
		stall()
		slow.gate <- struct{}{}
		<-time.After(5 * a.TTL()) // the session has expired
		if b.Free(one, n.last) {
			t.Error("free for a process that hasn't heard of anything for long")
		}
		<-slow.gate
		<-time.After(a.TTL() / 2)
		if b.Free(one, n.last) {
			t.Fatal("free for a rival that has just woken up")
		}
		defer start(t, a)()
		if err := held.Await(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Two runners with one name, such as from a copied command line, are two (RULES 6).
func TestNamesakes(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, n := natstest.New(t), new(node)
		here, _ := holderOf(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), identity("a", "here"))
		<-time.After(here.TTL() / 6)
		there, _ := holderOf(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), identity("a", "there"))
		<-time.After(here.TTL() / 2)
		if there.Free(one, lease.Claimant{Runner: "a", Process: "long gone"}) {
			t.Error("what a runner of this name has begun is free while one is there")
		}
		l := n.mustTake(t, here)
		settle(there)
		s.Stop()
		<-time.After(5 * here.TTL())
		s.Start(t)
		for range 100 {
			n.mustNotTake(t, there, "its namesake holds it")
			<-time.After(here.TTL() / 50)
		}
		if !l.Valid() {
			t.Error("the holder didn't get its lease back")
		}
	})
}

// A watch that tells nothing is replaced.
func TestDeaf(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, n := connect(t, natstest.Start(t)), new(node)
		a, _ := holder(t, js, "a")
		n.mustTake(t, a)
		b, _ := holder(t, &faulty{JetStream: js, gate: make(chan struct{}, 1), deaf: true}, "b")
		settle(b)
		n.mustNotTake(t, b, "its session is there")
		if !b.Present("a") || b.Present("nobody") {
			t.Error("who is there isn't known")
		}
	})
}

// A holder that can write but sees nothing doesn't know what is held: no lease is
// free for it, nor is one that it doesn't see right after it has begun to see
// (RULES 6).
func TestBlind(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := &faulty{JetStream: connect(t, natstest.Start(t)), gate: make(chan struct{}, 1)}
		js.blind.Store(true)
		b, _ := holder(t, js, "b")
		settle(b)
		if b.Free(one, lease.Claimant{Runner: "a", Process: "gone"}) {
			t.Error("free for a holder that sees nothing")
		}
		js.blind.Store(false)
		<-time.After(b.TTL() / 2)
		if b.Free(one, lease.Claimant{Runner: "a", Process: "gone"}) {
			t.Error("free for a holder that has just begun to see")
		}
		<-time.After(b.TTL())
		if !b.Free(one, lease.Claimant{Runner: "a", Process: "gone"}) {
			t.Error("not free after a whole time to live")
		}
	})
}

// The watch goes on after an outage, and what is gone doesn't stay in memory (RULES 6).
func TestWatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		a, _ := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "a")
		b, _ := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "b")
		settle(b)
		s.Stop()
		<-time.After(a.TTL() / 2) // the connection is back before anything has expired
		s.Start(t)
		<-time.After(2 * a.TTL())
		if !b.Present("a") || !a.Present("b") {
			t.Error("they don't see each other any more")
		}
		for range 50 {
			_, leave := holder(t, connect(t, s.Conn(t)), "c")
			synctest.Wait()
			leave()
		}
		<-time.After(6 * a.TTL())
		if n := b.Sightings(); n > 2 { // the two runners are there
			t.Errorf("%d sessions remembered", n)
		}
	})
}
