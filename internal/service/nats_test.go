package service_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/topology"
)

// listen starts a server on a free port, optionally for one user only.
func listen(t *testing.T, user, password string) *server.Server {
	t.Helper()
	return natstest.Serve(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, Username: user, Password: password})
}

func writeContext(t *testing.T, name string, fields map[string]string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "nats", "context")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", filepath.Dir(filepath.Dir(dir)))
}

func TestConnect(t *testing.T) {
	s := listen(t, "ann", "secret")
	withUser := strings.Replace(s.ClientURL(), "nats://", "nats://ann:secret@", 1)
	writeContext(t, "work", map[string]string{"url": s.ClientURL(), "user": "ann", "password": "secret"})
	dir := t.TempDir()
	if err := service.WriteURL(dir, withUser); err != nil {
		t.Fatal(err)
	}
	tests := map[string]service.Server{
		"URL":                             {URL: withUser},
		"context":                         {Context: "work"},
		"URL file":                        {DataDir: dir},
		"URL before context":              {URL: withUser, Context: "unknown"},
		"context before URL file":         {Context: "work", DataDir: t.TempDir()},
		"URL before a file of no meaning": {URL: withUser, DataDir: "/nowhere"},
	}
	for name, settings := range tests {
		t.Run(name, func(t *testing.T) {
			settings.Timeout = time.Second
			nc, err := settings.Connect(t.Context(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			nc.Close()
		})
	}
}

func TestConnectErrors(t *testing.T) {
	s := listen(t, "ann", "secret")
	writeContext(t, "far", map[string]string{"url": s.ClientURL(), "user": "ann", "password": "secret", "jetstream_domain": "hub"})
	stale := t.TempDir()
	if err := service.WriteURL(stale, "nats://127.0.0.1:"+freePort(t)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		settings service.Server
		code     string
		text     string
		hint     string
	}{
		{"nothing given", service.Server{DataDir: "/nowhere"}, service.CodeUnreachable, "no server is running on /nowhere", "wake up"},
		{"server gone", service.Server{DataDir: stale}, service.CodeUnreachable, "no answer from nats://127.0.0.1:", "is left from a server that is gone"},
		{"connection refused", service.Server{URL: "127.0.0.1:" + freePort(t)}, service.CodeUnreachable, "no answer from 127.0.0.1:", "wake up"},
		{"silent server", service.Server{URL: silent(t)}, service.CodeUnreachable, "no answer from", "wake up"},
		{"wrong password", service.Server{URL: s.ClientURL()}, service.CodeUnauthorized, "Authorization Violation", "--creds"},
		{"credentials missing", service.Server{URL: s.ClientURL(), Creds: "/nowhere/x.creds"}, service.CodeUsage, "/nowhere/x.creds", ""},
		{"unknown context", service.Server{Context: "unknown"}, service.CodeUsage, `unknown context "unknown"`, "nats context ls"},
		{"context with a domain", service.Server{Context: "far"}, service.CodeUsage, "by a domain", "holds the streams"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.settings.Timeout = 200 * time.Millisecond
			start := time.Now()
			_, err := tt.settings.Connect(t.Context(), slog.New(slog.DiscardHandler))
			if d := time.Since(start); d > time.Second {
				t.Errorf("took %s, want less than a second", d)
			}
			var known *service.Error
			if !errors.As(err, &known) {
				t.Fatalf("error %v (%T), want a service.Error", err, err)
			}
			if known.Code != tt.code {
				t.Errorf("code %s, want %s", known.Code, tt.code)
			}
			if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tt.text)) {
				t.Errorf("error %q, want it to contain %q", err, tt.text)
			}
			if !strings.Contains(known.Hint, tt.hint) {
				t.Errorf("hint %q, want it to contain %q", known.Hint, tt.hint)
			}
		})
	}
}

