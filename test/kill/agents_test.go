//go:build kill && agents

package kill_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// program is an agent's program as it is installed, and how it is pointed at the scripted model.
type program struct {
	name  string
	input string // of nodes, besides the prompt
	env   func(url string) []string
	files func(url string) map[string]string // in its home
}

// programs are the real ones, see test/agents/run.
func programs() []program {
	claude := func(url string) []string {
		return []string{
			"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=dummy", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			"DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DISABLE_AUTOUPDATER=1", "IS_SANDBOX=1",
		}
	}
	codex := func(url string) map[string]string {
		return map[string]string{".codex/config.toml": fmt.Sprintf(
			"model = \"scripted\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\napproval_policy = \"never\"\n"+
				"[model_providers.scripted]\nname = \"scripted\"\nbase_url = \"%s/v1\"\nwire_api = \"responses\"\nenv_key = \"SCRIPTED_KEY\"\n", url)}
	}
	key := func(string) []string { return []string{"SCRIPTED_KEY=dummy"} }
	return []program{
		{"claude", "provider: claude", claude, nil},
		{"codex", "provider: codex", key, codex},
		{"gemini", "provider: acp, agent: gemini, newSession: true", func(url string) []string {
			return []string{"GEMINI_API_KEY=dummy", "GOOGLE_GEMINI_BASE_URL=" + url, "GEMINI_MODEL=gemini-3-flash-preview", "GEMINI_CLI_TRUST_WORKSPACE=true"}
		}, func(string) map[string]string {
			return map[string]string{".gemini/settings.json": `{"security":{"auth":{"selectedType":"gemini-api-key"}},"privacy":{"usageStatisticsEnabled":false},"general":{"enableAutoUpdate":false}}`}
		}},
		{"opencode", "provider: acp, agent: opencode", func(string) []string { return []string{"OPENCODE_DISABLE_MODELS_FETCH=1"} }, func(url string) map[string]string {
			return map[string]string{".config/opencode/opencode.json": `{"autoupdate":false,"share":"disabled","model":"scripted/m","small_model":"scripted/m","provider":{"scripted":{` +
				`"npm":"@ai-sdk/anthropic","name":"Scripted","options":{"baseURL":"` + url + `/v1","apiKey":"dummy"},"models":{"m":{"name":"m","tool_call":true,"limit":{"context":200000,"output":8000}}}}}}`}
		}},
		{"claude-acp", "provider: acp, agent: claude-acp, newSession: true", claude, nil},
		{"codex-acp", "provider: acp, agent: codex", key, codex},
	}
}

// stages are the nodes of the flow of an agent, one after the other, and stageSteps how many commands each of them runs.
var stages = []string{"plan", "code", "review"}

const stageSteps = 3

// agentPatience is how long an agent may take for one step of its flow: beside others, its program alone may take a minute to start.
const agentPatience = 5 * time.Minute

// stepScript is what a command does: $1 is the node, $2 its number.
const stepScript = `#!/bin/sh
echo "begin $1 $2 $1-$2 $(date +%%s%%N)" >> %[1]s
sleep 0.7
echo "end $1 $2 $1-$2 $(date +%%s%%N)" >> %[1]s
`

// point is where a runner is killed: after the n-th event of a type that a node's agent has told.
type point struct {
	node  string
	of    wire.Type
	n     int
	after time.Duration
	power bool // with all that it has started, as by a power cut; else agents live on under their keepers
}

var points = []point{
	{"plan", wire.TypeNodeClaimed, 1, 0, false},
	{"plan", wire.TypeAgentInit, 1, 0, true},
	{"plan", wire.TypeToolIntent, 1, 200 * time.Millisecond, false},
	{"plan", wire.TypeToolIntent, 2, 300 * time.Millisecond, true},
	{"code", wire.TypeTurnStart, 1, 0, true},
	{"code", wire.TypeAgentTool, 1, 0, false},
	{"code", wire.TypeAgentTool, 2, 0, true},
	{"review", wire.TypeToolIntent, 1, 0, true},
	{"review", wire.TypeAgentTool, 2, 0, false},
	{"review", wire.TypeTurnEnd, 1, 0, false},
}

