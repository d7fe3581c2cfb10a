package queries

import (
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// TestWaitedMillis shows that a wait for a person goes on in a run that goes on, and in no copy of one.
func TestWaitedMillis(t *testing.T) {
	for name, test := range map[string]struct {
		state wire.State
		want  int64
	}{
		"it waits": {wire.State{WaitedMs: 5, WaitsSince: 100}, 905},
		"ended":    {wire.State{WaitedMs: 5, WaitsSince: 100, EndedAt: 200}, 5},
		"ingested": {wire.State{WaitedMs: 5, WaitsSince: 100, Imported: wire.ImportedIngest}, 905},
		"a copy":   {wire.State{WaitedMs: 5, WaitsSince: 100, Imported: wire.ImportedCopy}, 5},
	} {
		if got := waitedMillis(&test.state, 1_000); got != test.want {
			t.Errorf("%s: %d ms, want %d", name, got, test.want)
		}
	}
}

// TestTimesOfCopy shows that what a copy of a run doesn't tell the end of has taken as long as the copy tells of it, and of any other run goes on.
func TestTimesOfCopy(t *testing.T) {
	for name, test := range map[string]struct {
		imported string
		endedAt  int64
		want     int64
	}{
		"it goes on":   {"", 0, 900},
		"ended":        {"", 250, 150},
		"ingested":     {wire.ImportedIngest, 0, 900},
		"a copy":       {wire.ImportedCopy, 0, 400},
		"a whole copy": {wire.ImportedCopy, 250, 150},
	} {
		until := goneUntil(&wire.State{Imported: test.imported, UpdatedAt: 500})
		a := wire.AgentStatus{State: stateWaiting, StartedAt: 100, EndedAt: test.endedAt}
		fillTimes(&a, 300, until, 1_000)
		if a.RuntimeMs != test.want || a.LastActivityAgeMs != 700 {
			t.Errorf("%s: took %d ms, last active %d ms ago; want %d and 700", name, a.RuntimeMs, a.LastActivityAgeMs, test.want)
		}
		f := fleetFigure{at: 1_000, until: until, run: wire.TopRun{AgentStatus: a}}
		later := f.asOf(1_300)
		if took := later.RuntimeMs - test.want; (took == 0) != (until > 0 || test.endedAt > 0) || (later.WaitedMs == 0) != (until > 0) {
			t.Errorf("%s: in 300 ms took %d ms more, waited %d", name, took, later.WaitedMs)
		}
	}
}
