package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// BenchmarkKeeperMemory opens eight keepers side by side, each with a program at work. pss-kB is
// the share that one of them and its guard have of the memory, as the kernel tells it.
func BenchmarkKeeperMemory(b *testing.B) {
	const beside = 8
	fence, err := keeper.Probe(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var pss int
	for b.Loop() {
		var keepers []*keeper.Keeper
		var programs []*processes.Process
		for range beside {
			until := processes.Uptime() + time.Hour
			k, err := keeper.Open(b.Context(), keeper.Config{Dir: filepath.Join(b.TempDir(), "k"), Fence: fence, Freeze: until, Kill: until})
			if err != nil {
				b.Fatal(err)
			}
			keepers = append(keepers, k)
			p, err := k.Start(processes.Config{Name: "agent", Journal: true, Argv: []string{"/bin/cat"}})
			if err != nil {
				b.Fatal(err)
			}
			programs = append(programs, p)
		}
		for _, k := range keepers {
			pss += shareOf(b, k.Pid())
			guards, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", k.Pid()))
			if err != nil || len(bytes.Fields(guards)) != 1 {
				b.Fatalf("the guard of keeper %d: %q %v", k.Pid(), guards, err)
			}
			guard, _ := strconv.Atoi(string(bytes.Fields(guards)[0]))
			pss += shareOf(b, guard)
		}
		for i, p := range programs {
			_ = p.End(0)
			for range p.Frames { // what is left of it
			}
			_ = p.Close()
			_ = keepers[i].Quit(0)
		}
	}
	b.ReportMetric(float64(pss)/float64(b.N)/beside, "pss-kB")
}

// shareOf is a process's Pss, in kB.
func shareOf(b *testing.B, pid int) (kB int) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(rollup)) {
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kB); n == 1 {
			return kB
		}
	}
	b.Fatalf("process %d has no Pss", pid)
	return 0
}
