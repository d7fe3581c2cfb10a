//go:build kill

package kill_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// TestNextRelease replaces a runner by one of the next release while an agent and a command are at work, and that by one of
// this release again. Each finds the keepers of the other one.
func TestNextRelease(t *testing.T) {
	const state, message = "internal/agent/claude/state.go", "internal/keeper/message.go"
	for name, test := range map[string]struct {
		edit       lab.Edit
		unreadable int  // states of agents that a runner of the other release has left
		ends       bool // a runner of the other release can't attach
	}{
		"Build":    {lab.Edit{File: state, Old: "const stateVersion = ", New: "const stateVersion = 0 + "}, 0, false},
		"State":    {lab.Edit{File: state, Old: "const stateVersion = ", New: "const stateVersion = 1000 + "}, 2, false},
		"Protocol": {lab.Edit{File: message, Old: "var protocol = 1 ", New: "var protocol = 2 "}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			next := filepath.Join(t.TempDir(), "next")
			if err := lab.BuildNext(next, test.edit); err != nil {
				t.Fatal(err)
			}
			l := newLab(t, 2*time.Second, 3*time.Minute)
			r := l.Runner("r1", false)
			l.Ready(r)
			l.Flow("two", twoAgents("shared", 20))
			for at, releases := time.Now(), []string{next, l.Prog.Wake}; len(releases) > 0; releases = releases[1:] {
				// Without this runner's own, the next one may find what its own release has left.
				l.Until("resting points are stored", 30*time.Second, func() bool { return l.rests(r.ID, at) == 2 })
				before, pos, program := l.agents(), l.Last(), releases[0]
				l.Kill(r.Proc)
				l.Prog.Wake = program
				l.Restart(r)
				for _, node := range []string{"left", "right"} {
					l.Await("two", pos, 30*time.Second, node+" goes on", lab.OfType(wire.TypeAgentTool, node))
				}
				at = time.Now()
				if after := l.agents(); slices.Equal(before, after) == test.ends {
					l.Errorf("agents %v before, %v after a runner of the other release has come", before, after)
				}
			}
			l.Reach("two", time.Minute, wire.RunComplete)
			a := l.Check("two")
			a.Completed("complete")
			unreadable := 0
			for _, x := range a.Entries {
				if p, ok := x.E.Payload.(*wire.AgentError); ok && p.ErrorType == wire.ErrorJournalUnreadable && x.E.NodeID == "left" {
					l.Tell("%s", p.Message)
					unreadable++
				}
			}
			if unreadable != test.unreadable || (a.Resumed > 0) != test.ends {
				l.Errorf("%d states weren't readable, %d agents resumed", unreadable, a.Resumed)
			}
			_, notes := l.Ledger("tools")
			l.Logf("%d events, %d agents resumed, %d calls sealed, %v\n%s", len(a.Entries), a.Resumed, a.Sealed, notes, strings.Join(l.Told(), "\n"))
		})
	}
}

// rests counts the journals of a runner's agents that have a resting point which was stored after a time.
func (l *bench) rests(runner string, after time.Time) (n int) {
	l.Helper()
	found, err := filepath.Glob(filepath.Join(l.Dir, runner, "runner", "keepers", "*", "keeper", "*", "rest"))
	l.Must(err)
	for _, file := range found {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(after) {
			n++
		}
	}
	return n
}
