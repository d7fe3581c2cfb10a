//go:build kill && agents

package kill_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// damaged is what becomes of the node of an agent whose record is damaged, by the damage; else it goes on. Claude Code's is restored from what wake
// keeps of it. opencode has one database for all its sessions, without which it doesn't start.
var damaged = map[string]map[string]string{
	"codex":      {"missing": wire.ErrorSessionNotFound, "empty": wire.ErrorSessionNotFound, "begun": wire.ErrorSessionNotFound},
	"codex-acp":  {"missing": wire.ErrorSessionNotFound, "empty": wire.ErrorSessionNotFound, "begun": wire.ErrorSessionNotFound},
	"claude-acp": {"missing": wire.ErrorSessionNotFound, "empty": wire.ErrorSessionNotFound, "begun": wire.ErrorSessionNotFound},
	"gemini": {
		"missing": wire.ErrorSessionNotFound, "empty": wire.ErrorSessionNotFound, "begun": wire.ErrorSessionNotFound, "halved": wire.ErrorSessionNotFound,
	},
	"opencode": {"missing": wire.ErrorSessionNotFound, "empty": wire.ErrorSessionNotFound, "begun": wire.ErrorStartFailed, "halved": wire.ErrorStartFailed},
}

// damages are what a power cut may leave of an agent's own record of its session.
var damages = []struct {
	name  string
	leave func(content []byte) []byte // nil: nothing
}{
	{"missing", nil},
	{"empty", func([]byte) []byte { return nil }},
	{"begun", func(content []byte) []byte { return content[:min(len(content), 40)] }},
	{"halved", func(content []byte) []byte {
		lines := bytes.SplitAfter(content, []byte("\n"))
		half := bytes.Join(lines[:len(lines)/2], nil)
		return append(half, lines[len(lines)/2][:len(lines[len(lines)/2])/2]...)
	}},
}

// TestAgentsDamaged takes the power from each real agent when one of its commands has ended and another one is at work, and damages its own record
// of its session meanwhile. Its node goes on, or its run waits for a decision, since its session can't be gone on with. Nothing is done twice.
func TestAgentsDamaged(t *testing.T) {
	bin := agentsFolder(t)
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			l := newLab(t, 2*time.Second, 30*time.Minute)
			l.Prog.Claude = filepath.Join(bin, "claude")
			r := l.agentRunner(p, bin, NewModelAPI(t).URL)
			for _, d := range damages {
				l.damageSession(r, p, d.name, d.leave)
			}
		})
	}
}

// damageSession runs a node of an agent whose record of its session is damaged.
func (l *bench) damageSession(r *lab.Runner, p program, name string, leave func([]byte) []byte) {
	l.Helper()
	for _, file := range l.records(r.Home) { // those of runs that are over
		l.Must(os.Remove(file))
	}
	command := filepath.Join(l.Dir, "step")
	l.Must(os.WriteFile(command, fmt.Appendf(nil, stepScript, filepath.Join(l.Dir, "ledger", "tools")), 0o700))
	input := strings.TrimSuffix(p.input, ", newSession: true")
	l.Flow(name, fmt.Sprintf("name: damaged\nnodes:\n  - {id: a, type: agent, input: {%[1]s, prompt: \"Do what is said here.\\n$ %[2]s %[3]s 1\\n$ %[2]s %[3]s 2\\n$ %[2]s %[3]s 3\"}}\n", input, command, name))
	ended := l.Await(name, 0, agentPatience, "a command has ended", lab.OfType(wire.TypeAgentTool, "a"))
	l.Await(name, ended.Pos, agentPatience, "another one has begun", lab.OfType(wire.TypeToolIntent, "a"))
	l.Kill(r.Proc)
	l.killAgents()
	records := l.records(r.Home)
	for _, file := range records {
		content, err := os.ReadFile(file)
		l.Must(err)
		if leave == nil || strings.HasSuffix(file, "-wal") || strings.HasSuffix(file, "-shm") {
			l.Must(os.Remove(file))
			continue
		}
		l.Must(os.WriteFile(file, leave(content), 0o600))
	}
	l.Restart(r)
	var s *wire.State
	l.Until(name+" has ended, or waits", agentPatience, func() bool {
		s = l.State(name)
		return s != nil && (s.Status == wire.RunComplete || s.Status == wire.RunPaused)
	})
	said := ""
	for _, x := range l.Stored(name) {
		if e, ok := x.E.Payload.(*wire.AgentError); ok {
			said = e.ErrorType + ": " + e.Message
		}
	}
	n := s.Nodes["a"]
	l.Logf("%s, %s (%d files): the run is %s %s, the node %s %s; %.300q", p.name, name, len(records), s.Status, s.Result, s.NodeStatus["a"], n.ErrorType, said)
	switch want := damaged[p.name][name]; {
	case len(records) == 0:
		l.Errorf("%s has kept nothing of its session", p.name)
	case n.ErrorType != want, (s.Status == wire.RunPaused) != (want == wire.ErrorSessionNotFound):
		l.Errorf("%s, %s: the run is %s, and the node's error %q, want %q", p.name, name, s.Status, n.ErrorType, want)
	}
	l.countBegins(name)
}

// countBegins checks that each command of a run has begun once at most.
func (l *bench) countBegins(run string) {
	l.Helper()
	lines, _ := l.Ledger("tools")
	did := map[string]int{}
	for _, x := range lines {
		if did[x.What+" "+x.ID]++; x.Who == run && did[x.What+" "+x.ID] > 1 {
			l.Errorf("%s of %s: %d times", x.What, x.ID, did[x.What+" "+x.ID])
		}
	}
}

// records are the files in which agents keep their sessions.
func (l *bench) records(home string) (files []string) {
	l.Helper()
	for _, place := range []string{
		".claude/projects/*/*.jsonl", ".codex/sessions/*/*/*/*.jsonl", ".gemini/tmp/*/chats/*.json*", ".local/share/opencode/opencode*.db*",
	} {
		found, err := filepath.Glob(filepath.Join(home, place))
		l.Must(err)
		files = append(files, found...)
	}
	return files
}
