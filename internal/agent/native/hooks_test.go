package native_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// saysSomething is a hook that is a command with a fixed answer.
func saysSomething(event, matcher, answer string) flow.Hook {
	return flow.Hook{Event: event, Matcher: matcher, Name: matcher + answer, Command: []string{"/bin/sh", "-c", "cat >/dev/null; printf '%s' '" + answer + "'"}}
}

// fired lists the firings of hooks: event, decision, and whether they failed.
func fired(events []*wire.Event) []string {
	var list []string
	for _, p := range of[*wire.HookFired](events) {
		s := p.HookEvent + " " + p.Decision
		if p.Error != "" {
			s = p.HookEvent + " failed"
		}
		if p.DurationMs == nil {
			s += " without duration"
		}
		list = append(list, s)
	}
	return list
}

// TestHookBeforeTool is H1 and H2 of features.md for PreToolUse.
func TestHookBeforeTool(t *testing.T) {
	const deny, allow = `{"decision":"deny","reason":"R"}`, `{"decision":"allow"}`
	first, second := `{"decision":"modify","input":{"command":"echo first"}}`, `{"decision":"modify","input":{"command":"echo second"}}`
	bash := `{"command":"echo asked"}`
	for _, test := range []struct {
		name        string
		hooks       []flow.Hook
		tool, input string
		want        string
		fired       int
	}{
		{"none", nil, "bash", bash, "asked\n", 0},
		{"deny and modify", []flow.Hook{saysSomething("PreToolUse", "", first), saysSomething("PreToolUse", "", deny)}, "bash", bash, "Permission denied for tool: bash: R", 2},
		{"first modify", []flow.Hook{saysSomething("PreToolUse", "", allow), saysSomething("PreToolUse", "", first), saysSomething("PreToolUse", "", second)}, "bash", bash, "first\n", 3},
		{"matches", []flow.Hook{saysSomething("PreToolUse", "write|edit", deny)}, "edit", `{}`, "Permission denied for tool: edit: R", 1},
		{"matches the other", []flow.Hook{saysSomething("PreToolUse", "write|edit", deny)}, "write", `{}`, "Permission denied for tool: write: R", 1},
		{"matches not", []flow.Hook{saysSomething("PreToolUse", "write|edit", deny)}, "bash", bash, "asked\n", 0},
		{"bad expression", []flow.Hook{saysSomething("PreToolUse", "(", deny)}, "bash", bash, "asked\n", 0},
		{"failure before deny", []flow.Hook{{Event: "PreToolUse", Command: []string{"/bin/false"}}, saysSomething("PreToolUse", "", deny)}, "bash", bash, "Permission denied for tool: bash: R", 2},
		{"no such program", []flow.Hook{{Event: "PreToolUse", Command: []string{"/no/such"}}}, "bash", bash, "asked\n", 1},
		{"no JSON", []flow.Hook{saysSomething("PreToolUse", "", "yes")}, "bash", bash, "asked\n", 1},
		{"another's decision", []flow.Hook{saysSomething("PreToolUse", "", `{"decision":"stop"}`)}, "bash", bash, "asked\n", 1},
		{"too slow", []flow.Hook{{Event: "PreToolUse", Command: []string{"/bin/sleep", "60"}, TimeoutMs: 30}}, "bash", bash, "asked\n", 1},
		{"nothing to ask", []flow.Hook{{Event: "PreToolUse"}}, "bash", bash, "asked\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			b.hooks(test.hooks...)
			got, _ := b.called(test.tool, test.input).ToolOutput.Text()
			if list := fired(b.log); got != test.want || len(list) != test.fired {
				t.Errorf("result %q, want %q; fired %q", got, test.want, list)
			}
		})
	}
}

// TestModifiedInputIsApproved has a human see the input that the hook wants.
func TestModifiedInputIsApproved(t *testing.T) {
	b := newBench(t)
	b.hooks(saysSomething("PreToolUse", "", `{"decision":"modify","input":{"command":"echo safe"}}`))
	b.request.Options.RequireApproval = []string{"bash"}
	b.request.Options.Decide = func(_ context.Context, p agent.Permission) agent.Verdict {
		command := p.Input.TextAt("command")
		return agent.Verdict{Allow: command == "echo safe"}
	}
	if got, _ := b.called("bash", `{"command":"echo danger"}`).ToolOutput.Text(); got != "safe\n" {
		t.Errorf("result %q", got)
	}
}

