package runner_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// written is a flow with one agent: it looks for files and then writes one, which a person
// approves.
const written = `
name: written
nodes:
  - {id: a, type: agent, input: {provider: native, model: m, prompt: "Write it.", requireApproval: [write]}}
`

func newScript() *apitest.Script {
	return &apitest.Script{ByTurn: true, Replies: []apitest.Reply{
		apitest.Message(apitest.Text("I look."), apitest.Call("t0", "glob", `{"pattern":"x"}`)),
		apitest.Message(apitest.Call("t1", "write", `{"path":"f","content":"F"}`)),
		apitest.Message(apitest.Text("Written.")),
	}}
}

// native starts a runner whose native agents are told what a script says.
func (b *bench) native(id, folder string, script *apitest.Script) *process {
	b.t.Helper()
	p := &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: script.Client()}
	proc := b.process(id, nil, func(c *runner.Config) {
		c.Providers, c.Workspaces = map[string]agent.Provider{"native": p}, folder
	})
	proc.watching = true
	return proc
}

// prompts are what a script was asked, by turn; a folder is written as DIR.
func prompts(t *testing.T, script *apitest.Script, folder string) map[int]string {
	t.Helper()
	asked := map[int]string{}
	for _, r := range script.Requests() {
		turn := strings.Count(string(r), `"role":"assistant"`)
		prompt := strings.ReplaceAll(string(r), folder, "DIR")
		if before, again := asked[turn]; again && before != prompt {
			t.Errorf("turn %d was asked for by two prompts (-first +second):\n%s", turn+1, cmp.Diff(before, prompt))
		}
		asked[turn] = prompt
	}
	return asked
}

// TestNativeKilled kills the runner of a native agent before it stores an event, and
// has the next one go on: the model is asked what it would have been asked without, byte
// for byte. Only what was running and may have had effects differs.
func TestNativeKilled(t *testing.T) {
	var want map[int]string
	for i, test := range []struct {
		before   string
		approved bool // by then
		sealed   bool // the call that was approved
	}{
		{"", true, false},
		{"turn:start", false, false},
		{"agent:message", false, false},
		{"tool:intent", false, false},
		{"permission:required", false, false},
		{"permission:decided", true, false},
		{"tool:state", false, false},
		{"agent:tool", false, false},
		{"f: created", true, true}, // the result of the call
		{"end_turn", true, false},  // the last message
		{"agent:complete", true, false},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) { // names of folders are sent too
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				folder, script := t.TempDir(), newScript()
				r1 := b.native("r1", folder, script)
				cut := make(chan struct{})
				if test.before != "" {
					r1.gate.before(test.before, func() { r1.gate.close(); close(cut) })
				}
				b.submit("run1", shared(written))
				if test.approved {
					b.until("run1", wire.TypePermissionRequired)
					b.command("run1", wire.Command{Type: "approve", CallID: "t1"})
				}
				if test.before != "" {
					<-cut
					r1.kill()
					b.native("r2", folder, script)
					b.until("run1", wire.TypePermissionRequired)
					b.command("run1", wire.Command{Type: "approve", CallID: "t1"})
				}
				state, entries := b.ended("run1")
				if text := state.Outputs["a"].TextAt("text"); text != "Written." {
					t.Fatalf("killed before %s: output %q, %s:\n%s", test.before, text, state.Error, story(entries))
				}
				if n := count(entries, wire.TypeToolIntent); n != 2 {
					t.Errorf("%d intents:\n%s", n, story(entries))
				}
				got := prompts(t, script, folder)
				if test.before == "" {
					want = got
				}
				if test.sealed {
					if !strings.Contains(got[2], "its outcome is unknown") || count(entries, wire.TypeToolSealed) != 1 {
						t.Errorf("the call isn't sealed: %s\n%s", got[2], story(entries))
					}
					got[2] = want[2]
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("prompts (-want +got):\n%s", diff)
				}
				if hidden := count(entries, wire.TypeLogTruncated); hidden != 0 && test.before != "agent:message" && test.before != "end_turn" {
					t.Errorf("%d times rolled back:\n%s", hidden, story(entries))
				}
			})
		})
	}
}

