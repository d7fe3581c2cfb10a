package main

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/keeper"
	processes "code.wake.dev/wake/internal/process"
)

// BenchmarkKeeper starts and ends a keeper and its guard. cpu-ms is the processor time that
// both take for it.
func BenchmarkKeeper(b *testing.B) {
	fence, err := keeper.Probe(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	before := childTime(b)
	for b.Loop() {
		until := processes.Uptime() + time.Hour
		k, err := keeper.Open(b.Context(), keeper.Config{Dir: filepath.Join(b.TempDir(), "k"), Fence: fence, Freeze: until, Kill: until})
		if err != nil {
			b.Fatal(err)
		}
		if err := k.Quit(0); err != nil {
			b.Fatal(err)
		}
		for syscall.Kill(k.Pid(), 0) == nil { // this process hasn't been told of its end, nor of its time
			<-time.After(time.Millisecond)
		}
	}
	b.ReportMetric(float64((childTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// childTime is the processor time of the children of this process that have ended, and of theirs.
func childTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
