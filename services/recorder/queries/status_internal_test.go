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
