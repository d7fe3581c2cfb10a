//go:build kill && claudecli

package kill_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// site is an installation with one process that runs all nodes, in keepers.
type site struct {
	*bench
	r *lab.Runner
}

// sites runs f with each version of the CLI, for a runner that is a process of its own and for one that is all services.
// scripts are what the model says.
func sites(t *testing.T, ttl, limit time.Duration, scripts func(l *bench) map[string]string, f func(s site), flags ...string) {
	t.Helper()
	versions(t, func(t *testing.T, binary string) {
		t.Run("runner", func(t *testing.T) {
			l := newLab(t, ttl, limit)
			l.Prog.Claude = binary
			l.AgentEnv = l.agentEnv(scripts(l))
			r := l.Runner("r1", false, flags...)
			l.Ready(r)
			f(site{l, r})
		})
		t.Run("up", func(t *testing.T) {
			p, err := build()
			if err != nil {
				t.Fatal(err)
			}
			l := &bench{lab.Empty(t, lab.Config{Programs: p, TTL: ttl, Limit: limit, Seed: *seedFlag, Keep: *keepFlag})}
			l.Prog.Claude = binary
			l.AgentEnv = l.agentEnv(scripts(l))
			f(site{l, l.Up("up", flags...)})
		})
	})
}

// the one agent that is at work.
func (s site) agent() int {
	s.Helper()
	var pids []int
	s.Until("one agent is at work", 10*time.Second, func() bool {
		pids = s.agents()
		return len(pids) == 1
	})
	return pids[0]
}

// back starts the runner again after it has been down for some time.
func (s site) back(after time.Duration) {
	s.Helper()
	<-time.After(after)
	s.Restart(s.r)
	s.Ready(s.r)
}

// TestClaudeRestart kills and ends what runs the real CLI, in the middle of calls, and starts it again: the agent never
// notices. The same process goes on, nothing is sealed, and the API gets the requests of a run that
// nobody has disturbed.
func TestClaudeRestart(t *testing.T) {
	const perCall = 5
	calls := max(1, *killsFlag/perCall)
	scripts := func(l *bench) map[string]string {
		return map[string]string{"coder": l.gatedScript("coder", "Bash", calls)}
	}
	sites(t, 2*time.Second, stormLimit(), scripts, func(s site) {
		for i := range calls {
			s.open(step("coder", i))
		}
		want, last := s.undisturbed("coder", calls+1, claudeNode("coder"))
		s.closeGates()
		s.flow("wild", claudeNode("coder"))
		before, count := 0, 0
		for i := range calls {
			s.started(step("coder", i))
			if before == 0 {
				before = s.agent()
			}
			for range perCall {
				s.end(count%2 == 0)
				s.back(time.Duration(s.Rand.IntN(500)) * time.Millisecond)
				count++
				s.Until("the worker is back", 20*time.Second, func() bool { return len(s.claims("wild", "coder")) == count+1 })
				if after := s.agent(); after != before {
					s.Fatalf("after %d restarts the agent is process %d, and was %d", count, after, before)
				}
			}
			s.open(step("coder", i))
		}
		s.Reach("wild", time.Minute, wire.RunComplete)
		s.verified("wild")
		s.perfect("wild", calls)
		for _, runner := range s.claims("wild", "coder") {
			if runner != s.r.ID {
				s.Errorf("claimed by %s", runner)
			}
		}
		if got, want := s.usage("wild"), s.usage("calm"); got != want {
			s.Errorf("used %+v, want %+v", got, want)
		}
		got, _ := s.requests("coder", "wild", last)
		s.same(got, want)
		s.refusals()
		s.Logf("seed %d: %d restarts in %d calls, agent %d, %d requests as in a run that nobody disturbed", s.Seed, count, calls, before, len(got))
	}, "--drain-timeout", "1s")
}

// end kills the process, or asks it to end.
func (s site) end(kill bool) {
	s.Helper()
	if kill {
		s.Kill(s.r.Proc)
		s.Tell("SIGKILL %s", s.r.ID)
		return
	}
	s.Signal(s.r.Proc, syscall.SIGTERM)
	s.Gone(s.r.Proc, 40*time.Second)
}

