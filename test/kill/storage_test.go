//go:build kill

package kill_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// TestStorageAway takes the server away for a minute while 20 agents and 2 commands are at work, which costs them that
// time and nothing else: they are stopped, and go on in the same processes, although another runner could have taken them.
func TestStorageAway(t *testing.T) {
	const agents, away = 20, time.Minute
	l := newLab(t, 10*time.Second, 6*time.Minute)
	l.Runner("r1", false, "--max-agents", fmt.Sprint(agents+2))
	var src strings.Builder
	src.WriteString("name: many\nworkspace: shared\nnodes:")
	for i := range agents { // so that they are at different points when the server goes away
		ms := 400 + 80*i
		fmt.Fprintf(&src, "\n  - id: agent%d\n    type: agent\n    input: {provider: claude, prompt: \"Do it. calls=%d ms=%d ledger={{ state.ledger }}\"}", i, 7000/ms, ms)
	}
	slow := strings.Replace(work, "sleep 0.", "sleep 20.", 1)
	src.WriteString(fmt.Sprintf(command, "first", slow, "0") + fmt.Sprintf(command, "second", slow, "0") + "\n")
	l.Flow("many", src.String())
	for i := range agents {
		node := fmt.Sprintf("agent%d", i)
		l.Await("many", 0, time.Minute, node+" works", lab.OfType(wire.TypeToolIntent, node))
	}
	for _, node := range []string{"first", "second"} {
		l.Await("many", 0, time.Minute, node+" works", lab.OfType(wire.TypeExecStart, node))
	}
	l.Runner("r2", false, "--max-agents", fmt.Sprint(agents+2))
	l.Signal(l.Server, syscall.SIGSTOP)
	gone := time.Now()
	<-time.After(away)
	l.Signal(l.Server, syscall.SIGCONT)
	back := time.Now()
	l.Reach("many", 3*time.Minute, wire.RunComplete)
	a := l.Check("many")
	a.Completed("complete")
	if a.Sealed+a.Resumed+a.Flows > 0 || a.Owners != 1 {
		t.Errorf("%d calls sealed, %d agents and %d times the run resumed, %d owners", a.Sealed, a.Resumed, a.Flows, a.Owners)
	}
	for _, e := range a.Execs {
		if e.Claims != 1 {
			t.Errorf("%s was claimed %d times, by %v", e.ID, e.Claims, e.Runners)
		}
	}
	var during int
	for _, file := range []string{"tools", "exec"} {
		lines, notes := l.Ledger(file)
		if len(notes) > 0 {
			t.Errorf("%s: %v", file, notes)
		}
		for _, x := range lines {
			switch {
			case x.At.After(gone.Add(l.TTL)) && x.At.Before(back):
				t.Errorf("%s of %s %d, %s after the server was gone, when the lease was over", x.What, x.Who, x.N, x.At.Sub(gone))
			case x.At.After(gone) && x.At.Before(back):
				during++
			}
		}
	}
	t.Logf("%d events, %d executions; %d steps while the server was away, all within the leases' time", len(a.Entries), len(a.Execs), during)
}