// TestHookApproves has a hook allow what a human would be asked about, but not what the
// rules deny.
func TestHookApproves(t *testing.T) {
	for denied, want := range map[string]string{"": "asked\n", "bash": "Permission denied for tool: bash: the tool is disallowed"} {
		b := newBench(t)
		b.hooks(saysSomething("PreToolUse", "bash", `{"decision":"allow"}`))
		b.request.Options.PermissionMode, b.request.Options.DisallowedTools = "approval", []string{denied}
		if got, _ := b.called("bash", `{"command":"echo asked"}`).ToolOutput.Text(); got != want || len(of[*wire.PermissionRequired](b.log)) > 0 {
			t.Errorf("%q is denied: result %q, want %q", denied, got, want)
		}
	}
}

// TestHooksOfTheAgent is H1 and H2 of features.md for the other events.
func TestHooksOfTheAgent(t *testing.T) {
	const stop, system, more = `{"decision":"stop"}`, `{"decision":"system","message":"SYS"}`, `{"decision":"context","message":"CTX"}`
	for _, test := range []struct {
		name  string
		hooks []flow.Hook
		asked int // requests
		last  string
		fired []string
	}{
		{"stop wins", []flow.Hook{saysSomething("TurnStart", "bash", system), saysSomething("TurnStart", "", stop)}, 0, "", []string{"TurnStart system", "TurnStart stop"}},
		{"system wins", []flow.Hook{saysSomething("AgentStart", "", more), saysSomething("AgentStart", "", system)}, 2, `SYS`, []string{"AgentStart context", "AgentStart system"}},
		{"context", []flow.Hook{saysSomething("PostToolUse", "glob", more)}, 2, `"type":"tool_result"},{"text":"CTX","type":"text"}]`, []string{"PostToolUse context"}},
		{"stop after a tool", []flow.Hook{saysSomething("PostToolUse", "", stop)}, 1, "", []string{"PostToolUse stop"}},
		{"no failure", []flow.Hook{saysSomething("PostToolUseFailure", "", stop)}, 2, "", nil},
		{"stop at the end of a turn", []flow.Hook{saysSomething("TurnEnd", "", stop)}, 1, "", []string{"TurnEnd stop"}},
		{"the end", []flow.Hook{saysSomething("AgentStop", "", "")}, 2, "", []string{"AgentStop continue"}},
		{"unknown event", []flow.Hook{saysSomething("Nap", "", stop)}, 2, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Text("ok")))
			b.hooks(test.hooks...)
			b.run()
			requests := b.script.Requests()
			if diff := cmp.Diff(test.fired, fired(b.log)); diff != "" || len(requests) != test.asked {
				t.Errorf("%d requests; fired (-want +got):\n%s", len(requests), diff)
			}
			if test.asked > 0 && !strings.Contains(string(requests[len(requests)-1]), test.last) {
				t.Errorf("last request %s", requests[len(requests)-1])
			}
			if end := of[*wire.AgentComplete](b.log); len(end) != 1 || (end[0].StopReason == "hook") != (test.asked < 2) {
				t.Errorf("end %+v", end)
			}
		})
	}
}

// TestAgentStartOnce kills an agent before each event is stored, up to its first answer, and
// has it go on: the hooks of its start are asked once more only if nothing is on record of
// what they have said, and the model is asked what it would have been asked anyway.
func TestAgentStartOnce(t *testing.T) {
	for _, answer := range []string{`{"decision":"context","message":"CTX"}`, `{"decision":"system","message":"SYS"}`, `{"decision":"stop"}`, ``} {
		begin := func() (*bench, *int) {
			b := newBench(t, apitest.Message(apitest.Text("ok")))
			b.script.ByTurn = true
			asked := 0
			b.request.Hooks = hook.New(hook.Config{
				Hooks: []flow.Hook{{Event: "AgentStart", Subject: "s"}},
				Ask: func(context.Context, string, []byte) ([]byte, error) {
					asked++
					return []byte(answer), nil
				},
			})
			b.request.Options.SystemPrompt = "In a folder."
			return b, &asked
		}
		whole, _ := begin()
		whole.run()
		for n := 1; n < len(whole.log); n++ {
			b, asked := begin()
			b.each = func(agent.Session, *wire.Event) bool { return len(b.log) < n }
			b.run()
			before := *asked
			b.each = nil
			b.resume("")
			b.run()
			told := len(of[*wire.HookFired](b.log[:n])) + len(of[*wire.UserMessage](b.log[:n]))
			if again := *asked - before; (again == 0) != (told > 0) {
				t.Errorf("%q, killed after event %d (%s): asked again %d times, %d events told of it", answer, n, b.log[n-1].Type(), again, told)
			}
			if outcome(b.log) != outcome(whole.log) {
				t.Errorf("%q, killed after event %d (%s): outcome %q", answer, n, b.log[n-1].Type(), outcome(b.log))
			}
			for _, r := range b.script.Requests() {
				if diff := cmp.Diff(string(whole.script.Requests()[0]), string(r)); diff != "" {
					t.Errorf("%q, killed after event %d (%s): prompt (-want +got):\n%s", answer, n, b.log[n-1].Type(), diff)
				}
			}
		}
	}
}