func TestConnectWaits(t *testing.T) {
	port := freePort(t)
	settings := service.Server{URL: "127.0.0.1:" + port, Timeout: 20 * time.Millisecond, Wait: 30 * time.Second}
	tried := make(chan struct{}, 1000)
	log := slog.New(slog.NewTextHandler(writerFunc(func([]byte) { tried <- struct{}{} }), nil))
	go func() {
		<-tried // only then there is a server
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Error(err)
			return
		}
		l.Close()
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, NoSigs: true, NoLog: true})
		if err != nil {
			t.Error(err)
			return
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
	}()
	nc, err := settings.Connect(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestDeniedSubjectIsTold(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT}
	opts.Users = []*server.User{{Username: "ann", Password: "x", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"ok"}}}}}
	s := natstest.Serve(t, opts)
	denied := make(chan error, 1)
	settings := service.Server{URL: strings.Replace(s.ClientURL(), "nats://", "nats://ann:x@", 1), Timeout: time.Second, Denied: func(err error) { denied <- err }}
	nc, err := settings.Connect(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish("secret", nil); err != nil {
		t.Fatal(err)
	}
	var known *service.Error
	if err := <-denied; !errors.As(err, &known) || known.Code != service.CodeDenied || !strings.Contains(err.Error(), "secret") {
		t.Errorf("told %v, want a denial that names the subject", err)
	}
}

// Credentials that a server refuses are tried again: it, or the file, may be mended.
func TestRefusedCredentials(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT}
	withPassword := func(password string) *server.Options {
		o := opts.Clone()
		o.Users = []*server.User{{Username: "ann", Password: password}}
		return o
	}
	s := natstest.Serve(t, withPassword("x"))
	opts.Port = s.Addr().(*net.TCPAddr).Port
	lines := make(chan string, 64)
	told := slog.New(slog.NewTextHandler(writerFunc(func(b []byte) { lines <- string(b) }), nil))
	settings := service.Server{URL: strings.Replace(s.ClientURL(), "nats://", "nats://ann:x@", 1), Timeout: time.Second}
	nc, err := settings.Connect(t.Context(), told)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	states := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	if err := s.ReloadOptions(withPassword("y")); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for refused == 0 {
		if strings.Contains(<-lines, "refuses the credentials") {
			refused++
		}
	}
	for attempts := nc.Stats().Reconnects; nc.Stats().Reconnects < attempts+3; { // the client's own way is to give up with the second
		<-time.After(10 * time.Millisecond)
	}
	if err := s.ReloadOptions(withPassword("x")); err != nil {
		t.Fatal(err)
	}
	if state := <-states; state != nats.CONNECTED {
		t.Fatalf("the connection is %s", state)
	}
	for len(lines) > 0 {
		if strings.Contains(<-lines, "refuses the credentials") {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("it was told %d times", refused)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// silent is the address of something that accepts connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c) // until the client gives up
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

func TestAddress(t *testing.T) {
	for url, want := range map[string]string{
		"nats://127.0.0.1:4222":                        "nats://127.0.0.1:4222",
		"nats://token@127.0.0.1:4222":                  "nats://127.0.0.1:4222",
		"nats://ann:se@cret@[::1]:4222,tls://b@host:1": "nats://[::1]:4222,tls://host:1",
		"token@host": "host",
		"context x":  "context x",
		"":           "",
	} {
		if got := service.Address(url); got != want {
			t.Errorf("%q: %q, want %q", url, got, want)
		}
	}
}

// silentLine is a way to a server on which nothing goes to and fro any more as of a moment.
type silentLine struct {
	*natstest.Server

	silent chan struct{}
}

func (l *silentLine) InProcessConn() (net.Conn, error) {
	c, err := l.Server.InProcessConn()
	select {
	case <-l.silent: // it is there again
		return c, err
	default:
		return &silentConn{Conn: c, silent: l.silent, closed: make(chan struct{})}, err
	}
}

type silentConn struct {
	net.Conn

	silent, closed chan struct{}
	once           sync.Once
}

func (c *silentConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.silent:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *silentConn) Write(b []byte) (int, error) {
	select {
	case <-c.silent:
		return len(b), nil
	default:
		return c.Conn.Write(b)
	}
}

func (c *silentConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A server that says nothing while its connection is open, such as one on a machine that is frozen, is left before a session of a
// runner expires.
func TestSilentServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		line := &silentLine{Server: natstest.New(t), silent: make(chan struct{})}
		nc, err := service.Server{URL: "nats://in-process", Timeout: time.Second, InProcess: line}.Connect(t.Context(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		<-time.After(time.Minute) // it answers, and is not left
		if n := nc.Stats().Reconnects; n > 0 {
			t.Fatalf("connected again %d times", n)
		}
		close(line.silent)
		<-time.After(topology.DefaultLeaseTTL)
		if n := nc.Stats().Reconnects; n != 1 || !nc.IsConnected() {
			t.Errorf("connected again %d times within a session's time: %s", n, nc.Status())
		}
	})
}
