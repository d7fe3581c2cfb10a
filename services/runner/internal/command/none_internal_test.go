package command

import (
	"fmt"
	"slices"
	"testing"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// What is on record of commands that no run has obeyed is read once, and what is older than the process only if it is asked for.
func TestUnobeyed(t *testing.T) {
	log := logtest.Start(t)
	w := logtest.Claim(t, log, subjects.NoRun, wire.RunNode)
	record := func(positions ...uint64) (last uint64) {
		for _, pos := range positions {
			last = logtest.Append(t, w, &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, CommandID: fmt.Sprint("c", pos), AtPos: pos, Reason: "RUN_NOT_FOUND: x"}})
		}
		return last
	}
	s := &Stream{log: log, none: newNoneRecords()}
	has := func(from uint64, want ...uint64) {
		t.Helper()
		got, err := s.Unobeyed(t.Context(), from)
		if err != nil || !slices.Equal(got.positions, want) {
			t.Errorf("from %d on: %v, want %v (%v)", from, got.positions, want, err)
		}
		for pos := range uint64(12) {
			if got.Has(pos) != slices.Contains(want, pos) {
				t.Errorf("from %d on: %d is there: %t", from, pos, got.Has(pos))
			}
		}
	}
	before := record(2, 1, 4)
	s.none.skipOlder(before, 4)
	record(7, 5)
	has(5, 5, 7)
	if n := s.none.events; n != 2 {
		t.Errorf("%d events were read, want those since the beginning", n)
	}
	record(6)
	has(6, 6, 7)
	if n := s.none.events; n != 3 {
		t.Errorf("%d events were read, want one more", n)
	}
	if got, err := s.Unobeyed(t.Context(), 5); err != nil || !got.HasID("c6") || got.HasID("c1") {
		t.Errorf("%v (%v)", got.ids, err)
	}
	has(2, 2, 4, 5, 6, 7)
	if got, err := s.Unobeyed(t.Context(), 5); err != nil || !got.HasID("c1") {
		t.Errorf("%v (%v)", got.ids, err)
	}
	all := s.none.events
	record(9)
	has(1, 1, 2, 4, 5, 6, 7, 9)
	if n := s.none.events; n != all+1 {
		t.Errorf("%d events were read, want %d", n, all+1)
	}
}
