//go:build !linux

package process

import "time"

// Uptime returns a time that only grows, since there is no clock here that counts the time in
// which the machine was suspended.
func Uptime() time.Duration {
	if clock != nil {
		return clock()
	}
	return time.Since(begin)
}

var begin = time.Now() // the origin of a clock
