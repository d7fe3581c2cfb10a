package natstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// memory is a file system in memory, and spare what has to be free there.
const (
	memory = "/dev/shm"
	spare  = 4 << 30
)

// StoreDir returns a folder for what servers store. In tests it is in memory, if there is room: they write many small files. Benchmarks
// measure disks.
func StoreDir(t testing.TB) string {
	t.Helper()
	var fs syscall.Statfs_t
	if _, ok := t.(*testing.T); !ok || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < spare {
		return t.TempDir()
	}
	removeLeftovers()
	dir, err := os.MkdirTemp(memory, fmt.Sprintf("natstest-%d-", os.Getpid())) //nolint:usetesting // that is elsewhere
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("natstest: %v", err)
		}
	})
	return dir
}

// removeLeftovers removes the folders of processes that have died.
func removeLeftovers() {
	dirs, _ := filepath.Glob(memory + "/natstest-*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), "-")[1])
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.RemoveAll(dir) // another process may be at it
		}
	}
}
