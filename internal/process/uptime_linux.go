package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// Uptime returns the time since the machine was started. Other than Go's monotonic
// clock it counts time in which the machine was suspended.
func Uptime() time.Duration {
	if clock != nil {
		return clock()
	}
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
