package run

import (
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// A run may take so long, from its start on. While it is paused its time stands still, and what has failed for
// its time gets as much again when it goes on.

// setDeadline gives the run so many milliseconds from now on; 0: it has no deadline.
func (f *fold) setDeadline(ms int64) {
	f.s.Deadline, f.s.TimeLeftMs = 0, 0
	switch {
	case ms <= 0, f.s.Imported != "":
	case f.s.Status == wire.RunPaused:
		f.s.TimeLeftMs = ms
	default:
		f.s.Deadline = f.e.Timestamp + ms
	}
}

// stopTime notes since when a run is paused, and keeps what is left of its time: at least a millisecond, since 0 is no bound.
func (f *fold) stopTime() {
	if f.s.Deadline > 0 {
		f.s.Deadline, f.s.TimeLeftMs = 0, max(1, f.s.Deadline-f.e.Timestamp)
	}
	if f.s.PausedSince == 0 {
		f.s.PausedSince = f.e.Timestamp
	}
}

// countPause adds the pause that ends, if one does, to those before.
func (f *fold) countPause() {
	if f.s.PausedSince > 0 {
		f.s.PausedMs += max(0, f.e.Timestamp-f.s.PausedSince)
		f.s.PausedSince = 0
	}
}

// grantTime has the time of a run that goes on: what is left of it, or all of it, if other limits are given or
// it had come to its end.
func (f *fold) grantTime(given wire.Raw, ended bool) {
	switch {
	case ended, ledger.BoundsTime(given):
		f.setDeadline(ledger.TimeoutOf(f.s.Limits))
	case f.s.TimeLeftMs > 0 && f.s.Status == wire.RunRunning:
		f.setDeadline(f.s.TimeLeftMs)
	}
}
