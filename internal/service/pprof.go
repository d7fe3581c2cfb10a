package service

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

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
