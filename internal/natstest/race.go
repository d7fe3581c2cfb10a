//go:build race

package natstest

import "runtime"

// aloneOnCPU has goroutines run one at a time until the returned function is called. In a bubble the race detector has one
// stack for all timers that expire: two that do so at the same time corrupt it, and the program crashes (golang/go#78156).
// What isn't ordered is still noticed: the detector looks for order, not for things that happen at the same time.
func aloneOnCPU() (restore func()) {
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}
