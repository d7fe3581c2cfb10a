package claude_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// hooked gives a request hooks, whose commands run in dir.
func hooked(dir string, hooks ...flow.Hook) func(*agent.Request) {
	return func(r *agent.Request) {
		r.Hooks = hook.New(hook.Config{Hooks: hooks, Dir: dir, Env: []string{"PATH=" + os.Getenv("PATH")}, RunID: "r"})
	}
}

// says is a hook that keeps its questions in a file and has a fixed answer.
func says(event, matcher, answer string) flow.Hook {
	return flow.Hook{Event: event, Matcher: matcher, Name: event, Command: []string{"/bin/sh", "-c", "cat >>questions; printf '%s' '" + answer + "'"}}
}

// callback is the program's question to hooks, and the line that tells what it was answered.
func callback(id, input string) string {
	return fmt.Sprintf(`> {"type":"control_request","request_id":%q,"request":{"subtype":"hook_callback","callback_id":"x","input":{%s}}}`, id, input) + "\n" +
		"< control_response\n" + `> {"type":"note","reply":"${reply}"}` + "\n"
}

// story lists the events that hooks have to do with, and what the program was answered.
func story(events []*wire.Event) []string {
	var out []string
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.HookFired:
			out = append(out, strings.Join(strings.Fields("fired "+e.CallID+" "+p.HookEvent+" "+p.Decision+" "+p.Error), " "))
		case *wire.PermissionRequired:
			out = append(out, fmt.Sprint("asked about ", p.ToolInput.Any()))
		case *wire.PermissionDecided:
			s := fmt.Sprintf("%s %s by %s", e.CallID, p.Decision, p.By)
			if p.Note != "" {
				s += " " + p.Note
			}
			if p.UpdatedInput != nil {
				s += fmt.Sprint(" ", p.UpdatedInput.Any())
			}
			out = append(out, s)
		case *wire.ToolState:
			out = append(out, fmt.Sprintf("%s %s", e.CallID, p.To))
		case *wire.AgentTool:
			out = append(out, fmt.Sprintf("%s result of %v denied %v", e.CallID, p.ToolInput.Any(), p.Denied))
		case *wire.RawMessage:
			if reply, ok := p.Data.Get("reply").Text(); ok {
				out = append(out, reply)
			}
		case *wire.AgentComplete:
			out = append(out, "complete "+p.StopReason)
		}
	}
	return out
}

