package eventlog_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
)

// block puts something where a file was that no process can read, root included. The function
// puts the file back, at once: there is no moment without it.
func block(t testing.TB, file string) (free func()) {
	t.Helper()
	aside := filepath.Join(t.TempDir(), "aside")
	if err := errors.Join(os.Rename(file, aside), os.Symlink(t.TempDir(), file)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Rename(aside, file); err != nil {
			t.Fatal(err)
		}
	}
}

// pin puts a folder where a file was, which can't be removed as one, root included. The
// function removes it.
func pin(t testing.TB, file string) (free func()) {
	t.Helper()
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
}

// told waits until a process's health says something of its spool, or with "" nothing more.
func told(t testing.TB, b *health.Board, what string) {
	t.Helper()
	for ctx := soon(t); ; {
		changed, err := b.Changed(), b.Err()
		if what == "" && err == nil || what != "" && err != nil && strings.Contains(err.Error(), what) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("health says %v, want %q", err, what)
		}
	}
}

// What waits in a file that can't be read waits there, with what comes behind it. The log goes on,
// and when the file can be read everything is stored, in order.
func TestUnreadableSpool(t *testing.T) {
	t.Parallel()
	dir, board := t.TempDir(), health.NewBoard(slog.New(slog.DiscardHandler))
	a := newAway(t, eventlog.Options{SpoolDir: dir, MemLimit: 16 << 10, Lanes: 1, Health: board, MaxBackoff: 20 * time.Millisecond})
	w := a.claim("r", "n")
	a.server.Stop()
	enqueue(t, w, 0, 2000)
	free := block(t, spooled(t, dir, 1)[0])
	a.server.Start(t)
	told(t, board, "is a directory")
	appended := make(chan error, 1)
	go func() {
		_, err := w.Append(t.Context(), text("2000"))
		appended <- err
	}()
	select {
	case err := <-appended:
		t.Errorf("appended before what comes first: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	free()
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	a.texts("r", "n", 2001)
	told(t, board, "")
	if left := segments(t, dir); len(left) > 0 {
		t.Errorf("the spool still has %v", left)
	}
}

// Files that can't be removed hold up nothing, and are removed once they can be.
func TestUnremovableSpool(t *testing.T) {
	t.Parallel()
	dir, board := t.TempDir(), health.NewBoard(slog.New(slog.DiscardHandler))
	a := newAway(t, eventlog.Options{SpoolDir: dir, Lanes: 1, Health: board, MaxBackoff: 20 * time.Millisecond})
	w := a.claim("r", "n")
	a.server.Stop()
	enqueue(t, w, 0, 100)
	free := pin(t, spooled(t, dir, 1)[0])
	a.server.Start(t)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	told(t, board, "directory not empty")
	appendTo(t, w, text("100"))
	a.texts("r", "n", 101)
	free()
	told(t, board, "")
	if left := segments(t, dir); len(left) > 0 {
		t.Errorf("the spool still has %v", left)
	}
}

// What an earlier process has left and can't be read holds up claims, as long as it is there. If
// a person removes it, its events are lost, and the log says so.
func TestUnreadableLeftovers(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]bool{"mended": false, "removed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, board := t.TempDir(), health.NewBoard(slog.New(slog.DiscardHandler))
			a := newAway(t, eventlog.Options{SpoolDir: dir, DrainWait: 10 * time.Millisecond})
			w := a.claim("r", "n")
			a.server.Stop()
			enqueue(t, w, 0, 50)
			if err := a.stop(); err != nil {
				t.Fatal(err)
			}
			file := segments(t, dir)[0]
			free := block(t, file)
			a.server.Start(t)
			p := a.another(eventlog.Options{SpoolDir: dir, Health: board, MaxBackoff: 20 * time.Millisecond})
			told(t, board, "is a directory")
			claimed := make(chan *eventlog.Writer, 1)
			go func() { claimed <- p.claim("r", "n") }()
			want := 50
			if remove {
				want = 0
				if err := os.RemoveAll(file); err != nil {
					t.Fatal(err)
				}
			} else {
				free()
			}
			if w := <-claimed; w == nil {
				t.Fatal("not claimed")
			}
			p.texts("r", "n", want)
			told(t, board, "")
			if remove {
				if l := p.deadLetters(1)[0]; !strings.Contains(l.Reason, "the spool's file is gone") {
					t.Errorf("dead letter: %s", l.Reason)
				}
			}
		})
	}
}

// A spool that is removed while its process uses it is made again with all that was in it, and health tells: nothing
// is lost, neither if the process goes on nor if it ends and the next one goes on with what it finds.
func TestRemovedSpool(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"goes on": false, "ends": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, board := filepath.Join(t.TempDir(), "spool"), health.NewBoard(slog.New(slog.DiscardHandler))
			o := eventlog.Options{SpoolDir: dir, MemLimit: 16 << 10, Lanes: 1, Health: board, MaxBackoff: 20 * time.Millisecond, DrainWait: 10 * time.Millisecond}
			a := newAway(t, o)
			w := a.claim("r", "n")
			a.server.Stop()
			enqueue(t, w, 0, 2000)
			spooled(t, dir, 1)
			removeInUse(t, dir)
			told(t, board, "was removed while it was in use: it was made again")
			enqueue(t, w, 2000, 4000)
			removeInUse(t, dir)
			p := a.process
			if ends {
				if err := a.stop(); err != nil {
					t.Fatal(err)
				}
				a.server.Start(t)
				o.Health = health.NewBoard(slog.New(slog.DiscardHandler))
				p = a.another(o)
				p.claim("r", "n")
			} else {
				a.server.Start(t)
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				told(t, board, "")
			}
			p.texts("r", "n", 4000)
		})
	}
}

// removeInUse removes a folder in which files are made meanwhile: one of them may be new when the others are gone.
func removeInUse(t *testing.T, dir string) {
	t.Helper()
	for {
		switch err := os.RemoveAll(dir); {
		case err == nil:
			return
		case !errors.Is(err, syscall.ENOTEMPTY):
			t.Fatal(err)
		}
	}
}
