package runner_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// leading is a flow whose agent may start another one, which waits for an answer.
const leading = `
name: leading
workspace: shared
nodes:
  - id: a
    type: agent
    input: {provider: native, model: m, prompt: "Lead."}
    flows:
      - name: ask
        input: {type: object, required: [who]}
        flow:
          name: asking
          nodes:
            - {id: q, type: ask, input: {prompt: "{{ input.who }}?"}}
            - {id: failing, type: exec, when: "q.answer = 'fail'", input: {command: exit 3}}
          edges: [{from: q, to: failing}]
`

// askedRun is the run of the agent's call.
const askedRun = "run1.a#1.t0"

func newLeading() *apitest.Script {
	return &apitest.Script{ByTurn: true, Replies: []apitest.Reply{
		apitest.Message(apitest.Call("t0", "run_flow", `{"flow":"ask","input":{"who":"Ann"}}`)),
		apitest.Message(apitest.Text("Led.")),
	}}
}

// answer answers the question of the agent's flow.
func (b *bench) answer(text string) {
	b.t.Helper()
	asked := b.until(askedRun, wire.TypeInputRequested)
	b.command(askedRun, wire.Command{Type: "reply", PromptID: first[*wire.InputRequested](b.t, asked).PromptID, Content: wire.RawString(text)})
}

// TestNativeRunsFlow has an agent start a flow, and kills its runner before that stores
// something: the flow is started once, and its outcome comes once, as it would have without.
func TestNativeRunsFlow(t *testing.T) {
	var want map[int]string
	for i, test := range []struct {
		before   string
		answered bool // by then
	}{
		{"", true},
		{"agent:message", false},
		{"tool:intent", false},
		{"tool:state", false},
		{"parentCall", false}, // the request for the run
		{"input:requested", false},
		{"input:received", true},
		{"agent:tool", true},
		{"agent:complete", true},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				folder, script := t.TempDir(), newLeading()
				r1 := b.native("r1", folder, script)
				cut := make(chan struct{})
				if test.before != "" {
					r1.gate.before(test.before, func() { r1.gate.close(); close(cut) })
				}
				b.submit("run1", leading, func(r *wire.RunRequest) { r.Workspace, r.Labels = folder, map[string]string{"team": "core"} })
				if test.answered {
					b.answer("yes")
				}
				if test.before != "" {
					<-cut
					r1.kill()
					b.native("r2", folder, script)
				}
				if !test.answered {
					b.answer("yes")
				}
				state, entries := b.ended("run1")
				if text := state.Outputs["a"].TextAt("text"); text != "Led." {
					t.Fatalf("killed before %s: output %q, %s:\n%s", test.before, text, state.Error, story(entries))
				}
				got := prompts(t, script, folder)
				if test.before == "" {
					want = got
				}
				if !strings.Contains(got[1], `\"outputs\":{\"failing\":{`) || !strings.Contains(got[1], `\"answer\":\"yes\"`) {
					t.Errorf("the agent is told %s", got[1])
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("killed before %s: prompts (-want +got):\n%s", test.before, diff)
				}
				child, events := b.ended(askedRun)
				if child.ParentRun != "run1" || child.ParentNode != "a" || child.ParentCall != "a#1/t0" || child.Workspace != folder ||
					child.Labels["team"] != "core" {
					t.Errorf("the parent is %s, %s, %s, in %s, its labels are %v", child.ParentRun, child.ParentNode, child.ParentCall, child.Workspace, child.Labels)
				}
				if count(events, wire.TypeFlowStart) != 1 || count(entries, wire.TypeAgentTool) != 1 || count(entries, wire.TypeToolIntent) != 1 {
					t.Errorf("killed before %s:\n%s\n%s", test.before, story(entries), story(events))
				}
			})
		})
	}
}

