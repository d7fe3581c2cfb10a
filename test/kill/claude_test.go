//go:build kill && claudecli

package kill_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// job is what the model says: a Bash call that leaves a line when it begins and
// one when it ends, and an answer.
const job = `{"turns":[
{"blocks":[{"t":"text","text":"Starting the job."},{"t":"tool","name":"Bash","input":{"command":"echo begin >> LEDGER; sleep 8; echo end >> LEDGER","description":"The job"}}]},
{"blocks":[{"t":"text","text":"I have been told: the outcome of the job is unknown, so I don't do it again."}]}]}`

// cli is the flow of one agent: Claude itself.
const cli = `
name: cli
workspace: node
nodes:
  - id: coder
    type: agent
    input:
      provider: claude
      prompt: "Do the job [[scn:job]]"
      env: {IS_SANDBOX: "1"}
edges: []
`

// TestClaude kills the runner of the real CLI in the middle of a Bash call, where no keeper holds
// the agent. The call is sealed, not made again, and the model is told.
func TestClaude(t *testing.T) {
	claudes(t, func(l *bench, env []string) {
		r := l.claudeRunner("r1", env, "--fence", "none")
		l.interrupt(r, 500*time.Millisecond)
		l.Restart(r)
		l.resumed()
	})
}

// TestClaudeElsewhere is the same with a keeper, where the disk of the runner is gone: the
// session comes out of the object store, into another home and another folder.
func TestClaudeElsewhere(t *testing.T) {
	claudes(t, func(l *bench, env []string) {
		r := l.claudeRunner("r1", env)
		l.interrupt(r, 3*time.Second) // sessions are kept with some delay
		l.Must(os.RemoveAll(filepath.Join(l.Dir, "r1")))
		l.Tell("the disk of r1 is gone")
		l.claudeRunner("r2", env)
		l.resumed()
	})
}

// claudes runs f with each version of the CLI, against the made-up API. The script test/claude/run sets up what is
// needed.
func claudes(t *testing.T, f func(l *bench, env []string)) {
	t.Helper()
	versions(t, func(t *testing.T, binary string) {
		l := newLab(t, 2*time.Second, 2*time.Minute)
		l.Prog.Claude = binary
		f(l, l.agentEnv(map[string]string{"job": strings.ReplaceAll(job, "LEDGER", filepath.Join(l.Dir, "ledger", "bash"))}))
	})
}

// versions runs f with each version of the CLI.
func versions(t *testing.T, f func(t *testing.T, binary string)) {
	t.Helper()
	binaries := os.Getenv("WAKE_CLAUDE_BINARIES")
	if binaries == "" || os.Getenv("WAKE_FAKE_API") == "" {
		t.Fatal("WAKE_CLAUDE_BINARIES or WAKE_FAKE_API isn't set: make kill-claude")
	}
	for entry := range strings.SplitSeq(binaries, ":") {
		version, binary, _ := strings.Cut(entry, "=")
		t.Run(version, func(t *testing.T) { f(t, binary) })
	}
}

// agentEnv starts the made-up API with scripts, and returns the environment of agents that use it.
func (l *bench) agentEnv(scripts map[string]string) []string {
	l.Helper()
	return []string{
		"ANTHROPIC_BASE_URL=" + l.api(scripts), "ANTHROPIC_API_KEY=dummy", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DISABLE_AUTOUPDATER=1",
	}
}

// api starts the made-up API, whose requests are kept in the folder "requests".
func (l *bench) api(scripts map[string]string) string {
	l.Helper()
	scenarios := filepath.Join(l.Dir, "scenarios")
	l.Must(os.Mkdir(scenarios, 0o700))
	for name, script := range scripts {
		l.Must(os.WriteFile(filepath.Join(scenarios, name+".json"), []byte(script), 0o600))
	}
	c := exec.CommandContext(l.Ctx, os.Getenv("WAKE_FAKE_API"), "-addr", "127.0.0.1:0", "-scenarios", scenarios, "-log", filepath.Join(l.Dir, "requests"))
	c.Env = l.Env("")
	out, err := c.StderrPipe()
	l.Must(err)
	l.Must(c.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		l.Fatal("the API doesn't say where it listens")
	}
	addr := lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() {
		}
		_ = c.Wait() // it was killed
	}()
	l.Cleanup(func() {
		_ = c.Process.Kill() // it may be gone
		<-ended
	})
	return "http://" + addr
}

