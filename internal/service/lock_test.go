package service_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"wake/internal/service"
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
