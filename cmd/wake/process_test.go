package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// A service that starts while a cluster has no leader waits for one, if it may.
func TestVerifyWaitsForLeaders(t *testing.T) {
	c := natstest.NewCluster(t, 3)
	nc := c.NodeConn(t, 0)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := initTopology(t.Context(), nc, topology.Config{Names: subjects.Default, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	c.Kill(1)
	c.Kill(2)
	a := &app{names: subjects.Default, log: slog.New(slog.DiscardHandler), server: service.Server{Timeout: 100 * time.Millisecond}}
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := a.verifyStreams(soon, js); err == nil {
		t.Fatal("a stream without a leader is verified")
	}
	a.server.Wait = time.Minute
	verified := make(chan error, 1)
	go func() { verified <- a.verifyStreams(t.Context(), js) }()
	<-time.After(500 * time.Millisecond)
	c.Restart(t, 1)
	c.Restart(t, 2)
	if err := <-verified; err != nil {
		t.Error(err)
	}
}

// An orchestrator can ask a service how it is before there is a server, and while
// the service ends. Neither is a reason to restart it.
func TestHealthWithoutServer(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	a := &app{names: subjects.Default, log: slog.New(slog.DiscardHandler), server: service.Server{
		URL: "nats://127.0.0.1:4", DataDir: t.TempDir(), Timeout: 100 * time.Millisecond, Wait: time.Hour,
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.runService(ctx, "snapshotter", processOptions{httpAddr: addr}, newSnapshotter) }()
	for path, want := range map[string]struct {
		code int
		text string
	}{"healthz": {200, "ok"}, "readyz": {503, "waiting for the server"}} {
		code, text := get(t, "http://"+addr+"/"+path)
		if code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ended without an error, and without a server")
	}
	if err := a.newProcess(ctx, "up", processOptions{}, "", "").readyError(); err == nil || err.Error() != "ending" {
		t.Errorf("a process that ends is ready: %v", err)
	}
}

// get asks until the process answers.
func get(t *testing.T, url string) (code int, text string) {
	t.Helper()
	for range 100 {
		r, err := http.Get(url)
		if err != nil {
			<-time.After(50 * time.Millisecond)
			continue
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	t.Fatalf("nobody answers at %s", url)
	return 0, ""
}
