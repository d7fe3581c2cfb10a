package guard

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/process"
)

// Alarm is a kernel timer that kills this process, stopped or not.
type Alarm struct {
	id      int32
	created bool
}

// sigevent is the kernel's struct sigevent.
type sigevent struct {
	value  uintptr
	signo  int32
	notify int32
	_      [48]byte
}

// MoveTo moves the Alarm to a time of [process.Uptime] in ns; 0 is never. It counts from now on time in which the
// machine isn't suspended: nothing of the tree runs then.
func (a *Alarm) MoveTo(at int64) error {
	if !a.created {
		event := sigevent{signo: int32(unix.SIGKILL)} // notify 0: SIGEV_SIGNAL
		_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&a.id)))
		runtime.KeepAlive(&event)
		if errno != 0 {
			return fmt.Errorf("guard: kernel timer: %w", errno)
		}
		a.created = true
	}
	if at != 0 {
		at = clockTime(unix.CLOCK_MONOTONIC) + at - int64(process.Uptime())
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	const absolute = 1 // TIMER_ABSTIME
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(a.id), absolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("guard: kernel timer: %w", errno)
	}
	return nil
}

// clockTime reads a clock of the kernel in ns.
func clockTime(id int32) int64 {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return t.Nano()
}
