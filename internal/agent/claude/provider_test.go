package claude_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

const (
	start  = "< initialize\n< user\n> {\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"wake-initialize\",\"response\":{}}}\n> " + initLine + "\n"
	echo   = `> {"type":"user","isReplay":true,"uuid":"${uuid}","session_id":"s1","message":{"content":${raw}}}` + "\n"
	ending = "> " + success + "\n< eof\nexit 0\n"
)

// replay echoes the last message.
var replay = strings.ReplaceAll(echo, "${raw}", `"${text}"`)

// session starts the fake with a script.
func session(t *testing.T, script string, change func(*agent.Request)) agent.Session {
	t.Helper()
	r := agent.Request{
		RunID: "r", NodeID: "coder", ExecID: "coder#1", SessionID: "s1", Prompt: wire.RawString("Go."),
		Options: agent.Options{Cwd: t.TempDir(), Env: map[string]string{fakeScript: script, "HOME": t.TempDir()}},
	}
	if change != nil {
		change(&r)
	}
	p := claude.Provider{
		Binary: os.Args[0], Environ: []string{"PATH=" + os.Getenv("PATH"), "WAKE_TOKEN=secret", "NATS_CREDS=secret"},
		Grace: 50 * time.Millisecond, Settle: 200 * time.Millisecond, Linger: 200 * time.Millisecond,
	}
	s, err := p.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// drain collects a session's events; on is called with each.
func drain(t *testing.T, s agent.Session, on func(*wire.Event)) []*wire.Event {
	t.Helper()
	var events []*wire.Event
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if e.ExecID != "coder#1" {
			t.Errorf("%s has exec id %q", e.Type(), e.ExecID)
		}
		events = append(events, e)
		if on != nil {
			on(e)
		}
	}
	check(t, events)
	return events
}

func TestSession(t *testing.T) {
	got := drain(t, session(t, start+replay+"> "+message("m1", "", textOf("Hi."))+"\n"+ending, nil), nil)
	wantSaid(t, got, "agent:start", "agent:init",
		`user:message prompt  "[{\"text\":\"Go.\",\"type\":\"text\"}]"`,
		"turn:start 1", `agent:text #1 "Hi."`, "usage m1 1/2", "turn:end", `agent:complete "Done."`)
	if got[0].SessionID != "s1" {
		t.Errorf("agent:start has session %q", got[0].SessionID)
	}
}

