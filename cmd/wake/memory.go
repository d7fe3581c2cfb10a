package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"code.wake.dev/wake/internal/pull"
)

// garbage is how much memory may be thrown away before it is collected, as long as that is at most twice and at least once
// what is in use: a server and all services have little to keep and throw away much, and the less is in use, the cheaper it
// is to look through that more often.
const garbage = 80 << 20

// garbagePercent is that of a heap of which so much is in use, as GOGC says it.
func garbagePercent(live uint64) int { return int(max(100, min(200, garbage*100/max(live, 1)))) }

// boundGarbage bounds garbage behind each collection.
func boundGarbage() {
	live, percent := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}, 0
	var adapt func(*[16]byte)
	adapt = func(collected *[16]byte) {
		metrics.Read(live)
		if p := garbagePercent(live[0].Value.Uint64()); p < percent-10 || p > percent+10 {
			percent = p
			debug.SetGCPercent(p)
		}
		runtime.SetFinalizer(collected, adapt)
	}
	adapt(new([16]byte))
}

// Bounds of what a process at rest keeps of the memory that it once needed.
const (
	quietTime  = 15 * time.Second // without a collection
	keptMemory = 48 << 20
)

// heap is what the collector says: how often it has collected, and how many bytes nothing needs.
type heap struct{ cycles, spare uint64 }

// readHeap reads what the collector says.
func readHeap() heap {
	list := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(list)
	value := func(i int) uint64 { return list[i].Value.Uint64() }
	return heap{value(0), value(1) + value(2) - min(value(2), value(3))}
}

// isLeft reports whether much is left of a burst of work: the process has been at rest since before.
func (h heap) isLeft(before heap) bool { return h.cycles == before.cycles && h.spare > keptMemory }

// releaseMemory gives back to the system what a burst of work has left, until ctx ends. The collector looks at a process at rest each two
// minutes, and gives back little by little: after a million lines it kept a gigabyte for minutes.
func releaseMemory(ctx context.Context) error {
	for before := (heap{}); ctx.Err() == nil; pull.Sleep(ctx, quietTime) {
		now := readHeap()
		if now.isLeft(before) {
			runtime.GC() // what pools hold goes with the second one
			debug.FreeOSMemory()
		}
		before = now
	}
	return nil
}
