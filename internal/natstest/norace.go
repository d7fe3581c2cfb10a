//go:build !race

package natstest

// aloneOnCPU is for the race detector.
func aloneOnCPU() (restore func()) { return func() {} }
