package registry

import (
	"testing"
	"time"

	"code.wake.dev/wake/pkg/subjects"
)

// A clock that was set back puts no parked run off: one that a runner tried to wake in vain, or left to another runner, is
// woken when it is due by the clock as it is, or at once if a command has come for it.
func TestClockSetBack(t *testing.T) {
	const due, hour = 10_000_000, 3_600_000
	tried := func(g *Registry) { g.TakeDue(due + hour) }
	cases := map[string]struct {
		due  int64
		late func(g *Registry) // while the clock is an hour fast
		back int64             // to when it is set
		want bool              // it is woken then
	}{
		"tried in vain, due again later": {due, tried, due - hour, false},
		"tried in vain, still due":       {due, tried, due + 2*spread.Milliseconds(), true},
		"left to another runner":         {due, func(g *Registry) { tried(g); g.Postpone("r1", due+2*hour) }, due + 2*spread.Milliseconds(), true},
		"a command has come":             {0, func(g *Registry) { g.Wake("r1", due+hour); tried(g) }, due - hour, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := newRegistry(nil, nil, subjects.Default, "i", nil)
			g.keepNewer(g.stateKey("r1"), knownRun{Registration: Registration{Run: "r1", Parked: 1, Due: c.due, Incarnation: "i"}, revision: 1})
			c.late(g)
			if late := g.Late(time.UnixMilli(due + hour)); c.due > 0 && late != hour*time.Millisecond || c.due == 0 && late != 0 {
				t.Errorf("it is %s late", late)
			}
			_, found, next := g.TakeDue(c.back)
			if found != c.want {
				t.Errorf("woken: %t, want %t", found, c.want)
			}
			if !found && next > due+spread.Milliseconds() {
				t.Errorf("it is woken %d ms late", next-due)
			}
		})
	}
}
