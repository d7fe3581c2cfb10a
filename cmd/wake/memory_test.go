package main

import "testing"

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
	for now, want := range map[heap]bool{{7, 400 << 20}: true, {8, 400 << 20}: false, {7, 20 << 20}: false} {
		if got := now.isLeft(before); got != want {
			t.Errorf("%+v: %v, want %v", now, got, want)
		}
	}
	if got := readHeap(); got.cycles == 0 && got.spare == 0 {
		t.Error("the collector says nothing: its figures have other names")
	}
}
