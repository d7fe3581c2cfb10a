package eventlog_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/natstest"
)

// line is what lies between a client and its servers. It can be cut, and it can
// lose what the servers say.
type line struct {
	server *natstest.Server // nil: TCP

	mu    sync.Mutex
	conns map[*half]bool
	deaf  bool // what the servers say is lost
}

// conn connects to a server over the line.
func (l *line) conn(t testing.TB, s *natstest.Server) *nats.Conn {
	l.server = s
	return l.connect(t, "", nats.InProcessServer(l))
}

// clusterConn connects to a cluster over the line.
func (l *line) clusterConn(t testing.TB, c *natstest.Cluster) *nats.Conn {
	return l.connect(t, c.URL(), nats.SetCustomDialer(l))
}

func (l *line) connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Dial makes line a [nats.CustomDialer].
func (l *line) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	return l.through(c, err)
}

// InProcessConn makes line a [nats.InProcessConnProvider].
func (l *line) InProcessConn() (net.Conn, error) {
	c, err := l.server.InProcessConn()
	return l.through(c, err)
}

func (l *line) through(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	h := &half{Conn: c, line: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		l.conns = map[*half]bool{}
	}
	l.conns[h] = true
	return h, nil
}

// deafen makes the client hear nothing more until the line is cut.
func (l *line) deafen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = true
}

// cut ends the client's connections; it may connect again.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.conns {
		_ = h.Close()
	}
	clear(l.conns)
	l.deaf = false
}

// half is the client's end of a connection.
type half struct {
	net.Conn
	line *line
}

// Read loses what comes while the line is deaf.
func (h *half) Read(b []byte) (int, error) {
	for {
		n, err := h.Conn.Read(b)
		h.line.mu.Lock()
		lost := h.line.deaf && h.line.conns[h]
		h.line.mu.Unlock()
		if err != nil || !lost {
			return n, err
		}
	}
}