// TestNativeFlowFails has the flow that an agent has started fail: the agent is told why.
func TestNativeFlowFails(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		script := newLeading()
		b.native("r1", t.TempDir(), script)
		b.submit("run1", leading)
		b.answer("fail")
		_, entries := b.ended("run1")
		told := first[*wire.AgentTool](t, entries)
		if !strings.HasPrefix(told.Error, "Run "+askedRun+" failed: ") || !strings.Contains(told.Error, "exit code 3") || told.ChildRun != askedRun {
			t.Errorf("the call's result is %q, of run %s", told.Error, told.ChildRun)
		}
	})
}

// TestNativeFlowIsPaused pauses the run of an agent that waits for a flow: the flow is
// paused too, goes on with it and with what was set, and the call has one result. The
// runner dies meanwhile.
func TestNativeFlowIsPaused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		folder, script := t.TempDir(), newLeading()
		r1 := b.native("r1", folder, script)
		b.submit("run1", leading, func(r *wire.RunRequest) { r.Workspace = folder })
		asked := b.until(askedRun, wire.TypeInputRequested)
		b.command("run1", wire.Command{Type: "pause"})
		b.until(askedRun, wire.TypeFlowPaused)
		b.until("run1", wire.TypeAgentPaused)
		if s := b.fold(askedRun, b.read(askedRun)); s.Reason != wire.PauseParent {
			t.Errorf("the flow is paused for %q", s.Reason)
		}
		r1.kill()
		b.native("r2", folder, script)
		set, err := wire.Marshal(map[string]any{"model": "better", "a": map[string]any{"maxTurns": 7}})
		if err != nil {
			t.Fatal(err)
		}
		b.command("run1", wire.Command{Type: "resume", Overrides: set})
		b.until(askedRun, wire.TypeFlowResumed)
		b.command(askedRun, wire.Command{Type: "reply", PromptID: first[*wire.InputRequested](t, asked).PromptID, Content: wire.RawString("yes")})
		_, entries := b.ended("run1")
		child, _ := b.ended(askedRun)
		if got := fmt.Sprint(child.Overrides.Any()); got != "map[model:better]" {
			t.Errorf("the flow has the settings %s", got)
		}
		results := count(entries, wire.TypeAgentTool)
		if told := first[*wire.AgentTool](t, entries); told.Error != "" || results != 1 {
			t.Errorf("%d results, the first: %s\n%s", results, told.Error, story(entries))
		}
	})
}

// TestNativeFlowIsWithdrawn ends the flow that an agent has started when no agent waits for it any
// more: its run is aborted, or a message has interrupted the agent. Who is to end the flow may
// have died.
func TestNativeFlowIsWithdrawn(t *testing.T) {
	abort := func(b *bench) { b.command("run1", wire.Command{Type: "abort"}) }
	for name, test := range map[string]struct {
		do    func(b *bench)
		until wire.Type
	}{
		"aborted": {abort, wire.TypeFlowAborted},
		"interrupted": {func(b *bench) {
			b.command("run1", wire.Command{Type: "send", Message: "Stop that.", Interrupt: true})
		}, wire.TypeFlowComplete},
	} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, killed), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T) {
					b := newBench(t)
					folder, script := t.TempDir(), newLeading()
					r1 := b.native("r1", folder, script)
					cut := make(chan struct{})
					if killed {
						r1.gate.before("the parent run withdrew it", func() { r1.gate.close(); close(cut) })
					}
					b.submit("run1", leading, func(r *wire.RunRequest) { r.Workspace = folder })
					b.until(askedRun, wire.TypeInputRequested)
					test.do(b)
					if killed {
						<-cut
						r1.kill()
						b.native("r2", folder, script)
					}
					b.until(askedRun, wire.TypeFlowAborted)
					entries := b.until("run1", test.until)
					if name == "interrupted" {
						if told := first[*wire.AgentTool](t, entries); told.Error != wire.CallInterrupted {
							t.Errorf("the call's result is %q", told.Error)
						}
					}
				})
			})
		}
	}
}

