package service_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"code.wake.dev/wake/internal/service"
)

// Profiles are served where nobody else can reach them, unless that is forced.
func TestProfiles(t *testing.T) {
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0", "6060"} {
		_, err := service.ListenProfiles(addr, false)
		var known *service.Error
		if !errors.As(err, &known) || known.Code != service.CodeUsage || known.Hint == "" {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for addr, anywhere := range map[string]bool{"127.0.0.1:0": false, "localhost:0": false, "0.0.0.0:0": true} {
		h, err := service.ListenProfiles(addr, anywhere)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Run(ctx) }()
		for path, want := range map[string]int{"/debug/pprof/goroutine?debug=1": http.StatusOK, "/metrics": http.StatusNotFound} {
			res, err := http.Get("http://" + h.Addr() + path)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%s%s: %s", addr, path, res.Status)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
