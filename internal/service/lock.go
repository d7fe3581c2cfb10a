package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/durable"
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

// privateDir creates a folder that only its owner may look into, or makes one that is
// there such a folder: events, keys and sockets are in it. A folder that has other things in it,
// or that all users share (/tmp), stays as it is: what wake makes in it is private by itself. It fails, as ssh does with
// keys, if the folder is another user's, since that user could put anything there.
// A volume that root has mounted for this user may be as it is, and root takes all.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	switch owner := int(info.Sys().(*syscall.Stat_t).Uid); { // on all systems that wake is built for
	case owner == os.Geteuid() && info.Mode().Perm()&0o077 != 0 && info.Mode()&fs.ModeSticky == 0 && isOwn(dir):
		return os.Chmod(dir, info.Mode()&^0o077)
	case owner != os.Geteuid() && owner != 0 && os.Geteuid() != 0:
		return fmt.Errorf("%s belongs to another user (uid %d)", dir, owner)
	}
	return nil
}

// isOwn reports whether a folder is empty, or has been a data directory before.
func isOwn(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, lockName)); err == nil {
		return true
	}
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// DefaultDataDir is where `wake up` keeps its data and the other verbs look for
// its URL: in the working directory, as a repository's agents run from there.
const DefaultDataDir = ".wake"

// URLFile is the file of a data directory that holds the URL of the server that
// runs on it, for as long as it runs.
func URLFile(dataDir string) string { return filepath.Join(dataDir, "nats-url") }

// UsersDir is the folder of a data directory that has the keys and credentials of the
// server that runs on it, if that has users.
func UsersDir(dataDir string) string { return filepath.Join(dataDir, "nats", "auth") }

// HasUsers reports whether the server of a data directory has users.
func HasUsers(dataDir string) bool {
	_, err := os.Stat(UsersDir(dataDir))
	return err == nil
}

// UserCreds is the file with the credentials of a role in that folder.
func UserCreds(dataDir string, role access.Role) string {
	return filepath.Join(UsersDir(dataDir), "creds", string(role)+".creds")
}

// WriteURL writes the URL file of a data directory.
func WriteURL(dataDir, url string) error {
	if err := durable.Write(URLFile(dataDir), []byte(url+"\n"), 0o600); err != nil {
		return fmt.Errorf("service: write URL file: %w", err)
	}
	return nil
}

// readURL fails with [os.ErrNotExist] if no server runs on the directory.
func readURL(dataDir string) (string, error) {
	b, err := os.ReadFile(URLFile(dataDir))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
