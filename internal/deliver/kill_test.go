package deliver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// Whatever is the last that a process does that finds, stores and sends alerts: the
// one that comes after it leaves every alert visible once at a sink that knows ids, in
// order.
func TestKilled(t *testing.T) {
	const steps = 60 // more than a process takes until all is sent
	last, again := 0, 0
	for n := 0; n <= steps; n += 1 + n/12 {
		natstest.Bubble(t, func(t *testing.T) {
			hit, twice := killedAfter(t, n)
			if hit {
				last = n
			}
			again += twice
		})
	}
	if last < 15 {
		t.Errorf("the last kill that hit was after %d steps", last)
	}
	if again == 0 {
		t.Error("nothing was sent twice: no kill was between sending and recording")
	}
}

// killedAfter kills a process after n steps from its first event on. It returns
// whether it had so many to make, and how many notifications came twice.
func killedAfter(t *testing.T, n int) (hit bool, again int) {
	w := begin(t)
	mortal := &mortal{server: w.server}
	nc := w.server.Conn(t, nats.InProcessServer(mortal), nats.NoReconnect())
	stop := w.alerting(nc, mortal.transport(w.web))
	<-time.After(2 * time.Second)
	mortal.die(w.web, n)
	node := logtest.Claim(t, w.log, "r1", "test")
	for range 3 {
		logtest.Append(t, node, &wire.Event{ExecID: "test#1", Payload: &wire.NodeError{Error: "exit code 2"}})
	}
	<-time.After(2 * time.Second)
	hit = mortal.dead()
	nc.Close()
	stop()
	w.alerting(w.server.Conn(t), w.web.transport)
	<-time.After(time.Minute)
	var seen []string
	for _, e := range w.web.events() {
		id := e.ID[:strings.LastIndexByte(e.ID, '-')] // without the time
		if !slices.Contains(seen, id) {
			seen = append(seen, id)
		}
	}
	var want []string
	for pos := range uint64(3) {
		want = append(want, w.log.Incarnation()+"-error-"+string(rune('2'+pos)))
	}
	same(t, fmt.Sprintf("killed after %d steps", n), want, seen)
	return hit || n == 0, len(w.web.events()) - len(seen)
}

// alerting runs what `wake alerter --rules` does, as a process with a connection.
func (w *world) alerting(nc *nats.Conn, transport http.RoundTripper) (stop func()) {
	log := logtest.Open(w.t, nc)
	a, err := alerter.New(alerter.Config{Delay: 10 * time.Millisecond}, log, logtest.Logger(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	d := deliver.New(deliver.Config{Transport: transport}, rules(w.t, toOps), log, logtest.Logger(w.t))
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

// mortal is a process that dies after some steps.
type mortal struct {
	server *natstest.Server

	mu   sync.Mutex
	left int // steps; 0: no end
	over bool
}

// die lets the process die after some steps; 0: when the sink has taken the next
// notification, before that can be recorded.
func (m *mortal) die(sink *receiver, after int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left = after; after > 0 {
		return
	}
	sink.answers(func(http.ResponseWriter, event) {
		sink.answers(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.over = true
	})
}

// step reports whether the process lives to do one thing more: a write to the
// server, or a request to a sink.
func (m *mortal) step() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over || m.left == 1 {
		m.over = true
		return false
	}
	if m.left > 0 {
		m.left--
	}
	return true
}

func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// transport makes requests of a process that is alive.
func (m *mortal) transport(r *receiver) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		if !m.step() {
			return nil, net.ErrClosed
		}
		return r.transport.RoundTrip(req)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// InProcessConn implements [nats.InProcessConnProvider].
func (m *mortal) InProcessConn() (net.Conn, error) {
	c, err := m.server.InProcessConn()
	return &dying{c, m}, err
}

type dying struct {
	net.Conn
	m *mortal
}

// Write fails once the process is dead.
func (d *dying) Write(b []byte) (int, error) {
	if !d.m.step() {
		_ = d.Close()
		return 0, net.ErrClosed
	}
	return d.Conn.Write(b)
}

// The same where the sink refuses all of them for good: each is a dead letter, once.
func TestKilledGivingUp(t *testing.T) {
	last := 0
	for n := 1; n <= 40; n++ {
		natstest.Bubble(t, func(t *testing.T) {
			w := begin(t)
			mortal := &mortal{server: w.server}
			nc := w.server.Conn(t, nats.InProcessServer(mortal), nats.NoReconnect())
			stop := w.delivering(nc, toOps, mortal.transport(w.web))
			<-time.After(2 * time.Second)
			w.web.answers(func(h http.ResponseWriter, _ event) { h.WriteHeader(http.StatusBadRequest) })
			mortal.die(w.web, n)
			want := w.raise(3)
			<-time.After(2 * time.Second)
			if mortal.dead() {
				last = n
			}
			nc.Close()
			stop()
			w.delivering(w.server.Conn(t), toOps, w.web.transport)
			<-time.After(time.Minute)
			var got []string
			for _, l := range w.letters() {
				got = append(got, l.Notification.ID)
			}
			same(t, fmt.Sprintf("killed after %d steps", n), want, got)
		})
	}
	if last < 10 {
		t.Errorf("the last kill that hit was after %d steps", last)
	}
}

// The same with digests: each alert is in one of them, and a digest that comes twice
// is the same.
func TestKilledDigest(t *testing.T) {
	again := 0
	for n := 0; n <= 60; n += 1 + n/10 {
		natstest.Bubble(t, func(t *testing.T) {
			w := begin(t)
			src := toOps + "    digest: 5s\n"
			mortal := &mortal{server: w.server}
			nc := w.server.Conn(t, nats.InProcessServer(mortal), nats.NoReconnect())
			stop := w.delivering(nc, src, mortal.transport(w.web))
			<-time.After(2 * time.Second)
			mortal.die(w.web, n)
			w.raise(3)
			<-time.After(8 * time.Second)
			nc.Close()
			stop()
			w.delivering(w.server.Conn(t), src, w.web.transport)
			<-time.After(50 * time.Second)
			w.raise(2)
			<-time.After(10 * time.Second)
			digests := map[string]string{}
			total := 0
			for _, e := range w.web.events() {
				if was, ok := digests[e.ID]; ok {
					again++
					same(t, "a digest that comes again", was, string(e.Data))
					continue
				}
				digests[e.ID] = string(e.Data)
				var d struct{ Count map[string]int }
				if err := json.Unmarshal(e.Data, &d); err != nil {
					t.Fatal(err)
				}
				total += d.Count["error"]
			}
			if total != 5 {
				t.Errorf("killed after %d steps: %d alerts in digests %v", n, total, digests)
			}
		})
	}
	if again == 0 {
		t.Error("nothing was sent twice: no kill was between sending and recording")
	}
}

func (w *world) delivering(nc *nats.Conn, src string, transport http.RoundTripper) (stop func()) {
	d := deliver.New(deliver.Config{Transport: transport}, rules(w.t, src), logtest.Open(w.t, nc), logtest.Logger(w.t))
	return logtest.Go(w.t, d.Run)
}
