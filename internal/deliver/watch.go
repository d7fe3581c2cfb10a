package deliver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file that is being written is left alone.
const settle = 100 * time.Millisecond

// Watch calls changed with the content of a file whenever that isn't what it was,
// until ctx ends. Old is what it was. The file may be replaced, or be a link that
// is set elsewhere, as Kubernetes does. A file that can't be read hasn't changed.
func Watch(ctx context.Context, file string, old []byte, changed func([]byte)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	defer func() { _ = w.Close() }() // nothing of it is needed any more
	if err := w.Add(filepath.Dir(file)); err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	look := time.NewTimer(settle) // it may have changed before it was watched
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Errors: //nolint:errcheck // it says that events may be lost: look
			look.Reset(settle)
		case <-w.Events:
			look.Reset(settle)
		case <-look.C:
			if now, err := os.ReadFile(file); err == nil && !bytes.Equal(now, old) {
				old = now
				changed(now)
			}
		}
	}
}
