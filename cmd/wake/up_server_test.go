package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

func start(t *testing.T, c embeddedConfig) *embedded {
	t.Helper()
	e, err := startServer(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.stop)
	return e
}

func TestServerKeepsItsPort(t *testing.T) {
	c := embeddedConfig{Dir: filepath.Join(t.TempDir(), "nats"), Listen: "127.0.0.1"}
	first := start(t, c)
	first.stop()
	again := start(t, c)
	if first.url != again.url {
		t.Errorf("second start: %s, want %s again", again.url, first.url)
	}
	again.stop()

	// Somebody else has taken it meanwhile.
	l, err := net.Listen("tcp", strings.TrimPrefix(service.Address(first.url), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if other := start(t, c); other.url == first.url {
		t.Errorf("third start: %s again, but that is taken", other.url)
	}
	_, err = startServer(t.Context(), embeddedConfig{Dir: c.Dir + "2", Listen: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}, slog.New(slog.DiscardHandler))
	if e := apiError(err); err == nil || e.Code != service.CodeInUse || !strings.Contains(e.Hint, "--port") {
		t.Errorf("a port that is taken: %v, want %s and a hint", err, service.CodeInUse)
	}
}

// A stream that couldn't be written for want of room isn't written any more when there is room: the server starts anew then, and its
// clients, those in the process too, come back to what it has stored.
func TestServerStartsAnew(t *testing.T) {
	t.Run("with a token", func(t *testing.T) { startsAnew(t, "127.0.0.1") })
	t.Run("with users", func(t *testing.T) { startsAnew(t, "0.0.0.0") })
}

func jetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func startsAnew(t *testing.T, listen string) {
	e := start(t, embeddedConfig{Dir: filepath.Join(t.TempDir(), "nats"), Listen: listen, Names: subjects.Default})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, health.NewBoard(slog.New(slog.DiscardHandler))) }()
	nc, err := service.Server{URL: e.url, Creds: e.creds, Timeout: serverStart, InProcess: e}.Connect(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(ctx, jetStream(t, nc), topology.Config{Names: subjects.Default}); err != nil {
		t.Fatal(err)
	}
	kv, err := jetStream(t, nc).KeyValue(ctx, subjects.Default.StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	first, err := kv.PutString(ctx, "service.test.one", "one")
	if err != nil {
		t.Fatal(err)
	}
	before := e.current.Load()
	e.logger.Errorf("JetStream failed to store a msg on stream '%s > %s': %v", "$G", "S", &fs.PathError{Op: "write", Path: "1.blk", Err: syscall.ENOSPC})
	for e.current.Load() == before {
		<-time.After(20 * time.Millisecond)
	}
	for {
		second, err := kv.PutString(ctx, "service.test.two", "two")
		if err == nil && second != first+1 {
			t.Errorf("the second value is number %d, the first one was %d", second, first)
		}
		if err == nil {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	nc.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client that may publish may have commands run: that takes the token, on this machine, too,
// where agents are.
func TestServerWantsAToken(t *testing.T) {
	c := embeddedConfig{Dir: filepath.Join(t.TempDir(), "nats"), Listen: "127.0.0.1"}
	e := start(t, c)
	log := slog.New(slog.DiscardHandler)
	nc, err := service.Server{URL: e.url, Timeout: serverStart}.Connect(t.Context(), log)
	if err != nil {
		t.Fatalf("with the token: %v", err)
	}
	nc.Close()
	_, host, ok := strings.Cut(e.url, "@")
	if !ok {
		t.Fatalf("URL %s has no token", e.url)
	}
	_, err = service.Server{URL: "nats://" + host, Timeout: serverStart}.Connect(t.Context(), log)
	if _, token, _ := strings.Cut(e.url, "//"); apiError(err).Code != service.CodeUnauthorized || strings.Contains(err.Error(), token) {
		t.Errorf("without the token: %v, want %s", err, service.CodeUnauthorized)
	}
	info, err := os.Stat(filepath.Join(c.Dir, "token"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file of the token: %v %v, want mode 0600", info, err)
	}
	e.stop()
	if again := start(t, c); again.url != e.url {
		t.Errorf("second start: %s, want the token again: %s", again.url, e.url)
	}
}

func TestServerThatCannotStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nats")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := startServer(t.Context(), embeddedConfig{Dir: dir, Listen: "127.0.0.1"}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("error %v, want one that says why, and where", err)
	}
}

// What a client without a token sends isn't taken for the server's word that its disk is full: the server doesn't start anew for it.
func TestServerStaysForWhatClientsSay(t *testing.T) {
	e := start(t, embeddedConfig{Dir: filepath.Join(t.TempDir(), "nats"), Listen: "127.0.0.1"})
	u, err := url.Parse(e.url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("Cno space left on device........\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil { // the server ends the connection when it has logged that
		t.Log(err)
	}
	if e.logger.full.Load() {
		t.Error("the server is said to have a full disk")
	}
	full := &fs.PathError{Op: "write", Path: "1.blk", Err: syscall.ENOSPC}
	for format, arg := range map[string]any{ // as the server's Errorf, and its RateLimitErrorf, which passes a text on
		"JetStream stream critical write error: %v": fmt.Errorf("store: %w", full),
		"%s": fmt.Sprintf("JetStream failed to store a msg on stream '$G > S': %v", full),
	} {
		e.logger.full.Store(false)
		if e.logger.Errorf(format, arg); !e.logger.full.Load() {
			t.Errorf("%v: a full disk isn't noticed", arg)
		}
	}
}
