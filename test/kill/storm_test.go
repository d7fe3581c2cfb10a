//go:build kill && claudecli

package kill_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/pkg/wire"
)

// TestClaudeStorm kills, stops and ends what runs the real CLI, the native agent and a command, again and again. What
// they did stands in a ledger, which has to agree with the log; and nobody is told of a refusal that nobody gave.
func TestClaudeStorm(t *testing.T) {
	chores := *killsFlag * 3 / 2
	scripts := func(l *bench) map[string]string {
		return map[string]string{
			"coder": l.script("coder", "Bash", chores, 700*time.Millisecond),
			"loop":  l.script("loop", "bash", chores, 700*time.Millisecond),
		}
	}
	sites(t, 2*time.Second, stormLimit(), scripts, func(s site) {
		s.Logf("seed %d, %d kills", s.Seed, *killsFlag)
		s.flow("wild", claudeNode("coder"), nativeNode("loop"), s.commandNode("command", chores, 900*time.Millisecond))
		s.started("coder-1")
		counts := make(map[string]int)
		for range *killsFlag {
			counts[s.strike()]++
			if st := s.State("wild"); st != nil && st.Status != wire.RunRunning && st.Status != wire.RunIdle {
				s.Errorf("after %v the run is %s: %s %s", counts, st.Status, st.Reason, st.Error)
				break
			}
		}
		s.Reach("wild", stormLimit()/3, wire.RunComplete)
		a := s.verified("wild")
		if failures := a.Failures(); len(failures) > 0 {
			s.Errorf("ended badly:\n%s", strings.Join(failures, "\n"))
		}
		s.agree("wild")
		compared := ""
		for _, x := range a.Entries {
			switch p := x.E.Payload.(type) {
			case *wire.AgentResumed, *wire.ToolSealed:
				if x.E.NodeID == "coder" {
					s.Errorf("an agent that is held by a keeper was disturbed: %s", x)
				}
			case *wire.SessionCompared:
				s.Logf("log and session file: %+v", *p)
				compared = p.Verdict
			}
		}
		if compared != completeness.Complete {
			s.Errorf("log and session file: %q", compared)
		}
		if s.Logged(s.r.Proc, "session file not kept") {
			s.Errorf("the session's file isn't kept by the runner that is back")
		}
		s.refusals()
		s.Logf("seed %d: %v, %d events, %d claims of coder, agents resumed %d, calls sealed %d",
			s.Seed, counts, len(a.Entries), len(s.claims("wild", "coder")), a.Resumed, a.Sealed)
	})
}

// stormLimit bounds a storm: a kill and what follows it take some seconds on a slow machine.
func stormLimit() time.Duration { return 12*time.Minute + time.Duration(*killsFlag)*10*time.Second }

// TestClaudeStormTwo is the same with two runners on one machine, of which each takes over what the other has lost.
func TestClaudeStormTwo(t *testing.T) {
	chores := *killsFlag * 3 / 2
	versions(t, func(t *testing.T, binary string) {
		l := newLab(t, 2*time.Second, stormLimit())
		l.Prog.Claude = binary
		l.AgentEnv = l.agentEnv(map[string]string{
			"coder": l.script("coder", "Bash", chores, 700*time.Millisecond),
			"loop":  l.script("loop", "bash", chores, 700*time.Millisecond),
		})
		l.Logf("seed %d, %d kills", l.Seed, *killsFlag)
		both := []site{{l, l.Runner("r1", false, "--drain-timeout", "2s")}, {l, l.Runner("r2", false, "--drain-timeout", "2s")}}
		for _, s := range both {
			s.Ready(s.r)
		}
		l.flow("wild", claudeNode("coder"), nativeNode("loop"))
		l.started("coder-1")
		counts := make(map[string]int)
		for range *killsFlag {
			counts[both[l.Rand.IntN(2)].strike()]++
		}
		l.Reach("wild", stormLimit()/3, wire.RunComplete)
		a := l.verified("wild")
		if failures := a.Failures(); len(failures) > 0 {
			l.Errorf("ended badly:\n%s", strings.Join(failures, "\n"))
		}
		l.agree("wild")
		l.refusals()
		l.Logf("seed %d: %v, %d events, coder claimed by %v, agents resumed %d, calls sealed %d",
			l.Seed, counts, len(a.Entries), l.claims("wild", "coder"), a.Resumed, a.Sealed)
	})
}

// strike does something to the process, waits until it is back, and says what it did.
func (s site) strike() string {
	s.Helper()
	<-time.After(time.Duration(200+s.Rand.IntN(1500)) * time.Millisecond)
	away := time.Duration(s.Rand.Int64N(int64(2 * s.TTL)))
	if s.Rand.IntN(2) == 0 {
		away = time.Duration(s.Rand.Int64N(int64(200 * time.Millisecond))) // as a supervisor would
	}
	switch s.Rand.IntN(4) {
	case 0:
		s.Signal(s.r.Proc, syscall.SIGTERM)
		s.Gone(s.r.Proc, 40*time.Second)
		s.back(away)
		return "SIGTERM"
	case 1:
		s.Signal(s.r.Proc, syscall.SIGSTOP)
		<-time.After(away)
		s.Signal(s.r.Proc, syscall.SIGCONT)
		s.Ready(s.r)
		return "SIGSTOP"
	default:
		s.Tell("SIGKILL %s; back in %s", s.r.ID, away.Round(time.Millisecond))
		s.Kill(s.r.Proc)
		s.back(away)
		return "SIGKILL"
	}
}
