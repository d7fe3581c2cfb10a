package runner_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// The folder of a run that was removed goes, and no other one: not that of a run that is there, goes on, or isn't known, and nothing that isn't a run's.
func TestFoldersOfRemovedRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		asked := map[string]bool{}
		recorder := api.Service{Name: "recorder", Logger: slog.New(slog.DiscardHandler), Endpoints: []api.Endpoint{
			api.Handle(wire.VerbStatus, "status", func(_ context.Context, q wire.StatusRequest, _ api.Form) (wire.StatusResponse, error) {
				asked[q.Run] = true
				switch q.Run {
				case "removed/1":
					return wire.StatusResponse{}, &wire.APIError{Code: wire.CodeRunNotFound, Message: "removed", RemovedAt: 1}
				case "unknown":
					return wire.StatusResponse{}, &wire.APIError{Code: wire.CodeRunNotFound, Message: "there is none"}
				}
				return wire.StatusResponse{RunID: q.Run}, nil
			}),
		}}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := recorder.Run(ctx, b.nc); err != nil {
				t.Error(err)
			}
		}()
		defer func() {
			cancel()
			<-served
		}()
		dir := t.TempDir()
		b.runner("r1", &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}}, func(c *runner.Config) { c.Workspaces = dir })
		b.submit("live", one)
		b.until("live", wire.TypeNodeStart)
		for _, run := range []string{"removed/1", "kept", "unknown"} {
			if err := os.MkdirAll(filepath.Join(dir, subjects.Escape(run), "in"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "a file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if got := names(t, dir); got != "a file kept live unknown" {
			t.Errorf("left are %s", got)
		}
		if asked["live"] {
			t.Error("asked for a run that goes on")
		}
	})
}