// claudeRunner is a runner whose agents have an environment.
func (l *bench) claudeRunner(id string, env []string, flags ...string) *lab.Runner {
	l.Helper()
	l.AgentEnv = env
	return l.Runner(id, true, flags...)
}

// interrupt kills the runner while the Bash call runs, some time after it began.
func (l *bench) interrupt(r *lab.Runner, after time.Duration) {
	l.Helper()
	l.Flow("cli", cli)
	l.Await("cli", 0, 60*time.Second, "the call begins", lab.OfType(wire.TypeToolIntent, "coder"))
	l.Until("the command runs", 20*time.Second, func() bool { return slices.Contains(l.bash(), "begin") })
	<-time.After(after)
	l.Kill(r.Proc)
	l.Tell("KILL %s in the middle of the call", r.ID)
}

// bash is the ledger of the Bash call.
func (l *bench) bash() []string {
	b, _ := os.ReadFile(filepath.Join(l.Dir, "ledger", "bash")) // none is none
	return strings.Fields(string(b))
}

// resumed checks that the run completes, that the call was sealed and not made
// again, and that the model was told.
func (l *bench) resumed() {
	l.Helper()
	l.Reach("cli", 60*time.Second, wire.RunComplete)
	a := l.Check("cli")
	a.Completed("complete")
	var intents, seals, closed []string
	var notices int
	for _, x := range a.Entries {
		switch p := x.E.Payload.(type) {
		case *wire.ToolIntent:
			intents = append(intents, x.E.CallID)
		case *wire.ToolSealed:
			seals = append(seals, x.E.CallID)
			l.Tell("sealed: %s; %s", p.Message, strings.Join(p.Recommendations, "; "))
		case *wire.AgentTool:
			closed = append(closed, x.E.CallID)
			if p.Error == "" {
				l.Errorf("the call has no error: %s", x)
			}
		case *wire.AgentResumed:
			notices++
		}
	}
	if len(intents) != 1 || !slices.Equal(intents, seals) || !slices.Equal(intents, closed) || notices != 1 {
		l.Errorf("calls %v, sealed %v, closed %v, %d agent_resumed", intents, seals, closed, notices)
	}
	if n := strings.Count(strings.Join(l.bash(), " "), "begin"); n != 1 {
		l.Errorf("the command began %d times: %v", n, l.bash())
	}
	told := l.asked()
	if !strings.Contains(told, "Bash") || !strings.Contains(strings.ToLower(told), "unknown") {
		l.Errorf("the model was told only: %q", told)
	}
	for _, line := range l.Told() {
		l.Log(line)
	}
	l.Logf("the ledger: %v; the model was told: %s", l.bash(), told)
}

// asked returns the text of the newest message of the user in the last request
// that the API got for the job.
func (l *bench) asked() string {
	l.Helper()
	files, err := filepath.Glob(filepath.Join(l.Dir, "requests", "*-job-*.json"))
	l.Must(err)
	slices.Sort(files)
	if len(files) == 0 {
		return ""
	}
	b, err := os.ReadFile(files[len(files)-1])
	l.Must(err)
	var r struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	l.Must(json.Unmarshal(b, &r))
	for _, m := range slices.Backward(r.Messages) {
		if m.Role != "user" {
			continue
		}
		var text string
		if json.Unmarshal(m.Content, &text) == nil {
			return text
		}
		var blocks []struct {
			Text string `json:"text"`
		}
		_ = json.Unmarshal(m.Content, &blocks) // what isn't text says nothing
		texts := make([]string, len(blocks))
		for i, b := range blocks {
			texts[i] = b.Text
		}
		return strings.Join(texts, "\n")
	}
	return ""
}

