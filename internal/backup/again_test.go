package backup_test

import (
	"path/filepath"
	"testing"

	"code.wake.dev/wake/internal/backup"
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