// TestNativeFlowComesTooLate has the request for a flow come to a runner when the run that has
// asked for it is over: it is aborted at once.
func TestNativeFlowComesTooLate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{})
		b.submit("run1", single)
		b.ended("run1")
		b.submit("late", single, func(r *wire.RunRequest) { r.ParentRun, r.ParentNode, r.ParentCall = "run1", "a", "a#1/t0" })
		if s, entries := b.ended("late"); s.Status != wire.RunAborted || count(entries, wire.TypeNodeScheduled) != 0 {
			t.Errorf("it is %s:\n%s", s.Status, story(entries))
		}
	})
}

// TestSubAgentInherits has an agent start another one after its settings were replaced: those
// are the other one's too, and it starts no agent whatever they say.
func TestSubAgentInherits(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		script := &apitest.Script{Replies: []apitest.Reply{
			apitest.Message(apitest.Call("t0", "agent", `{"prompt":"Part"}`)),
			apitest.Message(apitest.Text("Done.")),
			apitest.Message(apitest.Text("Led.")),
		}}
		b.native("r1", t.TempDir(), script)
		set, err := wire.Marshal(map[string]any{"model": "better", "disallowedTools": []any{"bash"}, "a": map[string]any{"systemPrompt": "Hm."}})
		if err != nil {
			t.Fatal(err)
		}
		b.submit("run1", leading, func(r *wire.RunRequest) { r.Overrides = set })
		b.ended("run1")
		requests := script.Requests()
		if len(requests) != 3 {
			t.Fatalf("%d requests", len(requests))
		}
		for _, want := range []struct {
			text string
			in   bool
		}{{`"model":"better"`, true}, {`"Hm.`, true}, {`"name":"agent"`, false}, {`"name":"run_flow"`, false}} {
			if strings.Contains(string(requests[1]), want.text) != want.in {
				t.Errorf("%s in the sub-agent's request: %v is wanted:\n%s", want.text, want.in, requests[1])
			}
		}
	})
}

// TestTokensOfSubAgent has an agent start another one: what that one uses counts against the budget of both.
func TestTokensOfSubAgent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.native("r1", t.TempDir(), &apitest.Script{Replies: []apitest.Reply{
			apitest.Message(apitest.Call("t0", "agent", `{"prompt":"Part"}`)),
			apitest.Message(apitest.Text("Done.")),
			apitest.Message(apitest.Text("Led.")),
		}})
		b.submit("run1", leading, limits(map[string]any{"maxTokens": 200}))
		entries := b.until("run1", wire.TypeFlowPaused)
		if p := first[*wire.FlowPaused](t, entries); p.Reason != wire.PauseBudget {
			t.Errorf("paused for %s:\n%s", p.Reason, story(entries))
		}
		if p := first[*wire.AgentTool](t, entries); p.ChildTokens != 110 {
			t.Errorf("the call used %d tokens:\n%s", p.ChildTokens, story(entries))
		}
	})
}

// TestChildrenStayWithTheFolder has runners that share no folder work on runs that start others:
// the others' nodes go to the runner that has the folder, whichever runner owns them.
func TestChildrenStayWithTheFolder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{})
		b.submit("run1", strings.Replace(single, "workspace: shared\n", "", 1), func(r *wire.RunRequest) {
			r.Workspace, r.WorkspaceAt = t.TempDir()+"/not/made/here", "r2"
		})
		b.until("run1", wire.TypeNodeScheduled)
		b.runner("r2", &puppet{})
		if s, _ := b.ended("run1"); s.Nodes["a"].Runner != "r2" {
			t.Errorf("worked on by %s", s.Nodes["a"].Runner)
		}
		for i := range 6 {
			id := fmt.Sprint("parent", i)
			b.submit(id, `
name: parent
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: sub, type: flow, input: {flow: {name: child, nodes: [{id: c, type: agent, input: {prompt: "c"}}]}}}
edges: [{from: a, to: sub}]
`)
			parent, _ := b.ended(id)
			child, _ := b.ended(id + ".sub#1")
			if child.Nodes["c"].Runner != parent.Nodes["a"].Runner {
				t.Errorf("%s has worked, then %s in the same folder", parent.Nodes["a"].Runner, child.Nodes["c"].Runner)
			}
		}
	})
}