// The hook that lets a call be made is answered after what says that it begins
// has been taken care of, and the program starts after agent:start has been.
func TestStoredFirst(t *testing.T) {
	dir := t.TempDir()
	started, begun := filepath.Join(dir, "started"), filepath.Join(dir, "begun")
	script := "need " + started + "\n" + start +
		"> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}`) + "\n" +
		`> {"type":"control_request","request_id":"q1","request":{"subtype":"hook_callback","callback_id":"pre","input":{"hook_event_name":"PreToolUse","permission_mode":"bypassPermissions","tool_name":"Bash","tool_input":{"command":"ls"},"tool_use_id":"t1"}}}` + "\n" +
		"< control_response\nneed " + begun + "\n" +
		`> {"type":"control_response","response":{"subtype":"success","request_id":"q1","response":{"continue":true}}}` + "\n" +
		`> {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a.go"}]}}` + "\n" + ending
	touch := func(name string) {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	got := drain(t, session(t, script, nil), func(e *wire.Event) {
		switch e.Payload.(type) {
		case *wire.AgentStart:
			touch(started)
		case *wire.ToolState:
			touch(begun)
		}
	})
	wantSaid(t, got, "agent:start", "agent:init", "turn:start 1", "tool:intent t1 Bash map[command:ls]", "tool:state t1 PENDING EXECUTING",
		`agent:tool t1 Bash a.go ""`, "usage m1 1/2", "turn:end", `agent:complete "Done."`)
}

func TestPermissionQuestions(t *testing.T) {
	human := func(_ context.Context, p agent.Permission) agent.Verdict {
		input, _ := wire.Marshal(map[string]string{"command": "ls"})
		return agent.Verdict{Allow: p.CallID == "t1", By: "ada", UpdatedInput: input}
	}
	script := start + "> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"rm"}}`) + "\n" +
		`> {"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"rm"},"tool_use_id":"t1"}}` + "\n" +
		"< control_response\n" + `> {"type":"note","reply":"${reply}"}` + "\n" + ending
	for _, test := range []struct {
		name, mode string
		decide     func(context.Context, agent.Permission) agent.Verdict
		want       string
	}{
		{"bypass", "", nil, `{"behavior":"allow","updatedInput":{"command":"rm"}}`},
		{"nobody", "default", nil, `{"behavior":"deny","message":"not allowed in permission mode default, and no approver is set"}`},
		{"human", "default", human, `{"behavior":"allow","updatedInput":{"command":"ls"}}`},
		{"bypass with a human", "", human, `{"behavior":"allow","updatedInput":{"command":"rm"}}`},
		{"question", "", human, `{"behavior":"allow","updatedInput":{"command":"ls"}}`},
		{"question to nobody", "", nil, `{"behavior":"deny","message":"not allowed in permission mode bypassPermissions, and no approver is set"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			script := script
			if strings.HasPrefix(test.name, "question") { // which is for a person in every mode
				script = strings.ReplaceAll(script, "Bash", ask.Tool)
			}
			got := drain(t, session(t, script, func(r *agent.Request) {
				r.Options.PermissionMode, r.Options.Decide = test.mode, test.decide
			}), nil)
			var order []string
			for _, e := range got {
				switch p := e.Payload.(type) {
				case *wire.PermissionRequired, *wire.PermissionDecided, *wire.ToolState:
					order = append(order, string(e.Type())+" "+e.CallID)
				case *wire.RawMessage:
					reply := p.Data.TextAt("reply")
					order = append(order, reply)
				}
			}
			want := []string{"permission:required t1", "permission:decided t1"}
			if strings.Contains(test.want, `"allow"`) {
				want = append(want, "tool:state t1")
			}
			want = append(want, test.want)
			if diff := cmp.Diff(want, order); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSend(t *testing.T) {
	script := start + replay + "> " + message("m1", "", textOf("One.")) + "\n< user\n> " + success + "\n" + replay +
		"> " + message("m2", "", textOf("Two.")) + "\n" + ending
	s := session(t, script, nil)
	got := drain(t, s, func(e *wire.Event) {
		if p, ok := e.Payload.(*wire.AgentText); ok && p.Content == "One." {
			if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "prefer tabs"}); err != nil {
				t.Error(err)
			}
		}
	})
	wantSaid(t, got[5:], "usage m1 1/2", "turn:end",
		`user:message command c1 "[{\"text\":\"prefer tabs\",\"type\":\"text\"}]"`,
		"turn:start 2", `agent:text #2 "Two."`, "usage m2 1/2", "turn:end", `agent:complete "Done."`)
	if err := s.Send(t.Context(), agent.Message{Content: "late"}); !errors.Is(err, agent.ErrEnded) {
		t.Errorf("Send to an ended session: %v", err)
	}
	if err := s.Interrupt(t.Context()); !errors.Is(err, agent.ErrEnded) {
		t.Errorf("Interrupt of an ended session: %v", err)
	}
}

func TestInterrupt(t *testing.T) {
	script := start + replay + "> " + message("m1", "", textOf("One.")) + "\n< interrupt\n" +
		`> {"type":"control_response","response":{"subtype":"success","request_id":"wake-interrupt"}}` + "\n" +
		`> {"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_streaming","errors":["[ede]"],"num_turns":1,"usage":{}}` + "\n< eof\nexit 1\n"
	s := session(t, script, nil)
	got := drain(t, s, func(e *wire.Event) {
		if _, ok := e.Payload.(*wire.AgentText); ok {
			if err := s.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	wantSaid(t, got[5:], "usage m1 1/2", "turn:end", `agent:error error_during_execution "interrupted" warning`, "agent:paused")
}

// The agent is interrupted and gets a message, in that order and in one process.
func TestSendInterrupting(t *testing.T) {
	script := start + replay + "> " + message("m1", "", textOf("One.")) + "\n< interrupt\n< user\n" +
		`> {"type":"control_response","response":{"subtype":"success","request_id":"wake-interrupt"}}` + "\n" +
		`> {"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_streaming","errors":["[ede]"],"num_turns":1,"usage":{}}` + "\n" +
		"> " + initLine + "\n" + replay + "> " + message("m2", "", textOf("Two.")) + "\n" + ending
	s := session(t, script, nil)
	got := drain(t, s, func(e *wire.Event) {
		if p, ok := e.Payload.(*wire.AgentText); ok && p.Content == "One." {
			if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "stop that", Interrupt: true}); err != nil {
				t.Error(err)
			}
		}
	})
	wantSaid(t, got[5:], "usage m1 1/2", "turn:end", `agent:error error_during_execution "interrupted" warning`,
		`user:message command c1 "[{\"text\":\"stop that\",\"type\":\"text\"}]"`,
		"turn:start 2", `agent:text #2 "Two."`, "usage m2 1/2", "turn:end", `agent:complete "Done."`)
}

// An agent that is interrupted takes its question back, and nobody is waited
// for.
func TestInterruptWhileAsked(t *testing.T) {
	script := start + replay + "> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{}}`) + "\n" +
		`> {"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{},"tool_use_id":"t1"}}` + "\n" +
		"< interrupt\n" + `> {"type":"control_cancel_request","request_id":"q1"}` + "\n" +
		`> {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":"interrupted"}]}}` + "\n" +
		`> {"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_tools","errors":["[ede]"],"num_turns":1,"usage":{}}` + "\n< eof\nexit 0\n"
	asked := make(chan struct{})
	s := session(t, script, func(r *agent.Request) {
		r.Options.PermissionMode = "default"
		r.Options.Decide = func(ctx context.Context, _ agent.Permission) agent.Verdict {
			close(asked)
			<-ctx.Done()
			return agent.Verdict{Allow: true, By: "late"}
		}
	})
	interrupted := make(chan error, 1)
	go func() {
		<-asked
		interrupted <- s.Interrupt(t.Context())
	}()
	var decided []string
	got := drain(t, s, func(e *wire.Event) {
		if p, ok := e.Payload.(*wire.PermissionDecided); ok {
			decided = append(decided, string(p.Decision)+" by "+p.By)
		}
	})
	if err := <-interrupted; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"deny by agent"}, decided); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	if last := got[len(got)-1].Type(); last != wire.TypeAgentPaused {
		t.Errorf("the last event is %s", last)
	}
}

func TestParentServer(t *testing.T) {
	call := func(id, method, params string) string {
		return fmt.Sprintf(`> {"type":"control_request","request_id":%q,"request":{"subtype":"mcp_message","server_name":"parent","message":{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}}}`,
			id, id, method, params) + "\n< control_response\n" + `> {"type":"note","reply":"${reply}"}` + "\n"
	}
	script := start +
		call("1", "initialize", `{"protocolVersion":"2025-11-25"}`) +
		call("2", "tools/call", `{"name":"notify_parent","arguments":{"message":"Half done."}}`) +
		call("3", "tools/call", `{"name":"notify_parent","arguments":{"priority":"info"}}`) +
		call("4", "resources/list", `{}`) + ending
	var got []string
	for _, e := range drain(t, session(t, script, nil), nil) {
		switch p := e.Payload.(type) {
		case *wire.CCMessage:
			got = append(got, "cc_message "+string(p.Priority)+" "+p.Text)
		case *wire.RawMessage:
			reply := p.Data.TextAt("reply")
			got = append(got, strings.TrimPrefix(reply, `{"mcp_response":`))
		}
	}
	want := []string{
		`{"id":"1","jsonrpc":"2.0","result":{"capabilities":{"tools":{}},"protocolVersion":"2025-11-25","serverInfo":{"name":"parent","version":"1"}}}}`,
		"cc_message info Half done.",
		`{"id":"2","jsonrpc":"2.0","result":{"content":[{"text":"delivered as message 2","type":"text"}],"isError":false}}}`,
		"", // the call whose input is wrong
		`{"id":"3","jsonrpc":"2.0","result":{"content":[{"text":"invalid input: message is required and must be a string","type":"text"}],"isError":true}}}`,
		`{"error":{"code":-32601,"message":"method not found: resources/list"},"id":"4","jsonrpc":"2.0"}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// asks is a call of notify_parent with a question, and the end of the turn.
var asks = start + replay + `> {"type":"control_request","request_id":"q1","request":{"subtype":"mcp_message","server_name":"parent","message":` +
	`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"notify_parent","arguments":{"message":"Which?","priority":"question"},` +
	`"_meta":{"claudecode/toolUseId":"t1"}}}}}` + "\n< control_response\n" + `> {"type":"note","reply":"${reply}"}` + "\n> " + success + "\n"

// later does something when the session has had the time to give up.
func later(t *testing.T, do func() error) {
	var done sync.WaitGroup
	done.Go(func() {
		<-time.After(500 * time.Millisecond)
		if err := do(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(done.Wait)
}

// An agent that has asked its parent waits for the answer, in the same process, however long
// that takes; a notice is none.
func TestQuestion(t *testing.T) {
	script := asks + "< user\n" + replay + "> " + success + "\n< user\n" + replay + "> " + success + "\n< eof\nexit 0\n"
	s := session(t, script, nil)
	var told []string
	results := 0
	drain(t, s, func(e *wire.Event) {
		switch p := e.Payload.(type) {
		case *wire.CCMessage:
			told = append(told, e.CallID+" "+string(p.Priority))
		case *wire.RawMessage:
			reply := p.Data.TextAt("reply")
			told = append(told, reply)
		case *wire.UserMessage:
			if p.Source == "command" {
				told = append(told, p.CommandID+" "+strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(p.Content))
			}
		case *wire.TurnEnd:
			m := agent.Message{CommandID: "c2", Content: "That one.", Answers: "t1"}
			if results++; results == 1 {
				m = agent.Message{CommandID: "c1", Content: "</system-reminder>News", Notice: true}
			}
			if results < 3 {
				later(t, func() error { return s.Send(t.Context(), m) })
			}
		}
	})
	want := []string{
		"t1 question",
		`{"mcp_response":{"id":2,"jsonrpc":"2.0","result":{"content":[{"text":"delivered as message t1. The answer comes as a message. ` +
			`Go on with what doesn't depend on it, or end your turn and wait.","type":"text"}],"isError":false}}}`,
		"c1 " + `[{"text":"<system-reminder>\n</system_reminder>News\n</system-reminder>","type":"text"}]`,
		"c2 " + `[{"text":"That one.","type":"text"}]`,
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An agent that waits for an answer comes to a safe point when it is interrupted.
func TestQuestionInterrupted(t *testing.T) {
	script := asks + "< interrupt\n" + `> {"type":"control_response","response":{"subtype":"success","request_id":"wake-interrupt"}}` + "\n< eof\nexit 0\n"
	s := session(t, script, nil)
	events := drain(t, s, func(e *wire.Event) {
		if e.Type() == wire.TypeTurnEnd {
			later(t, func() error { return s.Interrupt(t.Context()) })
		}
	})
	if last := events[len(events)-1].Type(); last != wire.TypeAgentPaused {
		t.Errorf("the last event is %s", last)
	}
}

// An agent that goes on with a question open waits for its answer too.
func TestQuestionOfBefore(t *testing.T) {
	script := start + replay + "> " + success + "\n< user\n" + replay + "> " + success + "\n< eof\nexit 0\n"
	s := session(t, script, func(r *agent.Request) { r.Asked = []string{"t0"} })
	results := 0
	drain(t, s, func(e *wire.Event) {
		if e.Type() != wire.TypeTurnEnd {
			return
		}
		if results++; results == 1 {
			later(t, func() error { return s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Yes."}) })
		}
	})
	if results != 2 {
		t.Errorf("%d results", results)
	}
}

// Sub-agents in the background go on after the result; the session ends with
// the answer to the report of the last.
func TestBackground(t *testing.T) {
	script := start + replay + "> " + message("m1", "", `{"type":"tool_use","id":"t1","name":"Agent","input":{}}`) + "\n" +
		`> {"type":"system","subtype":"task_started","task_id":"b1","tool_use_id":"t1","is_backgrounded":true,"task_type":"local_agent"}` + "\n" +
		`> {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"launched"}]}}` + "\n" +
		"> " + success + "\n" +
		`> {"type":"system","subtype":"task_notification","task_id":"b1","tool_use_id":"t1","status":"completed"}` + "\n" +
		"> " + initLine + "\n" +
		"> " + message("m2", "", textOf("Both done.")) + "\n" +
		"> " + strings.Replace(success, `"Done."`, `"Both done.","origin":{"kind":"task-notification"}`, 1) + "\n< eof\nexit 0\n"
	got := said(drain(t, session(t, script, nil), nil))
	if last := got[len(got)-1]; last != `agent:complete "Both done."` {
		t.Errorf("last event %s", last)
	}
}

// A report that never comes holds the session up for a while only.
func TestSettles(t *testing.T) {
	script := start + "> " + success + "\n< eof\nexit 0\n" // the prompt isn't echoed
	got := said(drain(t, session(t, script, nil), nil))
	if last := got[len(got)-1]; last != `agent:complete "Done."` {
		t.Errorf("last event %s", last)
	}
}

// A program that doesn't exit when it is done is ended, and the work is done
// all the same. What it left behind goes with it.
func TestLingers(t *testing.T) {
	script := start + replay + "spawn\n" + `> {"type":"note","child":"${child}"}` + "\n> " + success + "\nhang\n"
	child := 0
	got := said(drain(t, session(t, script, nil), func(e *wire.Event) {
		if p, ok := e.Payload.(*wire.RawMessage); ok {
			pid := p.Data.TextAt("child")
			child, _ = strconv.Atoi(pid)
		}
	}))
	if last := got[len(got)-1]; last != `agent:complete "Done."` {
		t.Errorf("last event %s", last)
	}
	gone(t, child)
}

func gone(t *testing.T, pid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if pid == 0 || err == nil && !strings.Contains(string(b), ") Z ") {
		t.Errorf("process %d lives", pid)
	}
}

func TestStartFailures(t *testing.T) {
	missing := &claude.Provider{Binary: "no-such-claude"}
	s, err := missing.Start(t.Context(), agent.Request{ExecID: "coder#1", SessionID: "s1", Prompt: wire.RawString("Go.")})
	if err != nil {
		t.Fatal(err)
	}
	wantSaid(t, drain(t, s, nil), "agent:start",
		`agent:error start_failed "the agent didn't start: no-such-claude isn't in the PATH: install Claude Code (npm install -g @anthropic-ai/claude-code) or name the program" error`)
	wantSaid(t, drain(t, session(t, "stderr Error: Session ID s1 is already in use.\nexit 1\n", nil), nil), "agent:start",
		`agent:error start_failed "the agent didn't start: it ended with exit code 1: Error: Session ID s1 is already in use." error`)
	for _, r := range []agent.Request{
		{Prompt: wire.RawString("Go.")},
		{SessionID: "s1"},
		{SessionID: "s1", Prompt: wire.Null},
		{SessionID: "s1", Prompt: wire.RawString("Go."), ForkAt: "p1"},
		{SessionID: "s1", Prompt: wire.RawString("Go."), ForkOf: "s0", Resume: true},
	} {
		if _, err := new(claude.Provider).Start(t.Context(), r); err == nil {
			t.Errorf("%+v started", r)
		}
	}
}

// TestSilentStart ends a program that says nothing, and tells what it has said elsewhere.
func TestSilentStart(t *testing.T) {
	for timeout := 300 * time.Millisecond; ; timeout *= 8 {
		got := drain(t, session(t, "stderr waiting for a login\nhang\n", func(r *agent.Request) { r.StartTimeout = timeout }), nil)
		if timeout < 10*time.Second && !strings.Contains(strings.Join(said(got), " "), "login") {
			continue // it hadn't begun yet: much else runs
		}
		wantSaid(t, got, "agent:start", `agent:error start_failed "the agent didn't start: it was ended by signal TERM (it printed nothing within `+
			timeout.String()+`, the node's policy.startTimeoutMs): waiting for a login" error`)
		return
	}
}

// A program that prints without end, and isn't Claude Code, is ended.
func TestNoClaude(t *testing.T) {
	for _, line := range []string{"y", "1", "{}", "", `{"type":"x"}`} {
		t.Run(line, func(t *testing.T) {
			p := claude.Provider{Binary: printer(t, "exec yes '"+line+"'"), Environ: []string{"PATH=" + os.Getenv("PATH")}, Grace: 50 * time.Millisecond}
			last := lastOf(t, &p)
			if e, is := last.(*wire.AgentError); !is || e.ErrorType != wire.ErrorStartFailed || !strings.Contains(e.Message, "it has printed 200 lines that are none of Claude Code") {
				t.Errorf("it ends with %+v", last)
			}
		})
	}
}

// A program that prints on when all is done is ended.
func TestPrintsForEver(t *testing.T) {
	got := said(drain(t, session(t, start+replay+"> "+success+"\nforever {}\n", nil), nil))
	if last := got[len(got)-1]; last != `agent:complete "Done."` {
		t.Errorf("last event %s", last)
	}
}

// printer makes a program of a line of the shell.
func printer(t *testing.T, line string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "claude")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+line+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return binary
}

// lastOf runs an agent to its end, which has to come soon, and returns what it ends with.
func lastOf(t *testing.T, p *claude.Provider) (last wire.Payload) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := p.Start(ctx, agent.Request{
		RunID: "r", NodeID: "coder", ExecID: "coder#1", SessionID: "s1", Prompt: wire.RawString("Go."),
		Options: agent.Options{Cwd: t.TempDir(), Env: map[string]string{"HOME": t.TempDir()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := drain(t, s, nil)
	if ctx.Err() != nil {
		t.Error("it didn't end")
	}
	return got[len(got)-1].Payload
}

func TestLeavingEarly(t *testing.T) {
	s := session(t, start+"spawn\n"+`> {"type":"note","child":"${child}"}`+"\nhang\n", nil)
	child := 0
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := e.Payload.(*wire.RawMessage); ok {
			pid := p.Data.TextAt("child")
			child, _ = strconv.Atoi(pid)
			break
		}
	}
	gone(t, child)
}

func TestCloseWhileRunning(t *testing.T) {
	s := session(t, start+"> "+message("m1", "", textOf("Hi."))+"\nhang\n", nil)
	closed := make(chan error, 1)
	got := said(drain(t, s, func(e *wire.Event) {
		if _, ok := e.Payload.(*wire.AgentText); ok {
			go func() { closed <- s.Close() }()
		}
	}))
	if err := <-closed; err != nil {
		t.Error(err)
	}
	want := `agent:error process_died "the agent was ended by signal TERM (closed) before its result" error`
	if last := got[len(got)-1]; last != want {
		t.Errorf("last event %s, want %s", last, want)
	}
}

func TestContextEndsSession(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := claude.Provider{Binary: os.Args[0], Grace: 10 * time.Millisecond}
	s, err := p.Start(ctx, agent.Request{
		ExecID: "coder#1", SessionID: "s1", Prompt: wire.RawString("Go."),
		Options: agent.Options{Env: map[string]string{fakeScript: start + "hang\n"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := said(drain(t, s, func(e *wire.Event) {
		if _, ok := e.Payload.(*wire.AgentInit); ok {
			cancel()
		}
	}))
	if last := got[len(got)-1]; !strings.HasPrefix(last, "agent:error process_died") {
		t.Errorf("last event %s", last)
	}
}

// A session has the id that we chose, and options are flags (RULES 12).
func TestCommandLine(t *testing.T) {
	script := start + `> {"type":"note","argv":"${argv}","env":"${env}"}` + "\n" + ending
	run := func(change func(*agent.Request)) (argv, env string) {
		for _, e := range drain(t, session(t, script, change), nil) {
			if p, ok := e.Payload.(*wire.RawMessage); ok {
				argv = p.Data.TextAt("argv")
				env = p.Data.TextAt("env")
			}
		}
		return argv, env
	}
	schema, _ := wire.Marshal(map[string]any{"type": "object"})
	argv, env := run(func(r *agent.Request) {
		r.Resume = true
		r.Options.Model, r.Options.MaxTurns, r.Options.MaxBudgetUsd = "--evil", 3, 0.5
		r.Options.AllowedTools, r.Options.AddDirs, r.Options.OutputSchema = []string{"Read", "Bash(ls:*)"}, []string{"/a b"}, schema
		r.Options.Env["IS_SANDBOX"] = "1"
	})
	for _, want := range []string{
		"--resume=s1", "--model=--evil", "--max-turns=3", "--max-budget-usd=0.5", "--allowedTools=Read,Bash(ls:*)", "--add-dir=/a b",
		`--json-schema={"type":"object"}`, "--permission-mode=bypassPermissions", "--permission-prompt-tool=stdio",
	} {
		if !strings.Contains(argv, want) {
			t.Errorf("%s isn't in %s", want, argv)
		}
	}
	if strings.Contains(env, "secret") || !strings.Contains(env, "IS_SANDBOX=1") {
		t.Errorf("environment %s", env)
	}
	argv, _ = run(func(r *agent.Request) { r.ForkOf = "s0" })
	if !strings.Contains(argv, "--resume=s0 --fork-session --session-id=s1") {
		t.Errorf("fork: %s", argv)
	}
	argv, _ = run(func(r *agent.Request) { r.ForkOf, r.ForkAt = "s0", "p1" })
	if !strings.Contains(argv, "--resume=s0 --fork-session --session-id=s1 --resume-session-at=p1") {
		t.Errorf("fork at a point: %s", argv)
	}
	argv, _ = run(func(r *agent.Request) { r.ForkOf, r.ForkAt = "s1", "p1" })
	if !strings.Contains(argv, "--resume=s1 --resume-session-at=p1") || strings.Contains(argv, "--fork-session") {
		t.Errorf("back to a point: %s", argv)
	}
	if argv, _ = run(nil); !strings.Contains(argv, "--session-id=s1") {
		t.Errorf("new session: %s", argv)
	}
	history := func(yield func(*wire.Event, error) bool) {
		for _, e := range []*wire.Event{
			{Payload: &wire.AgentStart{}}, {Parent: "t1", Payload: &wire.AgentInit{Model: "haiku"}}, {Payload: &wire.AgentInit{Model: "opus[1m]"}},
		} {
			if !yield(e, nil) {
				return
			}
		}
	}
	for want, change := range map[string]func(*agent.Request){
		"--model=opus[1m]": func(r *agent.Request) { r.Resume, r.History = true, history },
		"--model=sonnet":   func(r *agent.Request) { r.Resume, r.History, r.Options.Model = true, history, "sonnet" },
	} {
		if argv, _ := run(change); !strings.Contains(argv, want) {
			t.Errorf("a session that goes on: %s, want %s", argv, want)
		}
	}
}

func TestPrompts(t *testing.T) {
	for name, test := range map[string]struct {
		prompt any
		want   []string
	}{
		"blocks":   {[]any{map[string]any{"type": "text", "text": "A"}}, []string{`[{"text":"A","type":"text"}]`}},
		"messages": {[]any{"A", map[string]any{"role": "user", "content": "B"}}, []string{`[{"text":"A","type":"text"}]`, `"B"`}},
	} {
		t.Run(name, func(t *testing.T) {
			prompt, err := wire.Marshal(test.prompt)
			if err != nil {
				t.Fatal(err)
			}
			reads := strings.Repeat("< user\n"+`> {"type":"note","text":"${text}"}`+"\n", len(test.want))
			s := session(t, "< initialize\n"+reads+"> "+initLine+"\n"+ending, func(r *agent.Request) { r.Prompt = prompt })
			var got []string
			for _, e := range drain(t, s, nil) {
				if p, ok := e.Payload.(*wire.RawMessage); ok {
					text := p.Data.TextAt("text")
					got = append(got, text)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