// agentsFolder is where the programs of the real agents are.
func agentsFolder(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("WAKE_AGENTS_BIN")
	if bin == "" {
		t.Fatal("WAKE_AGENTS_BIN isn't set: make test-agents")
	}
	return bin
}

// TestAgents kills the runner of each real agent at ten points of a flow of three nodes, half of the time with the agent. Log, files and what the
// commands did tell one story afterwards, and no command ran twice.
func TestAgents(t *testing.T) {
	bin := agentsFolder(t)
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			l := newLab(t, 2*time.Second, 30*time.Minute)
			l.Prog.Claude = filepath.Join(bin, "claude")
			api := NewModelAPI(t)
			r := l.agentRunner(p, bin, api.URL)
			w := &stagesWatch{bench: l, seen: l.startStages(p), rerun: map[string]bool{}}
			w.dieAtPoints(r)
			w.awaitEnd(r)
			a := l.Check("stages")
			a.Completed("complete")
			l.compareCommands(a)
			l.countMessages(a)
			for _, line := range l.Told() {
				t.Log(line)
			}
			t.Logf("%d events, %d resumptions of agents, %d sealed calls, %d requests to the model", len(a.Entries), a.Resumed, a.Sealed, len(api.Requests()))
		})
	}
}

// agentRunner is a runner whose agents are pointed at the scripted model.
func (l *bench) agentRunner(p program, bin, url string) *lab.Runner {
	l.Helper()
	l.AgentEnv = append(p.env(url), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	r := l.NewRunner("r1", true)
	if p.files != nil {
		for name, content := range p.files(url) {
			file := filepath.Join(r.Home, name)
			l.Must(os.MkdirAll(filepath.Dir(file), 0o700))
			l.Must(os.WriteFile(file, []byte(content), 0o600))
		}
	}
	l.Restart(r)
	return r
}

// startStages starts the run and returns what it tells.
func (l *bench) startStages(p program) <-chan lab.Seen {
	l.Helper()
	command := filepath.Join(l.Dir, "step")
	l.Must(os.WriteFile(command, fmt.Appendf(nil, stepScript, filepath.Join(l.Dir, "ledger", "tools")), 0o700))
	var src strings.Builder
	src.WriteString("name: stages\nworkspace: shared\nnodes:\n")
	for _, node := range stages {
		fmt.Fprintf(&src, "  - {id: %s, type: agent, input: {%s, prompt: \"Do what is said here.", node, p.input)
		for n := range stageSteps {
			fmt.Fprintf(&src, `\n$ %s %s %d`, command, node, n+1)
		}
		if node == stages[0] {
			src.WriteString(`\n@notify_parent {\"message\":\"The plan is there.\"}`)
		}
		src.WriteString("\"}}\n")
	}
	src.WriteString("edges: [{from: plan, to: code}, {from: code, to: review}]\n")
	seen := l.Follow("stages")
	l.Flow("stages", src.String())
	return seen
}

// stagesWatch follows the run of the stages.
type stagesWatch struct {
	*bench

	seen   <-chan lab.Seen
	counts map[told]int    // what the agents' nodes have told
	rerun  map[string]bool // executions whose sessions were lost, and whose nodes were executed again
}

// told is a type of events of a node.
type told struct {
	node string
	of   wire.Type
}

// dieAtPoints kills the runner at each of the points and starts it again.
func (w *stagesWatch) dieAtPoints(r *lab.Runner) {
	w.Helper()
	w.counts = map[told]int{}
	for _, p := range points {
		for w.counts[told{p.node, p.of}] < p.n {
			if w.takeNext(r, fmt.Sprintf("%s %d of %s", p.of, p.n, p.node)) {
				w.Fatalf("it has ended before it came to %s %d of %s", p.of, p.n, p.node)
			}
		}
		<-time.After(p.after)
		w.Kill(r.Proc)
		if p.power {
			w.killAgents()
		}
		w.Tell("KILL %s after %s %d of %s; its agents with it: %v", r.ID, p.of, p.n, p.node, p.power)
		w.Restart(r)
	}
}

// awaitEnd waits for the end of the run.
func (w *stagesWatch) awaitEnd(r *lab.Runner) {
	w.Helper()
	for !w.takeNext(r, "the end") {
	}
	w.Reach("stages", agentPatience, wire.RunComplete)
}

// takeNext takes the next event of the run, and reports whether it is the end. An agent may lose its session by a kill, see
// [stagesWatch.rerunLost]; else a run that pauses ends the test.
func (w *stagesWatch) takeNext(r *lab.Runner, goal string) (over bool) {
	w.Helper()
	select {
	case x := <-w.seen:
		switch x.E.Type() {
		case wire.TypeFlowPaused:
			node := w.rerunLost(r)
			maps.DeleteFunc(w.counts, func(x told, _ int) bool { return x.node == node })
		case wire.TypeFlowComplete, wire.TypeFlowAborted:
			return true
		}
		w.counts[told{x.E.NodeID, x.E.Type()}]++
	case <-time.After(agentPatience):
		w.Fatalf("nothing was told for %s: it never came to %s", agentPatience, goal)
	}
	return false
}

// rerunLost runs a node again of which the run waits for a decision: Claude Code keeps nothing of a session that is cut off in its first moments,
// and Codex may not have written the first line of its thread. Nothing else may be so: the node says that there is no such session, and there is
// none. What the log says of its calls has to be true, too: of those that never began there is no trace, those of which nobody knows how they
// ended have begun once at most, and no other had begun.
func (w *stagesWatch) rerunLost(r *lab.Runner) (node string) {
	w.Helper()
	w.Reach("stages", agentPatience, wire.RunPaused)
	lost := lostSession{unknown: map[string]int{}, sealed: map[string]bool{}}
	entries := w.Stored("stages")
	for _, x := range entries {
		if p, ok := x.E.Payload.(*wire.NodeError); ok && p.ErrorType == wire.ErrorSessionNotFound && !w.rerun[x.E.ExecID] {
			lost.end = x.E
		}
	}
	if lost.end == nil {
		w.Fatal("it has paused, and no node has lost its session")
	}
	for _, x := range entries {
		if x.E.ExecID == lost.end.ExecID {
			lost.takeEvent(w.bench, x)
		}
	}
	if kept := lost.kept(w.bench, r.Home); len(kept) > 0 || lost.provider != "claude" && lost.provider != "codex" {
		w.Errorf("the session of %s is lost, and %s has %v", lost.end.NodeID, lost.provider, kept)
	}
	w.strikeLost(lost)
	w.Tell("RERUN %s, whose session is lost, with calls whose ends nobody knows: %v", lost.end.NodeID, lost.unknown)
	w.rerun[lost.end.ExecID] = true
	w.Wake("resume", "stages", "--rerun", lost.end.NodeID)
	return lost.end.NodeID
}

// lostSession is what the log has of an execution whose session is lost.
type lostSession struct {
	end      *wire.Event
	provider string
	session  string
	sealed   map[string]bool // calls
	unknown  map[string]int  // commands of calls that are sealed as ones that may have begun
}

func (s *lostSession) takeEvent(l *bench, x lab.Entry) {
	l.Helper()
	switch p := x.E.Payload.(type) {
	case *wire.AgentStart:
		s.provider, s.session = p.Provider, x.E.SessionID
	case *wire.SessionBound:
		s.session = p.NewSession
	case *wire.ToolSealed:
		s.sealed[x.E.CallID] = !strings.Contains(p.Message, "it has not been executed")
	case *wire.AgentTool:
		unknown, isSealed := s.sealed[x.E.CallID]
		if work, ok := l.workOf(p.ToolInput); unknown && ok {
			s.unknown[work]++
		}
		if !isSealed {
			l.Errorf("%s has a call with a result, and its session is lost: %s", s.end.NodeID, x)
		}
	}
}

// kept are the files of the session, as far as its agent can go on with them.
func (s *lostSession) kept(l *bench, home string) (files []string) {
	l.Helper()
	for _, place := range []string{".claude/projects/*/" + s.session + ".jsonl", ".codex/sessions/*/*/*/rollout-*-" + s.session + ".jsonl"} {
		found, err := filepath.Glob(filepath.Join(home, place))
		l.Must(err)
		for _, file := range found {
			content, err := os.ReadFile(file)
			l.Must(err)
			if first, _, _ := bytes.Cut(content, []byte("\n")); json.Valid(first) {
				files = append(files, file)
			}
		}
	}
	return files
}

// strikeLost compares what the commands of a lost session did with what the log says of them, and strikes it: they may be made once more.
func (w *stagesWatch) strikeLost(lost lostSession) {
	w.Helper()
	lines, _ := w.Ledger("tools")
	begun := map[string]int{}
	for _, x := range lines {
		if x.Who == lost.end.NodeID && x.What == "begin" {
			begun[x.ID]++
		}
	}
	for work, n := range begun {
		if n > 1 || n > lost.unknown[work] {
			w.Errorf("the session of %s is lost; %s began %d times, and is on record as one that may have begun %d times", lost.end.NodeID, work, n, lost.unknown[work])
		}
	}
	if len(begun) == 0 {
		return
	}
	file := filepath.Join(w.Dir, "ledger", "tools")
	text, err := os.ReadFile(file)
	w.Must(err)
	var left strings.Builder
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == lost.end.NodeID {
			left.WriteString("lost ")
		}
		left.WriteString(line)
	}
	w.Must(os.WriteFile(file, []byte(left.String()), 0o600))
}

