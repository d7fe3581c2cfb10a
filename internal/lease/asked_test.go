package lease_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/topology"
)

// slowNet is a way to a server on which everything that is sent takes its time.
type slowNet struct {
	server *natstest.Server
	delay  time.Duration
}

func (s slowNet) InProcessConn() (net.Conn, error) {
	c, err := s.server.InProcessConn()
	return &slowConn{Conn: c, delay: s.delay}, err
}

type slowConn struct {
	net.Conn

	delay time.Duration
	mu    sync.Mutex
}

func (c *slowConn) Write(data []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	<-time.After(c.delay)
	return c.Conn.Write(data)
}

// A lease is valid for one time to live from when it was asked for, no longer and no shorter: others count from when they saw it, which may be long before the
// answer comes. By the real clock, which Until is of.
func TestCountsFromAsking(t *testing.T) {
	const delay, ttl = 200 * time.Millisecond, 2 * time.Second
	server := natstest.New(t)
	if _, err := topology.Init(t.Context(), server.JetStream(t), topology.Config{LeaseTTL: ttl}); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(slowNet{server, delay}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	begun := process.Uptime()
	k, _ := holder(t, js, "a")
	l, err := k.Acquire(t.Context(), one, lease.Claimant{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if late := l.Until() - (process.Uptime() - delay + ttl); late > 0 {
			t.Errorf("it is valid for %s longer than from its asking", late)
		}
		if early := begun + ttl - l.Until(); early > 0 {
			t.Errorf("it is valid for %s shorter than from its asking", early)
		}
		begun = l.Until() - ttl // it is asked for later next time
		select {
		case <-l.Renewed():
		case <-time.After(20 * ttl):
			t.Fatal("not renewed")
		}
	}
}
