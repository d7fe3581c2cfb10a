package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// HTTP serves what an orchestrator asks of a process: /healthz (it runs),
// /readyz (it can work) and /metrics. There is nothing secret and nothing to
// change, but no authentication either: prefer a loopback address.
type HTTP struct {
	listener net.Listener
	server   *http.Server
}

// ListenHTTP takes the address, host:port. Ready says why the process can't
// work right now, or nil.
func ListenHTTP(addr string, metrics prometheus.Gatherer, ready func() error) (*HTTP, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("health and metrics: %w", err), Hint: "choose another --http-addr"}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // if it fails, the caller is gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // if it fails, the caller is gone
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return &HTTP{listener: listener, server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

// Addr is the address that was taken, with the port chosen if it was 0.
func (h *HTTP) Addr() string { return h.listener.Addr().String() }

// Run serves until ctx ends.
func (h *HTTP) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = h.server.Close() }) // Serve says how it ended
	defer stop()
	if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("service: serve HTTP: %w", err)
	}
	return nil
}

// ListenProfiles takes the address, host:port, and serves profiles of the process at
// /debug/pprof/. They show what is in memory, secrets too, so the address has to be a
// loopback one unless anywhere is set.
func ListenProfiles(addr string, anywhere bool) (*HTTP, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("profiles: %w", err), Hint: "--pprof-addr 127.0.0.1:6060"}
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && !anywhere {
		return nil, &Error{
			Code: CodeUsage, Err: errors.New("profiles: others can reach " + addr + ", and profiles show what is in memory"),
			Hint: "--pprof-addr 127.0.0.1:6060, or --pprof-anywhere",
		}
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("profiles: %w", err), Hint: "choose another --pprof-addr"}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &HTTP{listener: listener, server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}
