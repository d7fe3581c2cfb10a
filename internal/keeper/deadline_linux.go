package keeper

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// deadline calls a function when a time of the boot clock has passed, time in which the
// machine was suspended included.
type deadline struct {
	file *os.File
	fd   int
}

func newDeadline(passed func()) (*deadline, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("keeper: timer: %w", err)
	}
	d := &deadline{file: os.NewFile(uintptr(fd), "deadline"), fd: fd}
	go func() {
		var expirations [8]byte
		for {
			if _, err := d.file.Read(expirations[:]); err != nil {
				return
			}
			passed()
		}
	}()
	return d, nil
}

// MoveTo moves the deadline to a time of the boot clock in ns. One that has passed is due at
// once.
func (d *deadline) MoveTo(at int64) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, at))}
	return unix.TimerfdSettime(d.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}
