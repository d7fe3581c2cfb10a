package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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