// voyage is what the model says of steps, each a file and a commit; next is the first one that isn't done. One that is lost writes its
// file, and then takes longer than its machine lives.
func voyage(steps ...string) string {
	type block map[string]any
	var turns []map[string]any
	say := func(blocks ...block) { turns = append(turns, map[string]any{"blocks": blocks}) }
	for _, step := range steps {
		command := "n=" + step
		switch {
		case strings.HasPrefix(step, "lost"):
			command = "echo half > f2; echo lost > " + step + "; echo begin >> LEDGER; sleep 60"
		case step == "next":
			command = "n=1; while [ -e f$n ]; do n=$((n+1)); done; [ $n -le 3 ] || exit 0"
			fallthrough
		default:
			command += "; export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z; [ -d .git ] || git init -q -b main . && echo $n > f$n" +
				" && git add -A && git -c user.name=a -c user.email=a@b commit -qm \"step $n\""
		}
		say(block{"t": "text", "text": "Now step " + step + "."}, block{"t": "tool", "name": "Bash", "input": map[string]string{"command": command, "description": step}})
	}
	say(block{"t": "text", "text": "All steps are done."})
	b, err := json.Marshal(map[string]any{"turns": turns})
	if err != nil {
		panic(err)
	}
	return string(b)
}

const voyageFlow = `
name: voyage
nodes:
  - {id: coder, type: agent, input: {provider: claude, prompt: "Steps [[scn:SCRIPT]]", env: {IS_SANDBOX: "1"}}}
  - {id: b, type: exec, idempotent: true, input: {command: "ls | tr '\n' ' '; git status --porcelain; git fsck --full 2>&1; git log --reverse --format=%H.%s"}}
edges: [{from: coder, to: b}]
`

// TestClaudeFolderElsewhere kills the machine of a run in the middle of its second step. The other machine, which shares no disk with it,
// goes on in the folder as it was after the first one, and comes to the files and commits of a run to which nothing happened.
func TestClaudeFolderElsewhere(t *testing.T) {
	versions(t, func(t *testing.T, binary string) {
		l := newLab(t, 2*time.Second, 4*time.Minute)
		l.Prog.Claude = binary
		ledger := filepath.Join(l.Dir, "ledger", "bash")
		env := l.agentEnv(map[string]string{
			"plain": voyage("1", "2", "3"),
			// The CLI 2.1.330 answers an interrupted call itself, with a message of its own, by which the made-up API counts one step more.
			"killed": strings.ReplaceAll(voyage("1", "lost2", "next", "next", "next"), "LEDGER", ledger),
		})
		r1 := l.claudeRunner("r1", env)
		l.Flow("plain", strings.ReplaceAll(voyageFlow, "SCRIPT", "plain"))
		want := l.Reach("plain", 90*time.Second, wire.RunComplete).Outputs["b"].TextAt("stdout")
		if strings.Count(want, "step ") != 3 || !strings.HasPrefix(want, "f1 f2 f3 ") {
			t.Fatalf("the run to which nothing happened has %q", want)
		}
		l.Flow("killed", strings.ReplaceAll(voyageFlow, "SCRIPT", "killed"))
		l.Until("the second step runs", 90*time.Second, func() bool { return slices.Contains(l.bash(), "begin") })
		<-time.After(3 * time.Second) // sessions are kept with some delay
		l.Kill(r1.Proc)
		l.Must(os.RemoveAll(filepath.Join(l.Dir, "r1")))
		l.Tell("the machine r1 is gone, with its disk")
		gone := time.Now()
		l.claudeRunner("r2", env, "--workspace-grace", "3s")
		state := l.Reach("killed", 2*time.Minute, wire.RunComplete)
		if got := state.Outputs["b"].TextAt("stdout"); got != want {
			t.Errorf("the other machine came to\n%s\nwant\n%s", got, want)
		}
		paused := slices.ContainsFunc(l.Stored("killed"), lab.OfType(wire.TypeFlowPaused, wire.RunNode))
		if paused || !strings.HasPrefix(state.Workspace, filepath.Join(l.Dir, "r2")) {
			t.Errorf("paused: %v; it ended in %s", paused, state.Workspace)
		}
		for _, line := range l.Told() {
			t.Log(line)
		}
		t.Logf("complete %s after its machine was gone:\n%s", time.Since(gone).Round(time.Millisecond), want)
	})
}
