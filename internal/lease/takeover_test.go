package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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

// until tries to acquire a lease that a had claimed every tenth of a second, and
// returns how long that took.
func until(t *testing.T, k *lease.Holder, last string) (time.Duration, *lease.Lease) {
	t.Helper()
	start := time.Now()
	for time.Since(start) < time.Minute {
		l, err := k.Acquire(t.Context(), "run.node", last)
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

func acquire(t *testing.T, k *lease.Holder) *lease.Lease {
	t.Helper()
	l, err := k.Acquire(t.Context(), "run.node", "")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// settle lets the holders see what there is, for longer than a lease lives.
func settle(k *lease.Holder) { <-time.After(3*k.TTL() + k.TTL()/10) }

// A dead holder is followed within its time to live and two seconds, and not before
// its lease has expired (RULES 6).
func TestDeath(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, die := holder(t, js, "a")
		b, _ := holder(t, js, "b")
		acquire(t, a)
		settle(b)
		die()
		synctest.Wait()
		if b.Present("a") {
			t.Error("a runner that has gone in order is there")
		}
		if b.Free("run.node", "a") {
			t.Error("a lease that hasn't expired is free")
		}
		took, _ := until(t, b, "a")
		if least, most := a.TTL()-a.TTL()/3, a.TTL()+2*time.Second; took < least || took > most {
			t.Errorf("taken over after %s, want %s to %s", took, least, most)
		}
	})
}

// A rival that has just started can't know whether the holder could renew: it waits
// a whole time to live. The holder's own next process needn't (RULES 6).
func TestJustStarted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, die := holder(t, js, "a")
		acquire(t, a)
		die()
		<-time.After(time.Hour) // the lease is long gone
		b, stop := holder(t, js, "b")
		if took, l := until(t, b, "a"); took < b.TTL() || took > b.TTL()+2*time.Second {
			t.Errorf("taken over after %s", took)
		} else if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		<-time.After(time.Hour)
		next, _ := holder(t, js, "a")
		if took, _ := until(t, next, "a"); took > time.Second {
			t.Errorf("its own next process waited %s", took)
		}
	})
}

// A process that was killed is followed by the next one of its home at once, while
// the lease is still there. Another home with the same name isn't it (RULES 6).
func TestSameHome(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, die := holder(t, js, "a")
		old := acquire(t, a)
		die()
		namesake, leave := holderOf(t, js, lease.Identity{Runner: "a", Home: "elsewhere"})
		if _, err := namesake.Acquire(t.Context(), "run.node", "a"); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("another home: %v", err)
		}
		leave()
		next, _ := holder(t, js, "a")
		took, l := until(t, next, "a")
		if took > time.Second {
			t.Errorf("the next process of the home waited %s", took)
		}
		if l.Revision() <= old.Revision() {
			t.Errorf("revision %d follows %d", l.Revision(), old.Revision())
		}
	})
}

// lossyNet is a way to a server on which what holds a text is lost.
type lossyNet struct {
	server *natstest.Server
	text   string
}

func (n lossyNet) InProcessConn() (net.Conn, error) {
	c, err := n.server.InProcessConn()
	return lossyConn{c, n.text}, err
}

type lossyConn struct {
	net.Conn

	text string
}

func (c lossyConn) Write(data []byte) (int, error) {
	if bytes.Contains(data, []byte(c.text)) {
		return len(data), nil
	}
	return c.Conn.Write(data)
}

// A lease of an earlier process of the home isn't held before the server has said so.
func TestSameHomeUnanswered(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		js := connect(t, s.Conn(t))
		a, die := holder(t, js, "a")
		old := acquire(t, a)
		die()
		update := fmt.Sprintf("Nats-Expected-Last-Subject-Sequence: %d\r\n", old.Revision())
		next, _ := holder(t, connect(t, s.Conn(t, nats.InProcessServer(lossyNet{s, update}))), "a")
		<-time.After(time.Second) // it has seen what there is
		if l, err := next.Acquire(t.Context(), "run.node", "a"); err == nil {
			t.Errorf("it holds the lease at revision %d, of which the server knows nothing", l.Revision())
		} else if errors.Is(err, lease.ErrHeld) {
			t.Errorf("nothing was refused: %v", err)
		}
	})
}