// What hooks say before a tool is used is on record before the program is answered; the
// call begins, if it does, by their answer.
func TestHookBeforeTool(t *testing.T) {
	const ls, rm = `{"decision":"modify","input":{"command":"ls"}}`, `map[command:rm]`
	for _, test := range []struct {
		name, mode string
		hooks      []string
		want       []string
	}{
		{"none matches", bypassing, nil, []string{"t1 EXECUTING", `{"continue":true}`, "t1 result of " + rm + " denied false"}},
		{"continue", bypassing, []string{""}, []string{"fired t1 PreToolUse continue", "t1 EXECUTING", `{"continue":true}`, "t1 result of " + rm + " denied false"}},
		{"deny", bypassing, []string{ls, `{"decision":"deny","reason":"no"}`}, []string{
			"fired t1 PreToolUse modify", "fired t1 PreToolUse deny", "t1 deny by hook no",
			`{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"no"}}`, "t1 result of " + rm + " denied true",
		}},
		{"modify", bypassing, []string{ls}, []string{
			"fired t1 PreToolUse modify", "t1 allow by hook map[command:ls]", "t1 EXECUTING",
			`{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow","updatedInput":{"command":"ls"}}}`, "t1 result of map[command:ls] denied false",
		}},
		{"allow", "default", []string{`{"decision":"allow"}`}, []string{
			"fired t1 PreToolUse allow", "t1 allow by hook", "t1 EXECUTING",
			`{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow"}}`, "t1 result of " + rm + " denied false",
		}},
		{"modify what is asked about", "default", []string{ls}, []string{
			"fired t1 PreToolUse modify",
			`{"hookSpecificOutput":{"hookEventName":"PreToolUse","updatedInput":{"command":"ls"}}}`, "t1 result of map[command:ls] denied false",
		}},
		{"failure", "default", []string{"?"}, []string{
			"fired t1 PreToolUse its answer: invalid character '?' looking for beginning of value", `{"continue":true}`, "t1 result of " + rm + " denied false",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			script := start + "> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"rm"}}`) + "\n" +
				callback("q1", `"hook_event_name":"PreToolUse","permission_mode":"`+test.mode+`","tool_name":"Bash","tool_input":{"command":"rm"},"tool_use_id":"t1"`) +
				`> {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a.go","is_error":true}]}}` + "\n" + ending
			hooks := []flow.Hook{says(flow.HookPreToolUse, "Write", `{"decision":"deny"}`)}
			for _, a := range test.hooks {
				hooks = append(hooks, says(flow.HookPreToolUse, "Bash", a))
			}
			got := story(drain(t, session(t, script, hooked(t.TempDir(), hooks...)), nil))
			if diff := cmp.Diff(append(test.want, "complete "), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

const bypassing = "bypassPermissions"

// The program's events are asked about under wake's names; what it tells for hooks alone
// is no event.
func TestHookEvents(t *testing.T) {
	script := start +
		callback("q1", `"hook_event_name":"UserPromptSubmit","prompt":"Go."`) + replay +
		"> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}`) + "\n" +
		callback("q2", `"hook_event_name":"PostToolUse","tool_name":"Bash","tool_input":{"command":"ls"},"tool_response":{"stdout":"a.go"},"tool_use_id":"t1","agent_id":"a1"`) +
		callback("q3", `"hook_event_name":"PostToolUseFailure","tool_name":"Bash","tool_input":{"command":"ls"},"error":"Exit code 1","tool_use_id":"t1"`) +
		`> {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a.go"}]}}` + "\n" +
		callback("q4", `"hook_event_name":"Stop","last_assistant_message":"Done."`) + ending
	const more = `{"decision":"context","message":"CTX"}`
	dir := t.TempDir()
	hooks := []flow.Hook{
		says(flow.HookAgentStart, "", `{"decision":"system","message":"SYS"}`), says(flow.HookTurnStart, "", more), says(flow.HookPostToolUse, "", more),
		says(flow.HookPostToolUseFailure, "", ""), says(flow.HookTurnEnd, "", more), says(flow.HookAgentStop, "", ""),
	}
	note := `> {"type":"note","reply":"${argv}"}` + "\n"
	got := story(drain(t, session(t, strings.Replace(script, start, start+note, 1), hooked(dir, hooks...)), nil))
	if len(got) < 2 || !strings.Contains(got[1], "--append-system-prompt=SYS") {
		t.Fatalf("got %q", got)
	}
	got[1] = ""
	want := []string{
		"fired AgentStart system", "",
		"fired TurnStart context", `{"hookSpecificOutput":{"additionalContext":"CTX","hookEventName":"UserPromptSubmit"}}`,
		"fired t1 PostToolUse context", `{"hookSpecificOutput":{"additionalContext":"CTX","hookEventName":"PostToolUse"}}`,
		"fired t1 PostToolUseFailure continue", `{"continue":true}`,
		"t1 result of map[command:ls] denied false",
		"fired TurnEnd context", `{"decision":"block","reason":"CTX"}`,
		"fired AgentStop continue", "complete ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b, err := os.ReadFile(filepath.Join(dir, "questions"))
	if err != nil {
		t.Fatal(err)
	}
	common := `"runId":"r","nodeId":"","execId":"","cwd":"` + dir + `",`
	questions := []string{
		`{"event":"AgentStart","task":"Go."}`, `{"event":"TurnStart","turn":1,"task":"Go."}`,
		`{"event":"PostToolUse","agentId":"a1","turn":1,"toolName":"Bash","toolUseId":"t1","toolInput":{"command":"ls"},"result":{"stdout":"a.go"}}`,
		`{"event":"PostToolUseFailure","turn":1,"toolName":"Bash","toolUseId":"t1","toolInput":{"command":"ls"},"error":"Exit code 1"}`,
		`{"event":"TurnEnd","turn":1,"result":"Done."}`, `{"event":"AgentStop","turn":1,"result":"Done."}`, "",
	}
	if diff := cmp.Diff(questions, strings.Split(strings.ReplaceAll(string(b), common, ""), "\n")); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
}

// Only what hooks are there for is asked for.
func TestHookCallbacks(t *testing.T) {
	for want, hooks := range map[string][]flow.Hook{
		"PreToolUse 86400":             nil,
		"PreToolUse 86411, Stop 86402": {says(flow.HookPreToolUse, "", ""), {Event: flow.HookTurnEnd, Command: []string{"true"}, TimeoutMs: 1500}},
	} {
		script := strings.Replace(start, "\n", "\n"+`> {"type":"note","reply":"${callbacks}"}`+"\n", 1) + ending
		got := story(drain(t, session(t, script, hooked("", hooks...)), nil))
		if len(got) == 0 || got[0] != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A hook that stops the agent ends it with what it has, even if the program hasn't echoed
// its prompt.
func TestHookStops(t *testing.T) {
	const stop = `{"decision":"stop","reason":"enough"}`
	answer := `{"continue":false,"stopReason":"enough"}`
	for event, want := range map[string][]string{
		flow.HookAgentStart: {"fired AgentStart stop", "complete hook"},
		flow.HookTurnStart:  {"fired TurnStart stop", answer, "complete hook"},
	} {
		script := start + callback("q1", `"hook_event_name":"UserPromptSubmit","prompt":"Go."`) + ending
		got := story(drain(t, session(t, script, hooked(t.TempDir(), says(event, "", stop))), nil))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", event, diff)
		}
	}
}

// The program takes its question back, as it does when it is interrupted: the hook ends,
// and nobody is answered.
func TestHookWithdrawn(t *testing.T) {
	dir := t.TempDir()
	begun := filepath.Join(dir, "begun")
	script := start + replay + "> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"rm"}}`) + "\n" +
		`> {"type":"control_request","request_id":"q1","request":{"subtype":"hook_callback","callback_id":"x","input":{"hook_event_name":"PreToolUse","permission_mode":"bypassPermissions","tool_name":"Bash","tool_input":{},"tool_use_id":"t1"}}}` + "\n" +
		"await " + begun + "\n" + `> {"type":"control_cancel_request","request_id":"q1"}` + "\n< interrupt\n" +
		`> {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"x","is_error":true}]}}` + "\n" + ending
	s := session(t, script, hooked(dir, flow.Hook{Event: flow.HookPreToolUse, Command: []string{"/bin/sh", "-c", ": >begun; exec sleep 1000"}}))
	got := story(drain(t, s, func(e *wire.Event) {
		if _, ok := e.Payload.(*wire.HookFired); ok {
			if err := s.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}))
	want := []string{"fired t1 PreToolUse context canceled", "t1 result of map[command:rm] denied false", "complete "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A hook that takes long between two turns isn't taken for an agent that has nothing to
// do any more.
func TestSlowHookBetweenTurns(t *testing.T) {
	script := start + replay + "> " + message("m1", "", textOf("One.")) + "\n< user\n> " + success + "\n" +
		callback("q1", `"hook_event_name":"UserPromptSubmit","prompt":"More."`) + replay + "> " + message("m2", "", textOf("Two.")) + "\n" + ending
	s := session(t, script, hooked(t.TempDir(), flow.Hook{Event: flow.HookTurnStart, Command: []string{"sleep", "0.7"}}))
	got := story(drain(t, s, func(e *wire.Event) {
		if p, ok := e.Payload.(*wire.AgentText); ok && p.Content == "One." {
			if err := s.Send(t.Context(), agent.Message{Content: "More."}); err != nil {
				t.Error(err)
			}
		}
	}))
	if diff := cmp.Diff([]string{"fired TurnStart continue", `{"continue":true}`, "complete "}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An agent that a hook has ended waits for no answer of its parent any more.
func TestHookStopsWhoAsks(t *testing.T) {
	script := strings.TrimSuffix(asks, "> "+success+"\n") + callback("q9", `"hook_event_name":"Stop","last_assistant_message":"I wait."`) + ending
	got := story(drain(t, session(t, script, hooked(t.TempDir(), says(flow.HookTurnEnd, "", `{"decision":"stop"}`))), nil))
	if len(got) == 0 || got[len(got)-1] != "complete hook" {
		t.Errorf("got %q", got)
	}
}