// TestNativeDelegates has an agent start two others, in runs of their own, on a runner with
// room for one. It dies while it waits for them; they are started once, and it hears from
// each once.
func TestNativeDelegates(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(strconv.FormatBool(killed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				folder := t.TempDir()
				answer := make(chan struct{})
				script := &delegating{wait: answer}
				script.parent.Replies = []apitest.Reply{
					apitest.Message(apitest.Call("t0", "agent", `{"prompt":"Part {{ 1 }}"}`), apitest.Call("t1", "agent", `{"prompt":"Part two"}`)),
					apitest.Message(apitest.Text("Both done.")),
				}
				script.parent.ByTurn = true
				p := &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: &http.Client{Transport: script}}
				start := func(id string) *process {
					return b.process(id, nil, func(c *runner.Config) {
						c.Providers, c.Workspaces, c.MaxAgents = map[string]agent.Provider{"native": p}, folder, 1
						c.Ask = func(context.Context, string, []byte) ([]byte, error) { return nil, nil }
					})
				}
				r1 := start("r1")
				b.submit("run1", shared(strings.Replace(written, "requireApproval: [write]}", "retries: 1, allowedTools: [agent, read]}, hooks: [{event: AgentStop, subject: h}]", 1)))
				b.awaits("an agent that was started", func() bool {
					return count(b.read("run1.a#1.t0"), wire.TypeTurnStart)+count(b.read("run1.a#1.t1"), wire.TypeTurnStart) > 0
				})
				if killed {
					r1.kill()
					start("r2")
				}
				close(answer)
				state, entries := b.ended("run1")
				if text := state.Outputs["a"].TextAt("text"); text != "Both done." {
					t.Fatalf("output %q, %s:\n%s", text, state.Error, story(entries))
				}
				for _, id := range []string{"run1.a#1.t0", "run1.a#1.t1"} {
					child, entries := b.ended(id)
					if n := count(entries, wire.TypeHookFired); n != 1 {
						t.Errorf("%s: %d hooks were asked", id, n)
					}
					if child.ParentRun != "run1" || child.ParentNode != "a" || child.Result != wire.FlowStatusComplete {
						t.Errorf("%s: %s of %s, %s", id, child.Result, child.ParentRun, child.Error)
					}
				}
				requests := script.parent.Requests()
				last := string(requests[len(requests)-1])
				want := `{"content":"Done: Part {{ 1 }}","tool_use_id":"t0","type":"tool_result"},{"content":"Done: Part two","tool_use_id":"t1","type":"tool_result"}]`
				if !strings.Contains(last, want) {
					t.Errorf("last request %s", last)
				}
			})
		})
	}
}

// delegating answers an agent by a script, and those that it has started with their prompt.
type delegating struct {
	parent apitest.Script
	wait   <-chan struct{}
}

func (d *delegating) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return d.parent.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	_, rest, isChild := strings.Cut(string(body), `"text":"Part `)
	if !isChild {
		return d.parent.RoundTrip(r)
	}
	select {
	case <-d.wait:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	prompt, _, _ := strings.Cut(rest, `"`)
	answer := apitest.Script{Replies: []apitest.Reply{apitest.Message(apitest.Text("Done: Part " + prompt))}}
	return answer.RoundTrip(r)
}

// TestNativeHookChangesInput has the fleet see the input that is to be approved, not the one
// that the model wanted.
func TestNativeHookChangesInput(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: newScript().Client()}
		b.runner("r1", nil, func(c *runner.Config) {
			c.Providers = map[string]agent.Provider{"native": p}
			c.Ask = func(context.Context, string, []byte) ([]byte, error) {
				return []byte(`{"decision":"modify","input":{"path":"safe","content":"S"}}`), nil
			}
		})
		b.submit("run1", strings.Replace(written, "nodes:", "hooks: [{event: PreToolUse, matcher: write, subject: h}]\nnodes:", 1))
		s := b.fold("run1", b.until("run1", wire.TypePermissionRequired))
		for _, c := range s.Tools {
			if path := c.Input.TextAt("path"); path != "safe" {
				t.Errorf("to be approved: %v", c.Input.Any())
			}
		}
		b.command("run1", wire.Command{Type: "approve", CallID: "t1"})
		if state, entries := b.ended("run1"); len(s.Tools) != 1 || state.Result != wire.FlowStatusComplete || count(entries, wire.TypeHookFired) != 1 {
			t.Errorf("%d calls, run ended as %s:\n%s", len(s.Tools), state.Result, story(entries))
		}
	})
}

