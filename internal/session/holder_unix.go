//go:build unix

package session

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isRunning reports whether a process has the number.
func isRunning(pid int) bool {
	err := unix.Kill(pid, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}