// notices returns what the model was told when it went on: texts of the user that aren't the node's prompt.
func (s site) notices() (texts []string) {
	s.Helper()
	all, _ := s.requests("coder", "wild", 0)
	if len(all) == 0 {
		return nil
	}
	var r struct {
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	s.Must(json.Unmarshal([]byte(all[len(all)-1]), &r))
	for _, m := range r.Messages {
		var blocks []struct{ Type, Text string }
		var text string
		if json.Unmarshal(m.Content, &text) == nil {
			blocks = append(blocks, struct{ Type, Text string }{"text", text})
		} else {
			s.Must(json.Unmarshal(m.Content, &blocks))
		}
		for _, b := range blocks {
			if m.Role == "user" && b.Type == "text" && !strings.Contains(b.Text, "[[scn:") && !strings.HasPrefix(b.Text, "<system-reminder>") {
				texts = append(texts, b.Text)
			}
		}
	}
	return texts
}

// one returns scripts of a model that has three chores done, one after the other, each for some time.
func one(takes time.Duration) func(l *bench) map[string]string {
	return func(l *bench) map[string]string {
		return map[string]string{"coder": l.script("coder", "Bash", 3, takes)}
	}
}

// TestClaudeDrain ends what runs the real CLI, and has it leave no agents: the call at work comes to its end
// first, and the agent is told that it was interrupted.
func TestClaudeDrain(t *testing.T) {
	flags := []string{"--leave-agents=false", "--drain-timeout", "12s"}
	sites(t, 2*time.Second, 3*time.Minute, one(3*time.Second), func(s site) {
		s.flow("wild", claudeNode("coder"))
		s.started("coder-2")
		keeper := s.keeper(s.agent())
		s.Signal(s.r.Proc, syscall.SIGTERM)
		s.Gone(s.r.Proc, 40*time.Second)
		if left := s.agents(); len(left) > 0 || syscall.Kill(keeper, 0) == nil {
			s.Errorf("agents %v are left, or their keeper %d", left, keeper)
		}
		if lines := s.lines(); !strings.HasPrefix(lines[len(lines)-1], "coder-2 end ") {
			s.Errorf("the call that was at work was cut off: %q", lines)
		}
		s.back(0)
		s.Reach("wild", time.Minute, wire.RunComplete)
		a := s.verified("wild")
		s.agree("wild")
		s.refusals()
		if a.Resumed != 1 || a.Sealed != 0 {
			s.Errorf("%d agents resumed, %d calls sealed", a.Resumed, a.Sealed)
		}
		s.Logf("the model was told: %q", s.notices())
	}, flags...)
}

// TestClaudeKeeper kills the keeper of the real CLI in the middle of a call, in whose place the runner starts another
// one: everything that the old one held ends, and the agent is told of the call that was cut off. Where the runner is
// killed with it, what the agent had said since is recorded first.
func TestClaudeKeeper(t *testing.T) {
	sites(t, 2*time.Second, 3*time.Minute, one(3*time.Second), func(s site) {
		s.flow("wild", claudeNode("coder"))
		s.started("coder-2")
		s.noKeeper()
		s.Reach("wild", time.Minute, wire.RunComplete)
		a := s.verified("wild")
		s.agree("wild")
		s.refusals()
		if a.Resumed != 1 || a.Sealed != 1 || s.deeds("wild")["coder-1"].whole != 1 {
			s.Errorf("%d agents resumed, %d calls sealed", a.Resumed, a.Sealed)
		}
		told := strings.Join(s.notices(), "\n")
		if !strings.Contains(told, "echo coder-2 start") || strings.Contains(told, "another folder") {
			s.Errorf("the model was told: %q", told)
		}
	})
}

// TestClaudeKeeperLate kills the runner, and its agent's keeper when the agent has ended a call meanwhile.
func TestClaudeKeeperLate(t *testing.T) {
	sites(t, 2*time.Second, 3*time.Minute, one(600*time.Millisecond), func(s site) {
		s.flow("wild", claudeNode("coder"))
		s.started("coder-2")
		s.Kill(s.r.Proc)
		s.Until("the call ends", 10*time.Second, func() bool { return len(s.lines()) > 3 }) // before the keeper freezes it
		s.Until("the agent has noted its result", 10*time.Second, func() bool { return s.isNoted("did coder-2") })
		s.noKeeper()
		s.back(0)
		s.Reach("wild", time.Minute, wire.RunComplete)
		a := s.verified("wild")
		s.agree("wild")
		s.refusals()
		if d := *s.deeds("wild")["coder-2"]; a.Resumed != 1 || (d != deed{starts: 1, ends: 1, calls: 1, whole: 1}) {
			s.Errorf("%d agents resumed, %d calls sealed: %+v", a.Resumed, a.Sealed, d)
		}
		if told := strings.Join(s.notices(), "\n"); strings.Contains(told, "echo coder-2 start") {
			s.Errorf("the model was told of a call that had its result: %q", told)
		}
	})
}

// isNoted reports whether a session file of the agents has the result of a call, which the CLI writes some time after it.
func (s site) isNoted(result string) bool {
	files, err := filepath.Glob(filepath.Join(s.Dir, "home", ".claude", "projects", "*", "*.jsonl"))
	s.Must(err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		s.Must(err)
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "tool_result") && strings.Contains(line, result) {
				return true
			}
		}
	}
	return false
}

// noKeeper kills the keeper, and waits for the end of what it held.
func (s site) noKeeper() {
	s.Helper()
	agent := s.agent()
	s.Must(syscall.Kill(s.keeper(agent), syscall.SIGKILL))
	at := time.Now()
	s.Until("the agent is gone", 10*time.Second, func() bool { return syscall.Kill(agent, 0) != nil })
	s.Tell("the agent was gone %s after its keeper", time.Since(at).Round(time.Millisecond))
}

