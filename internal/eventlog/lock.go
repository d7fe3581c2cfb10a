package eventlog

import (
	"errors"
	"os"
	"syscall"
)

// lockFile opens a file that one process at a time can hold; closing it, or the
// end of the process, gives it up.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another process uses it")
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
