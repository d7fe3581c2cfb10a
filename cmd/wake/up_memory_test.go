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