// RULES 6: after an outage longer than leases live, all have expired and anybody
// could create them. Those who hold them get them back.
func TestOutageStealsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		a, _ := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "a")
		b, _ := holder(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), "b")
		l := acquire(t, a)
		settle(b)
		s.Stop()
		<-time.After(5 * a.TTL())
		s.Start(t)
		for range 100 { // the rival is as fast as it can be
			if _, err := b.Acquire(t.Context(), "run.node", "a"); err == nil {
				t.Fatal("the rival took the lease of a holder that is alive")
			}
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

// A process that stalls for longer than its leases live, and wakes up, is told
// that they are lost.
func TestStall(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, err := lease.NewHolder(t.Context(), js, subjects.Default.LeasesBucket(), lease.Identity{Runner: "a", Home: "a"}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		stalled := acquire(t, a) // its Run doesn't run
		b, _ := holder(t, js, "b")
		settle(b)
		_, l := until(t, b, "a")
		if stalled.Valid() {
			t.Error("the lease of a stalled process is valid")
		}
		defer start(t, a)()
		if err := stalled.Await(t.Context()); !errors.Is(err, lease.ErrLost) {
			t.Errorf("awaiting a lost lease: %v", err)
		}
		if !l.Valid() {
			t.Error("waking up took the lease back")
		}
		select {
		case <-stalled.Lost():
		default:
			t.Error("Lost is open")
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
				_, err := a.Acquire(t.Context(), "run.node", "")
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

// faulty is a server on which the presence can't be written at times, with
// whatever waits for it, whose first watch may go deaf, and which may not be
// watched at all.
type faulty struct {
	jetstream.JetStream
	gate  chan struct{} // full: Put stalls
	deaf  bool
	blind atomic.Bool
}

func (f *faulty) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := f.JetStream.KeyValue(ctx, bucket)
	return stalling{kv, f.gate}, err
}

type stalling struct {
	jetstream.KeyValue
	gate chan struct{}
}

func (s stalling) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	s.gate <- struct{}{}
	defer func() { <-s.gate }()
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
		js := connect(t, natstest.Start(t))
		a, stall := holder(t, js, "a")
		slow := &faulty{JetStream: js, gate: make(chan struct{}, 1)}
		b, _ := holder(t, slow, "b")
		held := acquire(t, a)
		settle(b)
		stall()
		slow.gate <- struct{}{}
		<-time.After(5 * a.TTL()) // the lease has expired
		if b.Free("run.node", "a") {
			t.Error("free for a process that hasn't heard of anything for long")
		}
		<-slow.gate
		<-time.After(a.TTL() / 2)
		if _, err := b.Acquire(t.Context(), "run.node", "a"); !errors.Is(err, lease.ErrHeld) {
			t.Fatalf("the rival woke up first: %v", err)
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
		s := natstest.New(t)
		one, _ := holderOf(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), lease.Identity{Runner: "a", Home: "here"})
		<-time.After(one.TTL() / 6)
		two, _ := holderOf(t, connect(t, s.Conn(t, nats.ReconnectBufSize(-1))), lease.Identity{Runner: "a", Home: "there"})
		<-time.After(one.TTL() / 2)
		if two.Free("run.other", "a") {
			t.Error("what a runner of this name has begun is free while one is there")
		}
		l := acquire(t, one)
		settle(two)
		s.Stop()
		<-time.After(5 * one.TTL())
		s.Start(t)
		for range 100 {
			if _, err := two.Acquire(t.Context(), "run.node", "a"); err == nil {
				t.Fatal("the namesake took a lease that is held")
			}
			<-time.After(one.TTL() / 50)
		}
		if !l.Valid() {
			t.Error("the holder didn't get its lease back")
		}
	})
}

// A watch that tells nothing is replaced.
func TestDeaf(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		acquire(t, a)
		b, _ := holder(t, &faulty{JetStream: js, gate: make(chan struct{}, 1), deaf: true}, "b")
		settle(b)
		if info, held := b.Of("run.node"); !held || info.Runner != "a" {
			t.Errorf("holder is %+v, %t", info, held)
		}
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
		if b.Free("run.node", "a") {
			t.Error("free for a holder that sees nothing")
		}
		js.blind.Store(false)
		<-time.After(b.TTL() / 2)
		if b.Free("run.node", "a") {
			t.Error("free for a holder that has just begun to see")
		}
		<-time.After(b.TTL())
		if !b.Free("run.node", "a") {
			t.Error("not free after a whole time to live")
		}
	})
}

// The watch goes on after an outage: what is released is free at once, and what is
// forgotten doesn't stay in memory (RULES 6).
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
		for i := range 50 {
			key := fmt.Sprintf("run.node%d", i)
			l, err := a.Acquire(t.Context(), key, "")
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if info, held := b.Of(key); !held || info.Runner != "a" {
				t.Errorf("holder is %+v, %t", info, held)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !b.Free(key, "a") {
				t.Error("a lease that was released isn't free")
			}
		}
		<-time.After(6 * a.TTL())
		if n := b.Sightings(); n > 2 { // the two runners are there
			t.Errorf("%d keys remembered", n)
		}
	})
}