// TestClaudeOutage stops the server for longer than leases live while the real CLI is at work: it is frozen
// and goes on, and nothing is lost.
func TestClaudeOutage(t *testing.T) {
	versions(t, func(t *testing.T, binary string) {
		l := newLab(t, 2*time.Second, 4*time.Minute)
		l.Prog.Claude = binary
		l.AgentEnv = l.agentEnv(one(3 * time.Second)(l))
		s := site{l, l.Runner("r1", false)}
		s.Ready(s.r)
		want, last := s.undisturbed("coder", 4, claudeNode("coder"))
		s.flow("wild", claudeNode("coder"))
		s.started("coder-2")
		before := s.agent()
		s.Signal(s.Server, syscall.SIGSTOP)
		<-time.After(8 * time.Second)
		if n := len(s.lines()); n != 3 {
			s.Errorf("%d lines in the ledger: the agent went on without a lease", n)
		}
		s.Signal(s.Server, syscall.SIGCONT)
		s.started("coder-3")
		if after := s.agent(); after != before {
			s.Errorf("the agent is process %d, and was %d", after, before)
		}
		s.Reach("wild", time.Minute, wire.RunComplete)
		s.verified("wild")
		s.perfect("wild", 3)
		got, _ := s.requests("coder", "wild", last)
		s.same(got, want)
	})
}

// TestClaudeAway kills what runs the real CLI for half a minute, while a hook is asked about a call of one agent, a person
// about one of another, and a third one begins to call a tool that its runner serves. All are answered once when it is
// back, and nobody is told of a refusal.
func TestClaudeAway(t *testing.T) {
	scripts := func(l *bench) map[string]string {
		return map[string]string{
			"hooked": l.script("hooked", "Bash", 1, 0), "asking": l.script("asking", "Bash", 1, 0), "telling": l.telling(),
		}
	}
	const away = 30 * time.Second
	sites(t, 6*time.Second, 4*time.Minute, scripts, func(s site) {
		hook := fmt.Sprintf("cat > /dev/null; echo asked >> %[1]s.hook; until [ -e %[2]s ]; do sleep 0.05; done; echo answered >> %[1]s.hook", s.ledger(), s.gate("hook"))
		s.flow("wild",
			claudeNode("hooked")+fmt.Sprintf("\n    hooks: [{event: PreToolUse, command: %q, timeoutMs: 300000}]", hook),
			strings.Replace(claudeNode("asking"), "provider: claude", "provider: claude, permissionMode: default", 1),
			claudeNode("telling"))
		s.started(step("telling", 0))
		s.Until("the hook is asked", time.Minute, func() bool { return s.hooked() != "" })
		s.Await("wild", 0, time.Minute, "a person is asked", lab.OfType(wire.TypePermissionRequired, "asking"))
		before := s.agents()
		s.Kill(s.r.Proc)
		s.open(step("telling", 0))
		s.Until("the third agent goes on", 20*time.Second, func() bool { all, _ := s.requests("telling", "wild", 0); return len(all) == 2 })
		s.back(away)
		if asked, _ := s.requests("telling", "wild", 0); len(asked) != 2 {
			s.Errorf("the third agent has asked the API %d times: its call was answered by nobody", len(asked))
		}
		s.open("hook")
		s.Until("it is allowed", time.Minute, func() bool { _, err := s.Try("approve", "wild", "toolu"); return err == nil })
		s.Reach("wild", time.Minute, wire.RunComplete)
		a := s.verified("wild")
		if failures := a.Failures(); len(failures) > 0 {
			s.Errorf("ended badly:\n%s", strings.Join(failures, "\n"))
		}
		s.perfect("wild", 3)
		s.refusals()
		counts := make(map[wire.Type]int)
		for _, x := range s.Stored("wild") {
			counts[x.E.Type()]++
			if p, ok := x.E.Payload.(*wire.AgentTool); ok && p.Error != "" {
				s.Errorf("%s: %s", x, p.Error)
			}
		}
		for _, typ := range []wire.Type{wire.TypePermissionRequired, wire.TypePermissionDecided, wire.TypeCCMessage} {
			if counts[typ] != 1 {
				s.Errorf("%d %s", counts[typ], typ)
			}
		}
		if s.hooked() != "asked\nanswered\n" {
			s.Errorf("the hook was %q", s.hooked())
		}
		s.Logf("agents %v, %v, %s away: each request answered once", before, counts, away)
	})
}

// hooked is what a hook has written of its being asked.
func (l *bench) hooked() string {
	b, _ := os.ReadFile(l.ledger() + ".hook") // none is none
	return string(b)
}

// telling is what a model says that has a chore done, which ends when its gate is open, and tells its parent.
func (l *bench) telling() string {
	l.Helper()
	first := strings.TrimSuffix(l.gatedScript("telling", "Bash", 1), "]}")
	i := strings.LastIndex(first, `,{"blocks"`)
	return first[:i] + `,{"blocks":[{"t":"tool","name":"mcp__parent__notify_parent","input":{"message":"Half done."}}]}` + first[i:] + "]}"
}
