package service_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/internal/service"
)

func TestLockDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	first, err := service.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = service.LockDir(dir)
	var known *service.Error
	if !errors.As(err, &known) || known.Code != service.CodeInUse {
		t.Fatalf("second lock: %v, want %s", err, service.CodeInUse)
	}
	if got, want := err.Error(), fmt.Sprintf("%s is in use by process %d", dir, os.Getpid()); got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	if err := first.Unlock(); err != nil {
		t.Fatal(err)
	}
	again, err := service.LockDir(dir)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	if err := again.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// A runner that is killed while it starts an agent leaves its lock with that, for
// as long as its program hasn't begun. The next start waits for it.
func TestLockDirOfOneOnItsWayOut(t *testing.T) {
	dir := t.TempDir()
	first, err := service.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error)
	go func() {
		<-time.After(100 * time.Millisecond)
		released <- first.Unlock()
	}()
	second, err := service.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-released, second.Unlock()); err != nil {
		t.Error(err)
	}
}

func TestLockDirThatIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := service.LockDir(path)
	var known *service.Error
	if !errors.As(err, &known) || known.Code != service.CodeUsage {
		t.Errorf("lock on a file: %v, want %s", err, service.CodeUsage)
	}
}

// A data directory is closed to others, also one that was there before.
func TestLockDirIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
	shared, project := filepath.Join(t.TempDir(), "shared"), t.TempDir()
	for _, err := range []error{
		os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777|fs.ModeSticky),
		os.Chmod(project, 0o755), os.WriteFile(filepath.Join(project, "main.go"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]fs.FileMode{dir: 0o700, shared: 0o777, project: 0o755} {
		lock, err := service.LockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Unlock() //nolint:errcheck // the test is over
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s is %s, want %s: %v", dir, info.Mode(), want, err)
		}
	}
}

// A data directory in which there is work of one log isn't another log's.
func TestBindDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a]*") // no pattern
	keepers := filepath.Join(dir, "keepers")
	bind := func(incarnation, prefix string) error {
		return service.BindDir(dir, incarnation, prefix, keepers)
	}
	for _, step := range []struct {
		incarnation, prefix string
		held, fails         bool
	}{
		{"one", "wake", true, false}, // the first that comes
		{"one", "wake", true, false},
		{"two", "other", true, true},
		{"one", "wake", true, false}, // whose the work still is
		{"two", "other", false, false},
		{"one", "wake", true, true},
	} {
		if err := os.RemoveAll(keepers); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(keepers, "r1"), 0o700), os.WriteFile(filepath.Join(keepers, "lock"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if step.held {
			if err := os.WriteFile(filepath.Join(keepers, "r1", "journal"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := bind(step.incarnation, step.prefix)
		known, _ := errors.AsType[*service.Error](err)
		if (err != nil) != step.fails || step.fails && (known == nil || known.Code != service.CodeUsage) {
			t.Fatalf("%+v: %v", step, err)
		}
	}
}