// TestTurnEndIsReviewed kills an agent before each event is stored: what the hooks of its
// turn's end want is done once.
func TestTurnEndIsReviewed(t *testing.T) {
	begin := func() *bench {
		b := newBench(t, apitest.Message(apitest.Text("Done?")), apitest.Message(apitest.Text("Done.")))
		b.script.ByTurn = true
		asked := 0
		b.request.Hooks = hook.New(hook.Config{
			Hooks: []flow.Hook{{Event: "TurnEnd", Subject: "s"}},
			Ask: func(_ context.Context, _ string, question []byte) ([]byte, error) {
				if asked++; strings.Contains(string(question), `"turn":1`) {
					return []byte(`{"decision":"context","message":"The tests fail."}`), nil
				}
				return nil, nil
			},
		})
		return b
	}
	whole := begin()
	whole.run()
	for n := 1; n < len(whole.log); n++ {
		b := begin()
		b.each = func(agent.Session, *wire.Event) bool { return len(b.log) < n }
		b.run()
		b.each = nil
		b.resume("")
		b.run()
		requests := b.script.Requests()
		last := strings.ReplaceAll(string(requests[len(requests)-1]), b.request.Options.Cwd, whole.request.Options.Cwd)
		if diff := cmp.Diff(string(whole.script.Requests()[1]), last); diff != "" || outcome(b.log) != "Done." {
			t.Errorf("killed after event %d (%s): outcome %q, last prompt (-want +got):\n%s", n, b.log[n-1].Type(), outcome(b.log), diff)
		}
	}
}

// TestHookQuestions shows what hooks are asked in the course of an agent's life.
func TestHookQuestions(t *testing.T) {
	var mu sync.Mutex // calls that only read are made side by side
	var asked []string
	b := newBench(t, apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`), apitest.Call("u", "read", `{"path":"no"}`)), apitest.Message(apitest.Text("ok")))
	c := hook.Config{RunID: "r", NodeID: "n", ExecID: "n#1", Ask: func(_ context.Context, _ string, question []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, strings.Replace(strings.TrimSpace(string(question)), `"runId":"r","nodeId":"n","execId":"n#1","cwd":"",`, "", 1))
		return nil, nil
	}}
	for _, event := range flow.HookEvents() {
		c.Hooks = append(c.Hooks, flow.Hook{Event: event, Matcher: "glob", Subject: "s"})
	}
	c.Hooks = append(c.Hooks, flow.Hook{Event: flow.HookPostToolUseFailure, Subject: "s"})
	b.request.Hooks = hook.New(c)
	b.run()
	want := []string{
		`{"event":"AgentStart","task":"Do it."}`,
		`{"event":"TurnStart","turn":1}`,
		`{"event":"PreToolUse","turn":1,"toolName":"glob","toolUseId":"t","toolInput":{"pattern":"*"}}`,
		`{"event":"PostToolUse","turn":1,"toolName":"glob","toolUseId":"t","toolInput":{"pattern":"*"},"result":"No file matches."}`,
		`{"event":"PostToolUseFailure","turn":1,"toolName":"read","toolUseId":"u","toolInput":{"path":"no"},"error":"openat no: no such file or directory"}`,
		`{"event":"TurnEnd","turn":1}`, `{"event":"TurnStart","turn":2}`, `{"event":"TurnEnd","turn":2}`,
		`{"event":"AgentStop","turn":2,"result":"ok"}`,
	}
	slices.SortStableFunc(asked[2:5], func(a, b string) int { return strings.Index(a, "toolName") - strings.Index(b, "toolName") }) // the calls run side by side
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
