package service_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/service"
)

func TestHTTP(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "wake_test", Help: "A number."}, func() float64 { return 7 }))
	var down atomic.Bool
	h, err := service.ListenHTTP("127.0.0.1:0", registry, func() error {
		if down.Load() {
			return errors.New("NATS is away")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()

	get := func(path string, wantStatus int, wantText string) {
		t.Helper()
		res, err := http.Get("http://" + h.Addr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != wantStatus || !strings.Contains(string(body), wantText) {
			t.Errorf("GET %s: %d %q, want %d with %q", path, res.StatusCode, body, wantStatus, wantText)
		}
	}
	get("/healthz", http.StatusOK, "ok")
	get("/readyz", http.StatusOK, "ok")
	get("/metrics", http.StatusOK, "wake_test 7")
	get("/", http.StatusNotFound, "")
	down.Store(true)
	get("/healthz", http.StatusOK, "ok")
	get("/readyz", http.StatusServiceUnavailable, "NATS is away")

	_, err = service.ListenHTTP(h.Addr(), registry, nil)
	var known *service.Error
	if !errors.As(err, &known) || !strings.Contains(known.Hint, "--http-addr") {
		t.Errorf("taken address: %v, want an error with a hint", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}
