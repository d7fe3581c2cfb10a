package native_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"wake/internal/agent"
	"wake/internal/agent/native/apitest"
	"wake/pkg/wire"
)

// says is a hook that is a command with a fixed answer.
func says(event, matcher, answer string) agent.Hook {
	return agent.Hook{Event: event, Matcher: matcher, Name: matcher + answer, Command: []string{"/bin/sh", "-c", "cat >/dev/null; printf '%s' '" + answer + "'"}}
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
		hooks       []agent.Hook
		tool, input string
		want        string
		fired       int
	}{
		{"none", nil, "bash", bash, "asked\n", 0},
		{"deny and modify", []agent.Hook{says("PreToolUse", "", first), says("PreToolUse", "", deny)}, "bash", bash, "Permission denied for tool: bash: R", 2},
		{"first modify", []agent.Hook{says("PreToolUse", "", allow), says("PreToolUse", "", first), says("PreToolUse", "", second)}, "bash", bash, "first\n", 3},
		{"matches", []agent.Hook{says("PreToolUse", "write|edit", deny)}, "edit", `{}`, "Permission denied for tool: edit: R", 1},
		{"matches the other", []agent.Hook{says("PreToolUse", "write|edit", deny)}, "write", `{}`, "Permission denied for tool: write: R", 1},
		{"matches not", []agent.Hook{says("PreToolUse", "write|edit", deny)}, "bash", bash, "asked\n", 0},
		{"bad expression", []agent.Hook{says("PreToolUse", "(", deny)}, "bash", bash, "asked\n", 0},
		{"failure before deny", []agent.Hook{{Event: "PreToolUse", Command: []string{"/bin/false"}}, says("PreToolUse", "", deny)}, "bash", bash, "Permission denied for tool: bash: R", 2},
		{"no such program", []agent.Hook{{Event: "PreToolUse", Command: []string{"/no/such"}}}, "bash", bash, "asked\n", 1},
		{"no JSON", []agent.Hook{says("PreToolUse", "", "yes")}, "bash", bash, "asked\n", 1},
		{"another's decision", []agent.Hook{says("PreToolUse", "", `{"decision":"stop"}`)}, "bash", bash, "asked\n", 1},
		{"too slow", []agent.Hook{{Event: "PreToolUse", Command: []string{"/bin/sleep", "60"}, TimeoutMs: 30}}, "bash", bash, "asked\n", 1},
		{"nothing to ask", []agent.Hook{{Event: "PreToolUse"}}, "bash", bash, "asked\n", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			b.request.Options.Hooks = test.hooks
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
	b.request.Options.Hooks = []agent.Hook{says("PreToolUse", "", `{"decision":"modify","input":{"command":"echo safe"}}`)}
	b.request.Options.RequireApproval = []string{"bash"}
	b.request.Options.Decide = func(_ context.Context, p agent.Permission) agent.Verdict {
		command, _ := p.Input.Get("command").Text()
		return agent.Verdict{Allow: command == "echo safe"}
	}
	if got, _ := b.called("bash", `{"command":"echo danger"}`).ToolOutput.Text(); got != "safe\n" {
		t.Errorf("result %q", got)
	}
}

// TestHooksOfTheAgent is H1 and H2 of features.md for the other events.
func TestHooksOfTheAgent(t *testing.T) {
	const stop, system, more = `{"decision":"stop"}`, `{"decision":"system","message":"SYS"}`, `{"decision":"context","message":"CTX"}`
	for _, test := range []struct {
		name  string
		hooks []agent.Hook
		asked int // requests
		last  string
		fired []string
	}{
		{"stop wins", []agent.Hook{says("TurnStart", "bash", system), says("TurnStart", "", stop)}, 0, "", []string{"TurnStart system", "TurnStart stop"}},
		{"system wins", []agent.Hook{says("AgentStart", "", more), says("AgentStart", "", system)}, 2, `SYS`, []string{"AgentStart context", "AgentStart system"}},
		{"context", []agent.Hook{says("PostToolUse", "glob", more)}, 2, `"type":"tool_result"},{"text":"CTX","type":"text"}]`, []string{"PostToolUse context"}},
		{"stop after a tool", []agent.Hook{says("PostToolUse", "", stop)}, 1, "", []string{"PostToolUse stop"}},
		{"no failure", []agent.Hook{says("PostToolUseFailure", "", stop)}, 2, "", nil},
		{"stop at the end of a turn", []agent.Hook{says("TurnEnd", "", stop)}, 1, "", []string{"TurnEnd stop"}},
		{"the end", []agent.Hook{says("AgentStop", "", "")}, 2, "", []string{"AgentStop continue"}},
		{"unknown event", []agent.Hook{says("Nap", "", stop)}, 2, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Text("ok")))
			b.request.Options.Hooks = test.hooks
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

// TestHookTransports asks over HTTP and NATS.
func TestHookTransports(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		_, _ = fmt.Fprint(&body, r.Method, " ", r.Header.Get("Content-Type"))
		asked = append(asked, body.String())
		_, _ = fmt.Fprint(w, `{"decision":"context","message":"CTX"}`)
	}))
	defer server.Close()
	b := newBench(t, apitest.Message(apitest.Text("ok")))
	b.request.Options.Hooks = []agent.Hook{{Event: "TurnStart", URL: server.URL}, {Event: "AgentStop", Subject: "hooks.stop"}}
	p := b.provider()
	p.Client = &http.Client{Transport: split{b.script, server.Client().Transport}}
	p.Ask = func(_ context.Context, subject string, question []byte) ([]byte, error) {
		asked = append(asked, subject+" "+string(question))
		return nil, nil
	}
	s, err := p.Start(t.Context(), b.request)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		b.store(e)
	}
	want := []string{"POST application/json", `hooks.stop {"cwd":"` + b.request.Options.Cwd + `","event":"AgentStop","execId":"n#1","nodeId":"n","result":"ok","runId":"r","turn":1}`}
	if diff := cmp.Diff(want, asked); diff != "" || !strings.Contains(string(b.script.Requests()[0]), "CTX") {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// split sends requests for the model to a script and the others elsewhere.
type split struct{ script, other http.RoundTripper }

func (s split) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Host, "anthropic.com") {
		return s.script.RoundTrip(r)
	}
	return s.other.RoundTrip(r)
}
