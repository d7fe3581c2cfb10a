package runner_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// Commands are processes, which live by the real clock: no bubbles here.

func TestCommand(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", `
name: build
nodes:
  - {id: write, type: exec, input: {command: "echo made $WHAT > made; pwd", env: {WHAT: it}}}
  - {id: read, type: exec, input: {command: [sh, -c, "read x < made; echo $x"]}}
  - {id: fail, type: exec, input: {command: "echo no >&2; exit 3"}, policy: {continueOnError: true}}
  - {id: sum, type: set, input: {output: "{{ outputs.fail.exitCode }} {{ outputs.read.stdout }}"}}
edges:
  - {from: write, to: read}
  - {from: read, to: fail}
  - {from: fail, to: sum}
`)
	state, entries := b.ended("run1")
	if text, _ := state.Outputs["sum"].Text(); strings.TrimSpace(text) != "3 made it" || state.Result != wire.FlowStatusComplete {
		t.Errorf("sum is %q, the run ended as %s (%s):\n%s", text, state.Result, state.Error, story(entries))
	}
	if pwd := state.Outputs["write"].TextAt("stdout"); strings.TrimSpace(pwd) != state.Workspace {
		t.Errorf("it ran in %q, the workspace is %q", pwd, state.Workspace)
	}
	if n := state.Nodes["fail"]; n.ErrorType != "exit" {
		t.Errorf("fail failed with %q: %s", n.ErrorType, n.Error)
	}
}

// A command that takes too long is ended, and its one outcome says why, also if it ends in order when it is told to.
func TestCommandTimeLimit(t *testing.T) {
	for _, command := range []string{"echo begun; exec sleep 1000", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.01; done"} {
		t.Run(command, func(t *testing.T) {
			b := newBench(t)
			b.runner("r1", &scripted{say: echo})
			b.submit("run1", `
name: slow
nodes:
  - {id: a, type: exec, input: {command: "`+command+`"}, policy: {timeoutMs: 300}}
`)
			state, entries := b.ended("run1")
			if state.Nodes["a"].ErrorType != wire.ErrorTimeout || count(entries, wire.TypeNodeError) != 1 || count(entries, wire.TypeExecExit) != 1 {
				t.Errorf("a failed with %q (%s):\n%s", state.Nodes["a"].ErrorType, state.Nodes["a"].Error, story(entries))
			}
			if out := state.Outputs["a"].TextAt("stdout"); out != "begun\n" {
				t.Errorf("its output is %q", out)
			}
		})
	}
}

const sleeper = `
name: sleeper
nodes:
  - {id: a, type: exec, input: {command: "trap 'exit 7' TERM; sleep 1000 & wait"}, policy: {retry: {maxAttempts: 2}}}
`

// TestTimeoutInOutput lets the time of a command run out that then exits with 0: the command has failed, and the flow sees that in its output.
func TestTimeoutInOutput(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", `
name: late
nodes:
  - {id: a, type: exec, input: {command: "trap 'exit 0' TERM; echo begun; sleep 1000 & wait"}, policy: {timeoutMs: 500, continueOnError: true}}
  - {id: well, type: set, input: {output: 1}}
  - {id: badly, type: set, input: {output: 1}}
edges:
  - {from: a, to: well, when: "a.exitCode = 0 and $not($exists(a.error))"}
  - {from: a, to: badly, when: "$exists(a.error)"}
`)
	state, entries := b.ended("run1")
	if out := state.Outputs["a"]; !strings.Contains(out.TextAt("error"), "time limit") || out.TextAt("stdout") != "begun\n" || len(state.Outputs["badly"]) == 0 || state.Outputs["well"].TextAt("reason") == "" {
		t.Errorf("well: %s, badly: %s, output %v\n%s", state.NodeStatus["well"], state.NodeStatus["badly"], out.Any(), story(entries))
	}
}

// A command that ends since its runner stops hasn't failed: it has no outcome.
func TestCommandOfStoppedRunner(t *testing.T) {
	b := newBench(t)
	stop := b.runner("r1", &scripted{say: echo}, func(c *runner.Config) { c.DrainTimeout = 100 * time.Millisecond })
	b.submit("run1", sleeper)
	b.until("run1", wire.TypeExecStart)
	stop()
	entries := b.read("run1")
	if state := b.fold("run1", entries); state.NodeStatus["a"] != wire.NodeRunning || count(entries, wire.TypeExecExit) != 1 {
		t.Errorf("a is %s:\n%s", state.NodeStatus["a"], story(entries))
	}
}

// An abort ends a command, also one that runs beside an agent to which a message
// was sent.
func TestAbortOfCommand(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}})
	b.submit("run1", sleeper+`  - {id: b, type: agent, input: {prompt: "b"}}
`)
	b.until("run1", wire.TypeExecStart)
	b.until("run1", wire.TypeAgentStart)
	b.command("run1", wire.Command{Type: "send", Message: "hello"})
	b.until("run1", wire.TypeCommandReceived)
	b.publish(subjects.Default.Command("run1"), wire.Command{Type: "abort"})
	start := time.Now()
	entries := b.until("run1", wire.TypeExecExit)
	if state := b.fold("run1", entries); state.Status != wire.RunAborted {
		t.Errorf("run is %s:\n%s", state.Status, story(entries))
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
}

// A command that can't be started is a failure of its node.
func TestCommandNotFound(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := os.Stat(missing); err == nil {
		t.Fatal("it is there")
	}
	b.submit("run1", `
name: missing
nodes:
  - {id: a, type: exec, input: {command: [`+missing+`]}}
`)
	if state, entries := b.ended("run1"); state.Nodes["a"].ErrorType != wire.ErrorStartFailed {
		t.Errorf("a failed with %q (%s):\n%s", state.Nodes["a"].ErrorType, state.Nodes["a"].Error, story(entries))
	}
}

// With `workspace: node` every execution has a fresh folder of its own, also
// each try of a node.
func TestWorkspacePerNode(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", `
name: apart
workspace: node
nodes:
  - {id: a, type: exec, input: {command: "echo x > made; exit 1"}, policy: {retry: {maxAttempts: 2}, continueOnError: true}}
  - {id: b, type: exec, input: {command: "ls; pwd"}}
edges:
  - {from: a, to: b}
`)
	state, entries := b.ended("run1")
	out := state.Outputs["b"].TextAt("stdout")
	if state.Result != wire.FlowStatusComplete || strings.Contains(out, "made") || filepath.Base(strings.TrimSpace(out)) != subjects.Escape("b#1") {
		t.Errorf("b found %q, the run ended as %s:\n%s", out, state.Result, story(entries))
	}
}

// A worker that hears of a pause just before it begins a command gives the node back: the next worker begins the command, once, and
// asks nobody what became of it.
func TestPausedBeforeTheCommand(t *testing.T) {
	b := newBench(t)
	b.runner("r1", nil)
	marks := filepath.Join(t.TempDir(), "marks")
	const items = 60
	b.submit("run1", fmt.Sprintf(`
name: short
nodes:
  - {id: s, type: set, input: {output: 1}}
  - {id: w, type: exec, input: {command: [sh, -c, "echo $0 >>%s; sleep 0.02", "{{ it }}"]}}
edges: [{from: s, to: w, forEach: {in: "[1..%d]", as: it, concurrency: 8}}]
`, marks, items))
	b.until("run1", wire.TypeFlowStart)
	status := func() wire.RunStatus { return b.fold("run1", b.read("run1")).Status }
	for i := 0; i < 20 && status() != wire.RunComplete; i++ {
		<-time.After(20 * time.Millisecond)
		b.command("run1", wire.Command{Type: "pause"})
		b.awaits("it is paused", func() bool { return status() == wire.RunPaused || status() == wire.RunComplete })
		b.command("run1", wire.Command{Type: "resume"})
		b.awaits("it goes on", func() bool { return status() != wire.RunPaused || reasonOf(b) != wire.PauseOperator })
		if reason := reasonOf(b); reason == wire.PauseRequiresAction {
			t.Fatalf("it waits for a decision:\n%s", story(b.read("run1")))
		}
	}
	state, entries := b.ended("run1")
	begun, err := os.ReadFile(marks)
	if n := strings.Count(string(begun), "\n"); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeExecStart) != items || n != items || err != nil {
		t.Errorf("it ended as %s: %s; %d commands were begun, %d on record", state.Result, state.Error, n, count(entries, wire.TypeExecStart))
	}
}

// reasonOf is why run1 is paused.
func reasonOf(b *bench) string { return b.fold("run1", b.read("run1")).Reason }

// An owner records of a child run that failed that it did, so that a condition of the flow can tell.
func TestOutcomeOfFailedChild(t *testing.T) {
	b := newBench(t)
	b.runner("r1", nil)
	b.submit("run1", `
name: parent
nodes:
  - {id: m, type: flow, input: {flow: {name: kid, nodes: [{id: x, type: exec, input: {command: "exit 3"}}]}}, policy: {continueOnError: true}}
  - {id: then, type: set, input: {output: went}}
edges: [{from: m, to: then, when: "outputs.m.status = 'complete'"}]
`)
	state, entries := b.ended("run1")
	if m := state.Outputs["m"]; m.TextAt("status") != "failed" || m.TextAt("error") == "" || !state.Nodes["then"].Skipped {
		t.Errorf("the node says %v, what follows a success: %+v\n%s", m.Any(), state.Nodes["then"], story(entries))
	}
}
