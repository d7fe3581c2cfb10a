//go:build kill

package kill_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// TestPoison has a run end each process that takes it over. The fourth sets it aside and says so; the runs beside it come
// to their ends. With a program that can take it, it goes on where it was.
func TestPoison(t *testing.T) {
	const deaths = 3
	l := newLab(t, 2*time.Second, 8*time.Minute)
	sick, well := filepath.Join(l.Dir, "sick"), l.Prog.Wake
	l.Must(lab.BuildNext(sick, lab.Edit{
		File: "services/runner/owner/schedule.go",
		Old:  "		d, err := flow.Decide(o.def, state, now, o.stopOf(state))\n",
		New: "		if o.def.Name == \"poison\" && state.Status == \"running\" {\n			panic(\"a defect\")\n		}\n" +
			"		d, err := flow.Decide(o.def, state, now, o.stopOf(state))\n",
	}))
	r := l.Runner("r1", false)
	l.Ready(r)
	for _, name := range []string{"poison", "good1", "good2"} {
		src, _, _ := strings.Cut(twoAgents("shared", 6), "\n  - id: report") // commands of several runs share a ledger
		l.Flow(name, strings.Replace(src, "name: two", "name: "+name, 1)+"\n")
	}
	for _, name := range l.Runs {
		l.Await(name, 0, time.Minute, "left works", lab.OfType(wire.TypeToolIntent, "left"))
	}
	l.Kill(r.Proc)
	l.Prog.Wake = sick
	for n := range deaths {
		l.Restart(r)
		l.Gone(r.Proc, time.Minute)
		l.Tell("process %d has ended: %s", n+1, r.Cmd.ProcessState)
	}
	l.Restart(r)
	state := l.Reach("poison", time.Minute, wire.RunPaused)
	if state.Reason != wire.PauseEndedItsRunner {
		l.Errorf("it is paused: %s", state.Reason)
	}
	for _, name := range []string{"good1", "good2"} {
		l.Reach(name, 2*time.Minute, wire.RunComplete)
	}
	if !r.Alive() {
		l.Errorf("the runner has ended once more: %s", r.Cmd.ProcessState)
	}
	said := fmt.Sprintf("%d processes in a row ended", deaths)
	l.Until("an alert says so", time.Minute, func() bool {
		out, err := l.Try("alerts", "poison")
		return err == nil && strings.Contains(out, said)
	})
	l.Kill(r.Proc)
	l.Prog.Wake = well
	l.Restart(r)
	l.Ready(r)
	l.Wake("resume", "poison")
	l.Reach("poison", 2*time.Minute, wire.RunComplete)
	for _, name := range l.Runs {
		a := l.Check(name)
		a.Completed("complete")
		for _, e := range a.Execs {
			if len(e.Ends) != 1 {
				l.Errorf("%s of %s ended %d times", e.ID, name, len(e.Ends))
			}
		}
	}
	l.Logf("%s", strings.Join(l.Told(), "\n"))
}
