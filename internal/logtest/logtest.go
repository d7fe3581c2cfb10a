// Package logtest gives tests a log that works, and runs services on it.
package logtest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/trial"
	"code.wake.dev/wake/pkg/wire"
)

// Start starts a server with the streams of wake and returns its log.
func Start(t testing.TB) *eventlog.Log {
	t.Helper()
	_, log := StartServer(t)
	return log
}

// StartServer is [Start] for tests that stop the server, or connect to it again.
func StartServer(t testing.TB) (*natstest.Server, *eventlog.Log) {
	t.Helper()
	s := natstest.New(t)
	nc := s.Conn(t)
	Init(t, nc, topology.Config{})
	return s, Open(t, nc)
}

// Init makes the streams, as `wake init` does.
func Init(t testing.TB, nc *nats.Conn, c topology.Config) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("logtest: %v", err)
	}
	if _, err := topology.Init(t.Context(), js, c); err != nil {
		t.Fatalf("logtest: %v", err)
	}
}

// Open opens the log as one more process does, and runs it until the test ends.
// Closing the connection is the end of that process.
func Open(t testing.TB, nc *nats.Conn) *eventlog.Log {
	t.Helper()
	log, err := eventlog.Open(t.Context(), nc, eventlog.Options{Logger: Logger(t), ShowEvery: 10 * time.Millisecond}) // tests that wait for a service read it
	if err != nil {
		t.Fatalf("logtest: %v", err)
	}
	Go(t, func(ctx context.Context) error {
		err := log.Run(ctx)
		if nc.IsClosed() || errors.Is(err, eventlog.ErrLost) {
			return nil // the test ended the process, or the server
		}
		return err
	})
	return log
}

// Serve answers the requests of users who may not read streams, as a recorder does,
// until the returned function is called, or the test ends.
func Serve(t testing.TB, log *eventlog.Log) (stop func()) {
	t.Helper()
	return Go(t, feed.NewServer(log, Logger(t)).Run)
}

// Go runs a service until the returned function is called, or the test ends. An
// error of the service fails the test.
func Go(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Logger writes to the test's output if the test is verbose.
func Logger(t testing.TB) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// Claim returns the writer of a node.
func Claim(t testing.TB, log *eventlog.Log, run, node string) *eventlog.Writer {
	t.Helper()
	w, err := log.Claim(t.Context(), run, node, eventlog.Claim{Runner: "test"})
	if err != nil {
		t.Fatalf("logtest: %v", err)
	}
	return w
}

// Append stores events and returns the position of the last.
func Append(t testing.TB, w *eventlog.Writer, events ...*wire.Event) uint64 {
	t.Helper()
	pos, err := w.Append(t.Context(), events...)
	if err != nil {
		t.Fatalf("logtest: %v", err)
	}
	return pos
}

// Dying returns the trial of a service after as many processes have ended at the event at a position as may.
func Dying(t testing.TB, service, incarnation string, pos uint64) *trial.Trial {
	t.Helper()
	dir := t.TempDir()
	open := func() *trial.Trial {
		x, err := trial.Open(dir, service, incarnation, new(sync.Mutex))
		if err != nil {
			t.Fatalf("logtest: %v", err)
		}
		return x
	}
	for range trial.Most {
		func() {
			defer func() { _ = recover() }() // the process has ended
			_ = open().Handle(t.Context(), []eventlog.Entry{{Pos: pos}}, func(context.Context, []eventlog.Entry) error { panic("it ends here") })
		}()
	}
	return open()
}

// Output is what a service prints, which a test may read meanwhile.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
