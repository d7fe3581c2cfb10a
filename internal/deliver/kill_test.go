package deliver_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"wake/internal/deliver"
	"wake/internal/logtest"
	"wake/internal/natstest"
	"wake/pkg/wire"
	"wake/services/alerter"
)

// Whichever write to the server is the last of a process that finds, stores and
// sends alerts: the one that comes after it leaves every alert visible once at a
// sink that knows ids, in order.
func TestKilled(t *testing.T) {
	const writes = 60 // more than a process makes until all is sent
	last := 0
	for n := 1; n <= writes; n += 1 + n/20 {
		natstest.Bubble(t, func(t *testing.T) {
			if killedAfter(t, n) {
				last = n
			}
		})
	}
	if last < 15 {
		t.Errorf("the last kill that hit was after %d writes", last)
	}
}

// killedAfter kills a process after n writes from its first event on. It returns
// whether that was before it had sent everything.
func killedAfter(t *testing.T, n int) bool {
	w := begin(t)
	mortal := &mortal{server: w.server}
	nc := w.server.Conn(t, nats.InProcessServer(mortal), nats.NoReconnect())
	stop := w.alerting(nc)
	<-time.After(2 * time.Second)
	mortal.die(n)
	node := logtest.Claim(t, w.log, "r1", "test")
	for range 3 {
		logtest.Append(t, node, &wire.Event{ExecID: "test#1", Payload: &wire.NodeError{Error: "exit code 2"}})
	}
	<-time.After(2 * time.Second)
	hit := mortal.dead()
	nc.Close()
	stop()
	w.alerting(w.server.Conn(t))
	<-time.After(time.Minute)
	var seen []string
	for _, e := range w.web.events() {
		if !slices.Contains(seen, e.ID) {
			seen = append(seen, e.ID)
		}
	}
	var want []string
	for pos := range uint64(3) {
		want = append(want, w.log.Incarnation()+"-error-"+string(rune('2'+pos)))
	}
	same(t, fmt.Sprintf("killed after %d writes", n), want, seen)
	return hit
}

// alerting runs what `wake alerter --rules` does, as a process with a connection.
func (w *world) alerting(nc *nats.Conn) (stop func()) {
	log := logtest.Open(w.t, nc)
	a, err := alerter.New(alerter.Config{Delay: 10 * time.Millisecond}, log, logtest.Logger(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	d := deliver.New(deliver.Config{Transport: w.web.transport}, rules(w.t, toOps), log, logtest.Logger(w.t))
	stops := []func(){logtest.Go(w.t, func(ctx context.Context) error {
		if err := a.Run(ctx); !nc.IsClosed() {
			return err
		}
		return nil // it is dead
	}), logtest.Go(w.t, d.Run)}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// mortal gives a connection that dies after some writes.
type mortal struct {
	server *natstest.Server

	mu   sync.Mutex
	left int // writes; 0: no end
	over bool
}

func (m *mortal) die(after int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = after
}

func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// InProcessConn implements [nats.InProcessConnProvider].
func (m *mortal) InProcessConn() (net.Conn, error) {
	c, err := m.server.InProcessConn()
	return &dying{c, m}, err
}

type dying struct {
	net.Conn
	m *mortal
}

// Write counts.
func (d *dying) Write(b []byte) (int, error) {
	d.m.mu.Lock()
	if d.m.over || d.m.left == 1 {
		d.m.over = true
		d.m.mu.Unlock()
		_ = d.Close()
		return 0, net.ErrClosed
	}
	if d.m.left > 0 {
		d.m.left--
	}
	d.m.mu.Unlock()
	return d.Conn.Write(b)
}
