package natstest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

// startTimeout bounds the start of a server.
const startTimeout = 30 * time.Second

// Start starts a server that listens on no port and returns a connection to it.
func Start(t testing.TB) *nats.Conn {
	t.Helper()
	return New(t).Conn(t)
}

// JetStream is [Start] for tests that need JetStream only.
func JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	return newJetStream(t, Start(t))
}

// Server is one server without a port. It can be stopped and started again
// with what it has stored, while its connections stay and reconnect.
type Server struct {
	opts server.Options

	mu      sync.Mutex
	running *server.Server // nil while stopped
}

// New starts a server. Each edit may change its options, SyncAlways for one:
// as delivered it doesn't wait for the disk.
func New(t testing.TB, edits ...func(*server.Options)) *Server {
	t.Helper()
	s := &Server{opts: server.Options{
		ServerName: "natstest",
		DontListen: true,
		JetStream:  true,
		StoreDir:   StoreDir(t),
		NoSigs:     true,
		NoLog:      true,
	}}
	for _, edit := range edits {
		edit(&s.opts)
	}
	s.Start(t)
	t.Cleanup(func() {
		settleBubble()
		s.Stop()
	})
	return s
}

// Serve starts a server with a test's own options, and ends it with the test.
func Serve(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	opts.NoSigs, opts.NoLog = true, true
	s := runServer(t, opts)
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// Start starts a stopped server again.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	opts := s.opts
	running := runServer(t, &opts)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = running
}

// Stop ends the server, if it runs. Its connections are cut.
func (s *Server) Stop() {
	s.mu.Lock()
	running := s.running
	s.running = nil
	s.mu.Unlock()
	if running == nil {
		return
	}
	if bubbled.Load() {
		cutClients(running)
	}
	running.Shutdown()
	running.WaitForShutdown()
}

// cutClients ends a server's connections before it says that it ends: a client that answers that with a request would have it
// wait for the lock under which the server sleeps, and the bubble's time would stop for ever.
func cutClients(s *server.Server) {
	open, err := s.Connz(&server.ConnzOptions{Limit: 1000})
	if err != nil {
		return
	}
	for _, c := range open.Conns {
		_ = s.DisconnectClientByID(c.Cid) // else it is gone already
	}
}

// Lose removes all messages of streams of a stopped server: the most that a loss of power may take of what isn't synced.
func (s *Server) Lose(t testing.TB, streams ...string) {
	t.Helper()
	for _, name := range streams {
		dir := filepath.Join(s.opts.StoreDir, "jetstream", "$G", "streams", name, "msgs")
		if _, err := os.Stat(dir); err != nil {
			t.Fatalf("natstest: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatalf("natstest: %v", err)
		}
	}
}

// Conn connects to the server. Without other options the connection retries for
// ever after it was cut.
func (s *Server) Conn(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connectServer(t, "", append([]nats.Option{nats.InProcessServer(s)}, opts...))
}

// JetStream returns JetStream on a connection of its own.
func (s *Server) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	return newJetStream(t, s.Conn(t))
}

var errStopped = errors.New("natstest: the server is stopped")

// InProcessConn lets connections find the server again after a restart.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil, errStopped
	}
	return s.running.InProcessConn()
}

func runServer(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("natstest: %v", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		s.Shutdown()
		s.WaitForShutdown()
		t.Fatal("natstest: the server is not ready")
	}
	return s
}

func connectServer(t testing.TB, url string, opts []nats.Option) *nats.Conn {
	t.Helper()
	patient := []nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints
	}
	nc, err := nats.Connect(url, append(patient, opts...)...)
	if err != nil {
		t.Fatalf("natstest: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newJetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("natstest: %v", err)
	}
	return js
}

// Leaks excuses what servers and clients of NATS leave behind: it isn't the
// tests' fault and depends on the moment.
//   - nats-server 2.15.2: the loops of a store that the server makes while it is
//     being shut down (of a stream, or of the messages of a batch), and its ticker.
//   - nats.go 1.55.0: a write to an object store has ended before its goroutine
//     that watches the connection began, which then reads from the channel that
//     the write has taken away, a nil one.
func Leaks() []goleak.Option {
	const (
		server = "github.com/nats-io/nats-server/v2/server"
		client = "github.com/nats-io/nats.go/jetstream"
	)
	return []goleak.Option{
		goleak.IgnoreAnyFunction(server + ".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(server + ".(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction(server + "/ats.Register.func1"),
		goleak.IgnoreAnyFunction(server + "/ats.init.0.func1"),
		goleak.IgnoreAnyFunction(client + ".(*jetStream).resetPendingAcksOnReconnect"),
	}
}

// Main is a package's TestMain: it runs the tests and fails if they leave
// goroutines behind, but for [Leaks]. Servers that live for seconds make much
// garbage: collecting it four times as late is a third less to do.
func Main(m *testing.M, options ...goleak.Option) {
	if set := debug.SetGCPercent(400); set != 100 { // by GOGC
		debug.SetGCPercent(set)
	}
	goleak.VerifyTestMain(m, slices.Concat(options, Leaks())...)
}
