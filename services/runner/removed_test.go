package runner_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// serveStatuses starts a recorder that answers for the status of runs.
func (b *bench) serveStatuses(of func(run string) error) {
	recorder := api.Service{Name: "recorder", Logger: slog.New(slog.DiscardHandler), Endpoints: []api.Endpoint{
		api.Handle(wire.VerbStatus, "status", func(_ context.Context, q wire.StatusRequest, _ api.Form) (wire.StatusResponse, error) {
			return wire.StatusResponse{RunID: q.Run}, of(q.Run)
		}),
	}}
	b.background(func(ctx context.Context) error { return recorder.Run(ctx, b.nc) })
}

// removedError is what the recorder says of a run that it has removed.
func removedError() error {
	return &wire.APIError{Code: wire.CodeRunNotFound, Message: "it was removed", RemovedAt: 1}
}

// A run that the recorder has removed takes no bookmark, and doesn't go on by a rerun: nothing of it would be recorded.
func TestCommandsToRemovedRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.fails(newFragile())
		var removed atomic.Bool
		b.serveStatuses(func(string) error {
			if removed.Load() {
				return removedError()
			}
			return nil
		})
		if r := b.tell(wire.Command{RunID: "run1", Type: "bookmark", Label: "there"}); !r.Accepted {
			t.Errorf("a bookmark of a run that is there: %s", r.Reason)
		}
		removed.Store(true)
		for _, c := range []wire.Command{{Type: "bookmark", Label: "gone"}, {Type: "resume", Rerun: []string{"*"}}} {
			c.RunID = "run1"
			if r := b.tell(c); r.Accepted || !strings.HasPrefix(r.Reason, string(wire.CodeRunNotFound)) {
				t.Errorf("%s: %+v", c.Type, r)
			}
		}
	})
}

// The folder of a run that was removed goes, and no other one: not that of a run that is there, goes on, or isn't known, and nothing that isn't a run's.
func TestFoldersOfRemovedRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		asked := map[string]bool{}
		b.serveStatuses(func(run string) error {
			asked[run] = true
			switch run {
			case "removed/1":
				return removedError()
			case "unknown":
				return &wire.APIError{Code: wire.CodeRunNotFound, Message: "there is none"}
			}
			return nil
		})
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
