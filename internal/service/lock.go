package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockName is the file in a data directory that says which process holds it.
const lockName = "lock"

// Lock holds a data directory for one process. The kernel releases it when the
// process ends, however it ends.
type Lock struct{ file *os.File }

// LockDir creates the directory if need be, closes it to other users and locks it. If another process
// holds it and doesn't give it back soon, the error is an [*Error] with [CodeInUse]
// that names the process.
func LockDir(dir string) (*Lock, error) {
	if err := privateDir(dir); err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("data directory: %w", err), Hint: "choose another --data-dir"}
	}
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("data directory: %w", err), Hint: "choose another --data-dir"}
	}
	if err := lockFile(f); err != nil {
		defer func() { _ = f.Close() }() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &Error{Code: CodeInUse, Err: fmt.Errorf("%s is in use%s", dir, holderText(path)), Hint: "stop that process, or choose another --data-dir"}
		}
		return nil, fmt.Errorf("service: lock %s: %w", dir, err)
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		_ = f.Close() // what it could say has been said
		return nil, fmt.Errorf("service: lock %s: %w", dir, err)
	}
	return &Lock{file: f}, nil
}

// lockPatience is how long a child may hold a lock without knowing it. A process
// that was killed while it started a child leaves its files open in the child
// until the child's program begins.
const lockPatience = 500 * time.Millisecond

func lockFile(f *os.File) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// holderText names the process that holds a lock, as far as is known.
func holderText(path string) string {
	b, err := os.ReadFile(path)
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return ""
	}
	return " by process " + pid
}

// Unlock releases the directory.
func (l *Lock) Unlock() error { return l.file.Close() }