// killAgents kills all that runners have started, keepers first, as a power cut would: nobody sees anybody else's end.
func (l *bench) killAgents() {
	l.Helper()
	own, stopped := l.Pids(), map[int]bool{}
	for again := true; again; {
		again = false
		for _, pid := range l.Marked() {
			for ; pid > 1 && !stopped[pid] && !slices.Contains(own, pid); pid = parentOf(pid) {
				stopped[pid], again = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it may be gone
			}
		}
	}
	for pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	l.Until("nothing is left of the runner", 10*time.Second, func() bool {
		return !slices.ContainsFunc(l.Marked(), func(pid int) bool { return !slices.Contains(own, pid) })
	})
}

// parentOf is the parent of a process; 0: it is gone.
func parentOf(pid int) (parent int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // none has no parent
	_, rest, _ := strings.Cut(string(status), "\nPPid:")
	_, _ = fmt.Sscan(rest, &parent)
	return parent
}

// compareCommands compares what the commands did with the log: each call that is told to have gone well came to its end, and each that began is
// on record, once.
func (l *bench) compareCommands(a *lab.Audit) {
	l.Helper()
	lines, _ := l.Ledger("tools")
	did := map[string]int{}
	for _, x := range lines {
		did[x.What+" "+x.ID]++
	}
	told := map[string]int{}
	for _, x := range a.Entries {
		p, ok := x.E.Payload.(*wire.AgentTool)
		if !ok {
			continue
		}
		work, ok := l.workOf(p.ToolInput)
		if !ok {
			continue
		}
		if told[work]++; p.Error == "" && did["end "+work] != 1 {
			l.Errorf("%s went well on record, and ended %d times: %s", work, did["end "+work], x)
		}
	}
	for _, node := range stages {
		for n := range stageSteps {
			work := fmt.Sprintf("%s-%d", node, n+1)
			if did["begin "+work] > 1 || did["begin "+work] > told[work] {
				l.Errorf("%s began %d times, and is on record %d times", work, did["begin "+work], told[work])
			}
		}
	}
}

// countMessages checks that what the first agent has told its parent is on record, once.
func (l *bench) countMessages(a *lab.Audit) {
	l.Helper()
	var told []string
	for _, x := range a.Entries {
		if p, ok := x.E.Payload.(*wire.CCMessage); ok {
			told = append(told, x.E.NodeID+": "+p.Text)
		}
	}
	if want := []string{stages[0] + ": The plan is there."}; !slices.Equal(told, want) {
		l.Errorf("the parent is told %q, want %q", told, want)
	}
}

// workOf is the step that a call is about, if it is about one.
func (l *bench) workOf(input wire.Raw) (work string, ok bool) {
	text, err := wire.AppendJSON(nil, input)
	l.Must(err)
	_, rest, ok := strings.Cut(string(text), filepath.Join(l.Dir, "step")+" ")
	words := strings.FieldsFunc(rest, func(r rune) bool { return r != '-' && (r < '0' || r > '9' && r < 'a' || r > 'z') })
	if !ok || len(words) < 2 {
		return "", false
	}
	return words[0] + "-" + words[1], true
}
