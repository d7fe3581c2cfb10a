package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

func many(t *testing.T, k *lease.Holder, count int) []*lease.Lease {
	t.Helper()
	leases := make([]*lease.Lease, count)
	for i := range leases {
		l, err := k.Acquire(t.Context(), fmt.Sprint("run.n", i), "")
		if err != nil {
			t.Fatal(err)
		}
		leases[i] = l
	}
	return leases
}

// valid checks that all leases but those given are valid and not lost.
func valid(t *testing.T, leases []*lease.Lease, but ...int) {
	t.Helper()
	bad := map[int]bool{}
	for _, i := range but {
		bad[i] = true
	}
	for i, l := range leases {
		lost := false
		select {
		case <-l.Lost():
			lost = true
		default:
		}
		if l.Valid() == bad[i] || lost != bad[i] {
			t.Fatalf("lease %d of %d: valid %t, lost %t", i, len(leases), l.Valid(), lost)
		}
	}
}

// batches returns by how many writes the leases of a bucket were stored last.
func batches(t *testing.T, js jetstream.JetStream, count int) int {
	t.Helper()
	s, err := js.Stream(t.Context(), "KV_"+subjects.Default.LeasesBucket())
	if err != nil {
		t.Fatal(err)
	}
	writes := map[string]bool{}
	for i := range count {
		m, err := s.GetLastMsgForSubject(t.Context(), fmt.Sprint("$KV."+subjects.Default.LeasesBucket()+".run.n", i))
		if err != nil {
			t.Fatal(err)
		}
		id := m.Header.Get("Nats-Batch-Id")
		if id == "" {
			id = fmt.Sprint(i)
		}
		writes[id] = true
	}
	return len(writes)
}

// However many leases a runner holds, it renews them in few writes.
func TestManyInFewWrites(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connectSynced(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		leases := many(t, a, 1201)
		<-time.After(10 * a.TTL())
		valid(t, leases)
		if n := batches(t, js, len(leases)); n != 3 {
			t.Errorf("renewed in %d writes, want 3", n)
		}
	})
}

// One that was lost, one that was taken away, one that was written behind its holder's
// back as by an answer that was lost, and one that is released cost the others nothing.
func TestSomeOfMany(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connectSynced(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		leases := many(t, a, 300)
		kv, err := js.KeyValue(t.Context(), subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		e, err := kv.Get(t.Context(), "run.n7")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Update(t.Context(), "run.n7", e.Value(), e.Revision()); err != nil {
			t.Fatal(err)
		}
		purge(t, js, "run.n100")
		purge(t, js, "run.n200")
		b, _ := holder(t, js, "b")
		if _, err := b.Acquire(t.Context(), "run.n200", ""); err != nil {
			t.Fatal(err)
		}
		if err := leases[299].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(a.TTL() / 2)
		valid(t, leases[:299], 200)
		<-time.After(2 * a.TTL())
		valid(t, leases[:299], 200)
		if n := batches(t, js, 299); n != 2 {
			t.Errorf("renewed in %d writes, want one and b's own", n)
		}
		if _, err := b.Acquire(t.Context(), "run.n299", "a"); err != nil {
			t.Errorf("the released one: %v", err)
		}
	})
}

// All are had again after an outage in which all have expired, before a rival
// may take any (RULES 6).
func TestOutageOfMany(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		a, _ := holder(t, connectSynced(t, s.Conn(t, nats.ReconnectBufSize(-1))), "a")
		js := connect(t, s.Conn(t, nats.ReconnectBufSize(-1)))
		b, _ := holder(t, js, "b")
		leases := many(t, a, 700)
		settle(b)
		s.Stop()
		<-time.After(5 * a.TTL())
		s.Start(t)
		for range 20 {
			for i := range leases {
				if _, err := b.Acquire(t.Context(), fmt.Sprint("run.n", i), "a"); !errors.Is(err, lease.ErrHeld) {
					t.Fatalf("lease %d was taken: %v", i, err)
				}
			}
			<-time.After(a.TTL() / 20)
		}
		valid(t, leases)
		if n := batches(t, js, len(leases)); n != 2 {
			t.Errorf("renewed in %d writes, want 2", n)
		}
	})
}

// A bucket on one server alone takes no batches: leases are renewed one by one.
func TestManyWithoutBatches(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := connect(t, natstest.Start(t))
		a, _ := holder(t, js, "a")
		leases := many(t, a, 700)
		<-time.After(3 * a.TTL())
		valid(t, leases)
		if n := batches(t, js, len(leases)); n != len(leases) {
			t.Errorf("renewed in %d writes", n)
		}
	})
}

// A cluster that loses the leader of the bucket loses no lease (RULES 6).
func TestManyOnACluster(t *testing.T) {
	t.Parallel()
	c := natstest.NewCluster(t, 3)
	js := c.JetStream(t)
	if _, err := topology.Init(t.Context(), js, topology.Config{Replicas: 3, LeaseTTL: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	stream := "KV_" + subjects.Default.LeasesBucket()
	c.WaitReady(t, stream)
	a, _ := holder(t, js, "a")
	leases := many(t, a, 600)
	<-time.After(a.TTL())
	valid(t, leases)
	// On a slow machine some have expired and are taken again, in smaller batches.
	if n := batches(t, js, len(leases)); n > len(leases)/20 {
		t.Errorf("%d leases are renewed in %d writes", len(leases), n)
	}
	c.Kill(c.Leader(stream))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	<-time.After(a.TTL())
	for i, l := range leases {
		if err := l.Await(ctx); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	<-time.After(a.TTL() / 2)
	valid(t, leases)
}