// TestRetryWait ends an agent that is to wait longer for its model than its policy lets it, and not one that may: the error is the
// model's, so that the policy of the node decides by it.
func TestRetryWait(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		failed string
	}{
		"longer":   {"maxRetryWaitMs: 59999, retry: {maxAttempts: 3, except: [rate_limit]}", "rate_limit"},
		"shorter":  {"maxRetryWaitMs: 60000", ""},
		"no bound": {"timeoutMs: 600000", ""},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.native("r1", t.TempDir(), &apitest.Script{Replies: []apitest.Reply{
					{Status: http.StatusTooManyRequests, Kind: "rate_limit_error", Header: http.Header{"Retry-After": {"60"}}},
					apitest.Message(apitest.Text("Done.")),
				}})
				b.submit("run", `
name: limited
nodes:
  - {id: a, type: agent, input: {provider: native, model: m, prompt: "Do it."}, policy: {`+test.policy+`}}
`)
				s, _ := b.ended("run")
				if n := s.Nodes["a"]; n.ErrorType != test.failed || n.Execs != 1 {
					t.Errorf("%d executions, the last one failed with %q (%s), want %q", n.Execs, n.ErrorType, n.Error, test.failed)
				}
				if test.failed != "" && !strings.Contains(s.Error, "asked again in 1m0s, and policy.maxRetryWaitMs is 59999") {
					t.Errorf("the run says %q", s.Error)
				}
			})
		})
	}
}

// TestForkAsksAgain forks a run in which a native agent waits for a person's decision: the agent of the fork asks for one as well, once,
// also where another runner goes on with it, and goes on by the decision on the fork.
func TestForkAsksAgain(t *testing.T) {
	b := newBench(t) // the folders of agents at work are watched by the real clock
	folder, script := t.TempDir(), newScript()
	r1 := b.native("r1", folder, script)
	b.submit("run1", shared(written))
	b.until("run1", wire.TypePermissionRequired)
	if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"}); code(r) != "accepted" {
		t.Fatalf("%+v", r)
	}
	b.until("fork1", wire.TypePermissionRequired)
	r1.stop()
	b.native("r2", folder, script)
	b.awaits("the agent is at work again", func() bool { return count(b.read("fork1"), wire.TypeAgentInit) == 2 })
	b.command("fork1", wire.Command{Type: "approve", CallID: "t1"})
	state, entries := b.ended("fork1")
	if n := count(entries, wire.TypePermissionRequired); n != 1 || state.Result != wire.FlowStatusComplete {
		t.Errorf("it asks %d times, and ends as %s:\n%s", n, state.Result, story(entries))
	}
	if open := ask.Pending(b.fold("run1", b.read("run1"))); len(open) != 1 {
		t.Errorf("in the run that was forked %d decisions are open", len(open))
	}
}

// TestCancelledCalls cancels a native agent that waits for a person, since another node has failed: its call has an end on record.
func TestCancelledCalls(t *testing.T) {
	b := newBench(t) // commands live by the real clock
	b.native("r1", t.TempDir(), newScript())
	b.submit("run1", shared(written)+`  - {id: b, type: exec, input: {command: "sleep 1; exit 3"}}
`)
	b.until("run1", wire.TypePermissionRequired)
	b.until("run1", wire.TypeAgentAborted) // behind the end of the run
	entries := b.read("run1")
	state := b.fold("run1", entries)
	ends := 0
	for _, e := range entries {
		if p, is := e.Event.Payload.(*wire.AgentTool); is && e.Event.CallID == "t1" && p.Error == wire.CallInterrupted && p.ToolName == "write" {
			ends++
		}
	}
	if ends != 1 || state.Result != wire.FlowStatusFailed {
		t.Errorf("its call has %d ends, the run ended as %s:\n%s", ends, state.Result, story(entries))
	}
}
