package backup_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/backup"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// What is restored by force stands after the first attempt, though a server whose last stream was removed removes the
// folder of streams as well, a moment later.
func TestRestoredAgain(t *testing.T) {
	ctx, n, dir := t.Context(), subjects.Default, filepath.Join(t.TempDir(), "copy")
	nc, _ := startWake(t)
	if _, err := backup.Take(ctx, nc, n, dir, nil, quiet); err != nil {
		t.Fatal(err)
	}
	m, err := backup.Open(ctx, dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if err := backup.Restore(ctx, nc, n, dir, m, backup.Options{Force: true}, quiet); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
}

// What a restoration has left that was interrupted isn't taken for the installation, by nobody, until it is begun again. That
// needs no force: nothing is lost by it that wasn't before.
func TestRestoreInterrupted(t *testing.T) {
	n, dir := subjects.Default, filepath.Join(t.TempDir(), "copy")
	from, _ := startWake(t)
	if _, err := backup.Take(t.Context(), from, n, dir, nil, quiet); err != nil {
		t.Fatal(err)
	}
	m, err := backup.Open(t.Context(), dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for name, start := range map[string]func(*testing.T) (*nats.Conn, jetstream.JetStream){"over nothing": startEmpty, "over another": startWake} {
		for _, interrupted := range []string{n.EventsStream(), "files"} {
			t.Run(name+"/"+interrupted, func(t *testing.T) {
				t.Parallel()
				to, js := start(t)
				ctx, interrupt := context.WithCancel(t.Context())
				o := backup.Options{Force: true, Files: func() error { interrupt(); return ctx.Err() }}
				err := backup.Restore(ctx, to, n, dir, m, o, func(name string, _, _ int64) {
					if name == interrupted {
						interrupt()
					}
				})
				if err == nil {
					t.Fatal("it wasn't interrupted")
				}
				refused := func(what string, err error) {
					t.Helper()
					if mismatch, ok := errors.AsType[*topology.Mismatch](err); !ok || mismatch.Remedy != "wake restore DIR" {
						t.Errorf("%s: %v", what, err)
					}
				}
				refused("verify", topology.Verify(t.Context(), js, n))
				_, err = topology.Init(t.Context(), js, topology.Config{})
				refused("init", err)
				_, err = backup.Take(t.Context(), to, n, filepath.Join(t.TempDir(), "half"), nil, quiet)
				refused("backup", err)
				if err := backup.Restore(t.Context(), to, n, dir, m, backup.Options{}, quiet); err != nil {
					t.Fatal(err)
				}
				if report, err := topology.Init(t.Context(), js, topology.Config{}); err != nil || report.Changed() {
					t.Errorf("afterwards: %+v, %v", report, err)
				}
			})
		}
	}
}
