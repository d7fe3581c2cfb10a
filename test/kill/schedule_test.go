//go:build kill

package kill_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// TestScheduleKilledWhenDue kills one of three runners in the second in which a run is due, twice: each time is one run, whose command ran once.
func TestScheduleKilledWhenDue(t *testing.T) {
	l := newLab(t, 2*time.Second, 5*time.Minute)
	victim := l.NewRunner("r1", true)
	l.Restart(victim)
	for _, id := range []string{"r2", "r3"} {
		l.Restart(l.NewRunner(id, true))
	}
	ran := filepath.Join(l.Dir, "ledger", "ran")
	file := filepath.Join(l.Dir, "often.yaml")
	l.Must(os.WriteFile(file, fmt.Appendf(nil, "name: often\nnodes:\n  - {id: a, type: exec, input: {command: [sh, -c, 'date +%%s >> %s']}}\n", ran), 0o600))
	l.Wake("schedule", "add", "often", file, "--cron", "* * * * *")
	var runs []string
	for range 2 {
		due := time.Now().Truncate(time.Minute).Add(time.Minute)
		runs = append(runs, due.UTC().Format("often-20060102t1504z"))
		<-time.After(time.Until(due.Add(time.Duration(l.Rand.IntN(200)) * time.Millisecond)))
		l.Kill(victim.Proc)
		l.Tell("KILL r1 %s after the due second began", time.Since(due).Round(time.Millisecond))
		run := runs[len(runs)-1]
		if s := l.Reach(run, 30*time.Second, wire.RunComplete, wire.RunPaused); s.Status == wire.RunPaused { // it was at work on the command, whose outcome isn't known
			choice := "--rerun"
			if commandsRan(l, ran) == len(runs) {
				choice = "--fail"
			}
			l.Wake("resume", run, choice, "a")
			l.Reach(run, 30*time.Second, wire.RunComplete)
		}
		l.Restart(victim)
	}
	begun := 0
	for _, run := range runs {
		for _, x := range l.Stored(run) {
			if x.E.Type() == wire.TypeFlowStart {
				begun++
				l.Tell("%s began at %s", run, time.UnixMilli(x.E.Timestamp).UTC().Format(time.TimeOnly+".000"))
			}
		}
	}
	listed := l.Wake("runs")
	if n := commandsRan(l, ran); begun != len(runs) || n != len(runs) || strings.Count(listed, "often-") != len(runs) {
		l.Errorf("%d runs began and %d commands ran, of %d due times:\n%s", begun, n, len(runs), listed)
	}
	for _, line := range l.Told() {
		t.Log(line)
	}
}

// commandsRan counts the commands that have left a line in a file.
func commandsRan(l *bench, file string) int {
	b, err := os.ReadFile(file)
	if !errors.Is(err, fs.ErrNotExist) {
		l.Must(err)
	}
	return strings.Count(string(b), "\n")
}
