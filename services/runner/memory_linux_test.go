package runner_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/pkg/wire"
)

// bounded is a flow of a command that wants much more memory than it may use.
const bounded = `
name: bounded
nodes:
  - {id: a, type: exec, input: {command: "head -c 300000000 /dev/zero | tail -c 299999999 >/dev/null"}, policy: {memory: 48MiB}}
`

// A command that wants more memory than its policy lets it have fails for that, and its claim says that it is bounded.
func TestMemory(t *testing.T) {
	if groups := keeper.ProbeGroups(t.Context(), keeper.Watchdogs); groups.Memory == "" {
		t.Skipf("control groups of this host: %+v", groups)
	}
	b := newBench(t)
	b.process("r1", &scripted{say: echo}, b.home("h1").edit)
	for run, flow := range map[string]string{
		"run1": bounded,
		"run2": strings.Replace(bounded, ">", "| cat >", 1), // its last command succeeds
	} {
		b.submit(run, flow)
		state, entries := b.ended(run)
		if n := state.Nodes["a"]; n.ErrorType != "exit" || !strings.Contains(n.Error, "it reached the 48 MiB of memory that its node may use (policy.memory)") {
			t.Errorf("%s: a failed with %q: %s\n%s", run, n.ErrorType, n.Error, story(entries))
		}
		for _, e := range entries {
			if p, ok := e.Event.Payload.(*wire.NodeClaimed); ok && !strings.HasSuffix(p.Fence, "+memory") {
				t.Errorf("%s: the claim's fence is %q", run, p.Fence)
			}
		}
	}
}

// A runner without control groups refuses a node whose memory is bounded, before anything of it runs, unless the policy says that
// the bound is optional.
func TestMemoryRefused(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", strings.Replace(bounded, "head", "touch begun; head", 1))
	state, entries := b.ended("run1")
	if n := state.Nodes["a"]; n.ErrorType != wire.ErrorStartFailed || !strings.HasPrefix(n.Error, "policy.memory can't be kept by this runner") {
		t.Errorf("a failed with %q: %s", n.ErrorType, n.Error)
	}
	if count(entries, wire.TypeExecStart) != 0 {
		t.Errorf("it began:\n%s", story(entries))
	}
	b.submit("run2", strings.Replace(bounded, "48MiB", "48MiB, memoryOptional: true", 1))
	if state, _ := b.ended("run2"); state.Result != wire.FlowStatusComplete {
		t.Errorf("without its bound the run ended as %s: %s", state.Result, state.Error)
	}
	b.submit("run3", "name: f\nnodes:\n  - {id: a, type: agent, input: {prompt: hi}, policy: {memory: 48MiB}}\n")
	if state, _ := b.ended("run3"); state.Nodes["a"].ErrorType != wire.ErrorStartFailed {
		t.Errorf("an agent failed with %q: %s", state.Nodes["a"].ErrorType, state.Nodes["a"].Error)
	}
}
