package eventlog_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"wake/internal/natstest"
)

// proxy stands between a client and a server on loopback TCP. It can cut its
// connections and hold back what the server says.
type proxy struct {
	listener net.Listener
	targets  []string

	mu    sync.Mutex
	conns map[net.Conn]bool
	mute  bool // what the server sends is thrown away
	next  int
}

// newProxy starts a proxy to the servers of a cluster, one after the other.
func newProxy(t *testing.T, c *natstest.Cluster) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, conns: map[net.Conn]bool{}}
	for i := range c.Size() {
		p.targets = append(p.targets, strings.TrimPrefix(c.NodeURL(i), "nats://"))
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		running.Wait()
	})
	return p
}

// conn connects through the proxy.
func (p *proxy) conn(t *testing.T) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("nats://"+p.listener.Addr().String(),
		nats.IgnoreDiscoveredServers(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.targets[p.next%len(p.targets)]
	p.next++
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.track(client, true)
	p.track(server, true)
	defer p.track(client, false)
	defer p.track(server, false)
	var copying sync.WaitGroup
	copying.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(muted{p, client}, server)
	_ = client.Close()
	copying.Wait()
}

func (p *proxy) track(c net.Conn, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if open {
		p.conns[c] = true
	} else {
		delete(p.conns, c)
	}
}

// cut ends all connections. First it throws away what the server says for a
// moment, so that acknowledgements of what it has stored are lost.
func (p *proxy) cut() {
	p.setMute(true)
	timer := time.NewTimer(10 * time.Millisecond)
	<-timer.C
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mute = false
}

func (p *proxy) setMute(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
}

// muted is a client that hears nothing while its proxy is mute.
type muted struct {
	p *proxy
	net.Conn
}

func (m muted) Write(b []byte) (int, error) {
	m.p.mu.Lock()
	mute := m.p.mute
	m.p.mu.Unlock()
	if mute {
		return len(b), nil
	}
	return m.Conn.Write(b)
}
