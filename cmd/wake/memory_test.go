package main

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A heap that is small may double twice, a large one once.
func TestGarbagePercent(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 200, 10 << 20: 200, 40 << 20: 200, 64 << 20: 125, 80 << 20: 100, 10 << 30: 100} {
		if got := garbagePercent(live); got != want {
			t.Errorf("%d MiB in use: %d, want %d", live>>20, got, want)
		}
	}
}

// Memory is given back by a process at rest, and only what is worth it.
func TestMemoryIsLeft(t *testing.T) {
	t.Parallel()
	before := heap{cycles: 7, spare: 400 << 20}
	for now, want := range map[heap]bool{{cycles: 7, spare: 400 << 20}: true, {cycles: 8, spare: 400 << 20}: false, {cycles: 7, spare: 20 << 20}: false} {
		if got := now.isLeft(before); got != want {
			t.Errorf("%+v: %v, want %v", now, got, want)
		}
	}
}

// What nothing needs any more is given back after a while in which nothing is collected. The collector may be faster, as it is with the
// race detector: only without that does the test fail where nothing else gives memory back.
func TestReleaseMemory(t *testing.T) {
	const size = 4 * keptMemory
	synctest.Test(t, func(t *testing.T) {
		left := make(chan byte)
		go func() { left <- make([]byte, size)[len(t.Name())] }() // on a stack of its own, which goes
		<-left
		runtime.GC()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- releaseMemory(ctx) }()
		<-time.After(10 * quietTime)
		if h := readHeap(); h.spare > keptMemory {
			t.Errorf("%d MiB are spare", h.spare>>20)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
