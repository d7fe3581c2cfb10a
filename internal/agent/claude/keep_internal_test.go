package claude

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// An agent that puts a pipe in the place of its session file, or of the folder of all of them, doesn't hold what keeps it.
func TestSessionFileIsPipe(t *testing.T) {
	for _, pipe := range []string{"projects", "projects/x", "projects/x/s.jsonl"} {
		t.Run(pipe, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(pipe)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(filepath.Join(dir, pipe), 0o600); err != nil {
				t.Fatal(err)
			}
			files := sessionFiles{projects: filepath.Join(dir, "projects"), folder: "x"}
			k := newFileSaver(files, "s", func(context.Context, string, int64, []byte) error { return nil }, slog.New(slog.DiscardHandler))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				k.trySave(t.Context())
			}()
			select {
			case <-ended:
			case <-time.After(5 * time.Second):
				t.Error("it waits for the pipe")
			}
		})
	}
}
