package acp_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/agent/acp/acptest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) {
	if acptest.Main() {
		return
	}
	natstest.Main(m)
}

// place is where a scripted agent works, and keeps its sessions.
type place struct{ home, dir string }

func newPlace(t *testing.T) place { return place{t.TempDir(), t.TempDir()} }

// request asks for an agent that plays a script.
func (p place) request(t *testing.T, script string) agent.Request {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return agent.Request{
		RunID: "r1", NodeID: "coder", ExecID: "coder#1", SessionID: "ours", Prompt: wire.RawString("Do it."),
		Options: agent.Options{Command: []string{program}, Cwd: p.dir, Env: map[string]string{acptest.Script: script, acptest.Home: p.home}},
	}
}

func (p place) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.home, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// start starts a session that is closed with the test.
func start(t *testing.T, r agent.Request) agent.Session {
	t.Helper()
	provider := &acp.Provider{Environ: os.Environ(), Grace: time.Second}
	s, err := provider.Start(t.Context(), r)
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

// drain returns what a session tells, as lines. Each is seen before the next is asked for.
func drain(t *testing.T, s agent.Session, see func(*wire.Event)) (lines []string) {
	t.Helper()
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if see != nil {
			see(e)
		}
		lines = append(lines, render(e))
	}
	return lines
}

// render is an event as a line.
func render(e *wire.Event) string {
	line := strings.TrimSpace(string(e.Type()) + " " + e.CallID)
	switch p := e.Payload.(type) {
	case *wire.SessionBound:
		return line + " " + p.OldSession + " " + p.NewSession
	case *wire.AgentInit:
		return line + " " + p.Version + " " + p.Model + " " + p.PermissionMode
	case *wire.AgentTextDelta:
		return fmt.Sprintf("%s %d %s", line, p.Block, p.Content)
	case *wire.AgentText:
		return fmt.Sprintf("%s %d %s", line, p.Block, p.Content)
	case *wire.AgentThinkingDelta:
		return fmt.Sprintf("%s %d %s", line, p.Block, p.Content)
	case *wire.AgentThinking:
		return fmt.Sprintf("%s %d %s", line, p.Block, p.Content)
	case *wire.ToolIntent:
		return fmt.Sprintf("%s %s %s", line, p.ToolName, p.ToolInput.Plain())
	case *wire.ToolState:
		return fmt.Sprintf("%s %s", line, p.To)
	case *wire.AgentTool:
		return strings.TrimSpace(fmt.Sprintf("%s %q %s", line, p.ToolOutput.Plain(), p.Error))
	case *wire.PermissionDecided:
		return fmt.Sprintf("%s %s by %s", line, p.Decision, p.By)
	case *wire.FileChanged:
		return fmt.Sprintf("%s %s %s", line, p.Path, p.Change)
	case *wire.TodoChanged:
		return fmt.Sprintf("%s %d/%d", line, p.Done, p.Total)
	case *wire.UserMessage:
		return fmt.Sprintf("%s %s %s", line, p.CommandID, p.Content)
	case *wire.CCMessage:
		return fmt.Sprintf("%s %s %s", line, p.Priority, p.Text)
	case *wire.Usage:
		return fmt.Sprintf("%s %d %d %s", line, p.InputTokens, p.OutputTokens, costText(p.CostUsd))
	case *wire.TurnEnd:
		return fmt.Sprintf("%s %s %s", line, p.Subtype, p.StopReason)
	case *wire.AgentComplete:
		return fmt.Sprintf("%s %q %d turns, unknown usage: %v, %s", line, p.Result, p.NumTurns, p.UsageUnknown, costText(p.TotalCostUsd))
	case *wire.AgentError:
		return fmt.Sprintf("%s %s %s: %s", line, p.Severity, p.ErrorType, p.Message)
	case *wire.RawMessage:
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", line, p.Name, p.Reason))
	}
	return line
}

func costText(usd *float64) string {
	if usd == nil {
		return "cost unknown"
	}
	return fmt.Sprintf("$%.2f", *usd)
}

const opened = "agent:start\nagent:init scripted 0.1  bypassPermissions\nsession:bound ours sess-1\n"

// An agent says, thinks, plans and does: each is an event of the wire, in order.
func TestTurn(t *testing.T) {
	for name, test := range map[string]struct{ script, want string }{
		"words": {
			"think Hm,\nthink what?\nsay Do\nsay ne.\nplan read, write",
			"turn:start\nagent:thinking:delta 1 Hm,\nagent:thinking:delta 1 what?\nagent:text:delta 2 Do\nagent:text:delta 2 ne.\ntodo:changed 1/2\n" +
				"usage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"Done.\" 1 turns, unknown usage: true, cost unknown",
		},
		"calls": {
			"say One.\ncall c1 execute {\"command\":\"ls\"}\nupdate c1 in_progress\nupdate c1 completed a.txt\ncall c2 edit {\"path\":\"b.txt\"}\ndiff c2 b.txt text\nsay Two.",
			"turn:start\nagent:text:delta 1 One.\ntool:intent c1 execute {\"command\":\"ls\"}\ntool:state c1 EXECUTING\nagent:tool c1 \"a.txt\"\n" +
				"tool:intent c2 edit {\"path\":\"b.txt\"}\nagent:tool c2 \"\"\nfile_changed b.txt created\nagent:text:delta 2 Two.\n" +
				"usage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"Two.\" 1 turns, unknown usage: true, cost unknown",
		},
		"a call twice": { // in pieces, and again when it has ended
			"call c1 execute {}\ncall c1 execute {\"command\":\"ls\"}\nupdate c1 failed no\nupdate c1 completed yes\ncall c1 execute {\"command\":\"ls\"}",
			"turn:start\ntool:intent c1 execute {\"command\":\"ls\"}\nagent:tool c1 \"no\" no\nraw session/update/tool_call the call has ended\n" +
				"raw session/update/tool_call the call has ended\nusage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"\" 1 turns, unknown usage: true, cost unknown",
		},
		"a command behind its folder": { // as opencode tells it: the intent has both
			"call c1 execute {\"cwd\":\"/w\"}\ncall c1 execute {\"cwd\":\"/w\",\"command\":\"ls\"}\nupdate c1 in_progress\nupdate c1 completed a.txt",
			"turn:start\ntool:intent c1 execute {\"command\":\"ls\",\"cwd\":\"/w\"}\ntool:state c1 EXECUTING\nagent:tool c1 \"a.txt\"\n" +
				"usage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"\" 1 turns, unknown usage: true, cost unknown",
		},
		"a call without an end": {
			"call c1 execute {\"command\":\"ls\"}",
			"turn:start\ntool:intent c1 execute {\"command\":\"ls\"}\nagent:tool c1 \"\" the turn ended without the call's result\n" +
				"usage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"\" 1 turns, unknown usage: true, cost unknown",
		},
		"what it tells of its spending": {
			"usage 100 1000 0.25\ntokens 90 10\nsay Hi.",
			"turn:start\nagent:text:delta 1 Hi.\nusage 90 10 $0.25\nturn:end success end_turn\nagent:complete \"Hi.\" 1 turns, unknown usage: false, $0.25",
		},
		"allowed by the mode": {
			"ask c1 execute {\"command\":\"ls\"}\nupdate c1 completed a.txt",
			"turn:start\ntool:intent c1 execute {\"command\":\"ls\"}\npermission:required c1\npermission:decided c1 allow by policy\ntool:state c1 EXECUTING\n" +
				"agent:text:delta 1 [yes]\nagent:tool c1 \"a.txt\"\nusage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"[yes]\" 1 turns, unknown usage: true, cost unknown",
		},
		"garbage in between": {
			"say A\nraw Warning: \x1b]0;pwned\nraw {\"jsonrpc\":\"2.0\"}\nraw {\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}\nraw {\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"sess-1\",\"update\":{\"sessionUpdate\":\"dream\"}}}\nsay B",
			"turn:start\nagent:text:delta 1 A\nraw malformed wire: malformed JSON at byte 0: unexpected 'W'\nraw malformed it has neither a method nor an id\n" +
				"raw response nothing was asked under its id\nraw session/update/dream\nagent:text:delta 1 B\n" +
				"usage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"AB\" 1 turns, unknown usage: true, cost unknown",
		},
		"refusal":       {"stop refusal", "turn:start\nusage 0 0 cost unknown\nturn:end success refusal\nagent:error error error_during_execution: the agent refuses to go on (refusal)"},
		"an error":      {"say A\nfail -32603 the model is away", "turn:start\nagent:text:delta 1 A\nturn:end error \nagent:error error error_during_execution: the model is away"},
		"no reason":     {"stop because", `turn:start` + "\nusage 0 0 cost unknown\nturn:end success because\n" + `agent:error error error_during_execution: the agent ended its turn for a reason that isn't known: "because"`},
		"cut by itself": {"stop cancelled", "turn:start\nusage 0 0 cost unknown\nturn:end success cancelled\nagent:error error interrupted: the agent cut its turn short by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			got := drain(t, start(t, newPlace(t).request(t, test.script)), nil)
			if diff := cmp.Diff(strings.Split(opened+test.want, "\n"), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What can't begin says why, and what to do.
func TestStartFails(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		change func(*agent.Request)
		want   string
	}{
		"no program":      {"", func(r *agent.Request) { r.Options.Command = []string{"no-such-agent"} }, "start_failed: the agent didn't start: no-such-agent isn't in the PATH of the runner"},
		"another program": {"", func(r *agent.Request) { r.Options.Command = []string{"cat"} }, "start_failed: the agent refused initialize: Method not found"},
		"ends":            {"", func(r *agent.Request) { r.Options.Command = []string{"sh", "-c", "echo no key >&2; exit 3"} }, "start_failed: the agent didn't start: it ended with exit code 3: no key"},
		"hangs":           {"!hang initialize", nil, "start_failed: the agent didn't start: it didn't answer initialize within 300ms, the node's policy.startTimeoutMs"},
		"hangs later":     {"!hang session/new", nil, "start_failed: the agent didn't start: it didn't answer session/new within 300ms"},
		"another version": {"!version 9", nil, "start_failed: the agent speaks version 9 of the Agent Client Protocol; wake speaks 1"},
		"garbage":         {"!garbage 300\n!hang initialize", nil, "start_failed: the agent doesn't speak the Agent Client Protocol: it has printed 200 lines that are no JSON-RPC"},
		"endless garbage": {"", func(r *agent.Request) { r.Options.Command = []string{"yes"} }, "start_failed: the agent doesn't speak the Agent Client Protocol: it has printed 200 lines that are no JSON-RPC"},
		"not logged in":   {"!auth", nil, "authentication_failed: the agent isn't logged in: Authentication required. Log in with it where the runner runs, give it a key by env, or name a way in auth: key"},
		"no such mode":    {"!modes ask code", func(r *agent.Request) { r.Options.PermissionMode = "yolo" }, `start_failed: permissionMode "yolo" is no mode of the agent; there are bypassPermissions, approval, ask, code`},
		"no such model":   {"!models a b", func(r *agent.Request) { r.Options.Model = "c" }, `start_failed: the agent has no model "c"; it offers: a, b`},
		"no session":      {"", func(r *agent.Request) { r.Resume = true }, "session_not_found: the agent can't go on with sessions of processes that are gone. With newSession: true"},
		"lost session":    {"!load", func(r *agent.Request) { r.Resume = true }, "session_not_found: the agent can't go on with session ours: Resource not found"},
		"no fork":         {"!load", func(r *agent.Request) { r.ForkOf = "sess-7" }, "fork_point_not_found: the agent can't go back to a point of its session, or fork it"},
		"no point":        {"!load\n!fork", func(r *agent.Request) { r.ForkOf, r.ForkAt = "sess-7", "m3" }, "fork_point_not_found: the agent can't go back to a point"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPlace(t).request(t, test.script+"\nsay Hi.")
			if r.StartTimeout = time.Minute; strings.Contains(test.want, "300ms") {
				r.StartTimeout = 300 * time.Millisecond
			}
			if test.change != nil {
				test.change(&r)
			}
			got := drain(t, start(t, r), nil)
			// A program that hangs later must first have begun and answered, which takes longer where much else runs.
			if strings.Contains(got[len(got)-1], "didn't answer initialize") && !strings.Contains(test.want, "initialize") {
				r = newPlace(t).request(t, test.script)
				r.StartTimeout = 20 * time.Second
				got = drain(t, start(t, r), nil)
			}
			want := strings.ReplaceAll(test.want, "300ms", r.StartTimeout.String())
			if last := got[len(got)-1]; !strings.HasPrefix(last, "agent:error error "+want) {
				t.Errorf("it ends with %s", strings.Join(got, "\n"))
			}
		})
	}
}

// A program that goes on printing when all is done is ended.
func TestPrintsForEver(t *testing.T) {
	r := newPlace(t).request(t, "say Hi.\nforever {\"jsonrpc\":\"2.0\",\"method\":\"x\"}")
	s, err := (&acp.Provider{Environ: os.Environ(), Grace: 50 * time.Millisecond, Linger: 10 * time.Millisecond}).Start(t.Context(), r) // all that it prints is read
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := drain(t, s, nil); !strings.HasPrefix(got[len(got)-1], "agent:complete") {
		t.Errorf("it ends with %s", got[len(got)-1])
	}
}

// A request that can't be served says what to change.
func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*agent.Request){
		"names no agent":                     func(r *agent.Request) { r.Options.Command = nil },
		`agent "cursor" is unknown`:          func(r *agent.Request) { r.Options.Command, r.Options.Agent = nil, "cursor" },
		"both command and agent":             func(r *agent.Request) { r.Options.Agent = "gemini" },
		"the protocol has no maxTurns":       func(r *agent.Request) { r.Options.MaxTurns = 3 },
		"the protocol has no maxBudgetUsd":   func(r *agent.Request) { r.Options.MaxBudgetUsd = 3 },
		"the protocol has no allowedTools":   func(r *agent.Request) { r.Options.AllowedTools = []string{"Read"} },
		"the protocol has no systemPrompt":   func(r *agent.Request) { r.Options.SystemPrompt = "x" },
		"a session id is required":           func(r *agent.Request) { r.SessionID = "" },
		"a folder to work in is required":    func(r *agent.Request) { r.Options.Cwd = "" },
		"must be a string or a list":         func(r *agent.Request) { r.Prompt = wire.Null },
		"a block of type \"audio\" can't be": func(r *agent.Request) { r.Prompt, _ = wire.RawFromJSON([]byte(`[{"type":"audio"}]`)) },
	} {
		r := newPlace(t).request(t, "")
		change(&r)
		if _, err := new(acp.Provider).Start(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// An agent that dies in a prompt has failed, and its calls were cut off.
func TestDies(t *testing.T) {
	got := drain(t, start(t, newPlace(t).request(t, "!stderr out of luck\ncall c1 execute {\"command\":\"make\"}\ndie 4")), nil)
	want := opened + "turn:start\ntool:intent c1 execute {\"command\":\"make\"}\nagent:tool c1 \"\" " + wire.CallInterrupted +
		"\nagent:error error process_died: the agent ended with exit code 4 before its result: out of luck"
	if diff := cmp.Diff(strings.Split(want, "\n"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The session is on record before the agent has its prompt.
func TestSessionFirst(t *testing.T) {
	p := newPlace(t)
	drain(t, start(t, p.request(t, "say Hi.")), func(e *wire.Event) {
		switch e.Payload.(type) {
		case *wire.AgentStart:
			if _, err := os.Stat(filepath.Join(p.home, "sess-1")); err == nil {
				t.Error("the agent runs before its start is on record")
			}
		case *wire.SessionBound:
			if _, err := os.Stat(filepath.Join(p.home, "prompts")); err == nil {
				t.Error("the agent has its prompt before its session is on record")
			}
		}
	})
	if got := p.read(t, "prompts"); got != "sess-1: Do it.\n" {
		t.Errorf("it was asked %q", got)
	}
}

// Files and terminals are served within the folder, and nowhere else; what was asked for is on record.
func TestWithinTheFolder(t *testing.T) {
	p := newPlace(t)
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(p.dir, "link")); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(p.dir, "sub", "a.txt")
	script := strings.Join([]string{
		"write " + inside + " text", "read " + inside, "read a.txt", "read " + outside, "read link/secret", "read ../x", "write " + outside + " mine",
		"write link/secret mine", "run " + p.dir + " cat sub/a.txt; exit 3", "run " + filepath.Dir(outside) + " cat secret", "run link cat secret", "run . pwd",
	}, "\n")
	got := strings.Join(drain(t, start(t, p.request(t, script)), nil), "\n")
	for _, want := range []string{
		"raw fs/write_text_file\nfile_changed " + inside + " created\n", "[written]", "[text]", "doesn't exist", "[text: 3]", "[" + p.dir + ": 0]",
		"is outside the workspace",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	got, _, _ = strings.Cut(got, "agent:complete") // which has them again
	if strings.Count(got, "[refused: ") != 8 || strings.Contains(got, "secret]") || strings.Contains(got, "[secret") {
		t.Errorf("not all is refused:\n%s", got)
	}
	if b, _ := os.ReadFile(outside); string(b) != "secret" {
		t.Errorf("it has written outside: %q", b)
	}
}

// A question for permission goes to the approver; each question has an answer of its own, and what is denied doesn't begin.
func TestPermission(t *testing.T) {
	p := newPlace(t)
	r := p.request(t, "ask c1 execute {\"command\":\"rm\"}\nupdate c1 failed denied\nask c2 edit {\"path\":\"x\"}\nask c2 edit {\"path\":\"/etc\"}\nupdate c2 completed ok")
	r.Options.PermissionMode = "approval"
	var asked []string
	r.Options.Decide = func(_ context.Context, q agent.Permission) agent.Verdict {
		asked = append(asked, q.CallID+" "+q.ToolName+" "+q.Input.Plain())
		return agent.Verdict{Allow: q.CallID == "c2", By: "ann", Note: "why"}
	}
	got := drain(t, start(t, r), nil)
	want := strings.Split(strings.Replace(opened, "bypassPermissions", "approval", 1)+
		"turn:start\ntool:intent c1 execute {\"command\":\"rm\"}\npermission:required c1\npermission:decided c1 deny by ann\nagent:text:delta 1 [no]\nagent:tool c1 \"denied\" denied\n"+
		"tool:intent c2 edit {\"path\":\"x\"}\npermission:required c2\npermission:decided c2 allow by ann\ntool:state c2 EXECUTING\nagent:text:delta 2 [yes]\n"+
		"tool:intent c2#2 edit {\"path\":\"/etc\"}\npermission:required c2#2\npermission:decided c2#2 deny by ann\nagent:tool c2#2 \"\" denied\nagent:text:delta 3 [no]\n"+
		"agent:tool c2 \"ok\"\nusage 0 0 cost unknown\nturn:end success end_turn\nagent:complete \"[yes][no]\" 1 turns, unknown usage: true, cost unknown", "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`c1 execute {"command":"rm"}`, `c2 edit {"path":"x"}`, `c2#2 edit {"path":"/etc"}`}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Messages follow when the turn is over, or cut it short; each is told as taken when its turn begins.
func TestMessages(t *testing.T) {
	for name, interrupt := range map[string]bool{"after": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			first := "say One.\nawait " + filepath.Join(p.home, "go")
			if interrupt {
				first = "say One.\ncancelled"
			}
			s := start(t, p.request(t, first+"\n--\nsay Two."))
			got := drain(t, s, func(e *wire.Event) {
				if text, ok := e.Payload.(*wire.AgentTextDelta); ok && text.Content == "One." {
					if err := s.Send(t.Context(), agent.Message{CommandID: "cmd-1", Content: "And now?", Interrupt: interrupt}); err != nil {
						t.Error(err)
					}
					if err := os.WriteFile(filepath.Join(p.home, "go"), nil, 0o600); err != nil {
						t.Error(err)
					}
				}
			})
			stop := map[bool]string{false: "end_turn", true: "cancelled"}[interrupt]
			want := strings.Split(opened+"turn:start\nagent:text:delta 1 One.\nusage 0 0 cost unknown\nturn:end success "+stop+
				"\nuser:message cmd-1 And now?\nturn:start\nagent:text:delta 2 Two.\nusage 0 0 cost unknown\nturn:end success end_turn\n"+
				"agent:complete \"Two.\" 2 turns, unknown usage: true, cost unknown", "\n")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if err := s.Send(t.Context(), agent.Message{Content: "late"}); err == nil {
				t.Error("a session that has ended takes a message")
			}
		})
	}
}

// An agent that is interrupted has paused, also while it waits for a decision; the session goes on as far as the agent can.
func TestInterruptAndGoOn(t *testing.T) {
	for name, test := range map[string]struct{ script, can, want string }{
		"at work": {"say One.\ncall c1 execute {\"command\":\"make\"}\ncancelled", "!resume", "agent:tool c1 \"\" " + wire.CallInterrupted},
		"asking":  {"say One.\nask c1 execute {\"command\":\"make\"}", "!load", "permission:decided c1 deny by wake"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			r := p.request(t, test.can+"\n"+test.script+"\n--\nsay Again.")
			r.Options.PermissionMode = "approval"
			r.Options.Decide = func(ctx context.Context, _ agent.Permission) agent.Verdict {
				<-ctx.Done()
				return agent.Verdict{By: "wake"}
			}
			s := start(t, r)
			got := drain(t, s, func(e *wire.Event) {
				switch e.Payload.(type) {
				case *wire.ToolIntent, *wire.PermissionRequired:
					if err := s.Interrupt(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
			if text := strings.Join(got, "\n"); !strings.Contains(text, test.want) || got[len(got)-1] != "agent:paused" {
				t.Fatalf("it ends with\n%s", text)
			}
			again := p.request(t, test.can+"\n"+test.script+"\n--\nsay Again.")
			again.SessionID, again.Resume, again.Prompt = "sess-1", true, wire.RawString("continue")
			got = drain(t, start(t, again), nil)
			want := strings.Split("agent:start\nagent:init scripted 0.1  bypassPermissions\nturn:start\nagent:text:delta 1 Again.\nusage 0 0 cost unknown\n"+
				"turn:end success end_turn\nagent:complete \"Again.\" 1 turns, unknown usage: true, cost unknown", "\n")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// An agent that can't go on gets a new session, if its node allows that: it is on record, and the agent has what the log has.
func TestNewSession(t *testing.T) {
	p := newPlace(t)
	r := p.request(t, "say Hi.")
	r.Resume, r.Options.NewSession, r.Prompt = true, true, wire.RawString("continue")
	r.History = func(yield func(*wire.Event, error) bool) {
		for _, p := range []wire.Payload{
			&wire.AgentStart{Prompt: wire.RawString("Write it.")}, &wire.AgentTextDelta{Content: "I "}, &wire.AgentTextDelta{Content: "begin."},
			&wire.AgentTool{ToolName: "edit", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("done")},
		} {
			if !yield(&wire.Event{Payload: p}, nil) {
				return
			}
		}
	}
	got := drain(t, start(t, r), nil)
	if text := strings.Join(got, "\n"); !strings.Contains(text, "agent:error warning session_not_found: the agent can't go on") ||
		!strings.Contains(text, "session:bound ours sess-1") || !strings.HasPrefix(got[len(got)-1], "agent:complete") {
		t.Errorf("it did\n%s", text)
	}
	for _, want := range []string{"You were asked: Write it.\n", "You said: I begin.\n", "You called edit x; the result was: done", "sess-1: continue"} {
		if asked := p.read(t, "prompts"); !strings.Contains(asked, want) {
			t.Errorf("no %q in %q", want, asked)
		}
	}
}

// An agent that died before its own record had what came last is told that, and nothing else, when it goes on.
func TestLapse(t *testing.T) {
	const lacks = "Your record of this conversation lacks what came last. What is listed here has happened; do not do it again:\n\n"
	for name, test := range map[string]struct{ about, want string }{
		"the last one":    {"!load\n!resume\n!knows c0 c1", lacks + "- c2 has ended"},
		"an end":          {"!load\n!knows c1 c2?", lacks + "- c2 has ended"},
		"a result":        {"!load\n!knows c1 c2~", lacks + "- c2 has ended"},
		"nothing":         {"!load\n!knows c1 c2", ""},
		"all":             {"!load", lacks + "- c1 has ended\n\n- c2 has ended"},
		"it isn't known":  {"!resume", lacks + "- c1 has ended\n\n- c2 has ended"},
		"what it is told": {"!load\n!knows c1\n!told", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			if err := os.WriteFile(filepath.Join(p.home, "ours"), []byte("1"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := p.request(t, test.about+"\nsay Hi.")
			r.Resume, r.Facts = true, []agent.Fact{{Mark: "c1", Text: "- c1 has ended"}, {Mark: "c2", Text: "- c2 has ended"}}
			asked := "Go on."
			if strings.Contains(test.about, "told") {
				asked += "\n- c2 has ended"
			}
			r.Prompt = wire.RawString(asked)
			want := strings.TrimSpace("ours: " + asked + "\nours: " + test.want)
			if test.want == "" {
				want = "ours: " + asked
			}
			got := drain(t, start(t, r), nil)
			if prompts := strings.TrimSpace(p.read(t, "prompts")); prompts != want {
				t.Errorf("it was told %q, want %q:\n%s", prompts, want, strings.Join(got, "\n"))
			}
		})
	}
}

// Calls that an agent had begun when it died, and had told nobody of, are those that its record has behind the log's last one: behind none, if
// the log has none and the session is the execution's own.
func TestRecovered(t *testing.T) {
	const (
		c3 = "tool:intent c3 unknown {\"command\":\"c3\"}\nagent:tool c3 \"done\"\n"
		c4 = "tool:intent c4 unknown {\"command\":\"c4\"}\nagent:tool c4 \"\" " + wire.CallInterrupted + "\n"
		c5 = "tool:intent c5 unknown {\"command\":\"c5\"}\nagent:tool c5 \"done\" done\n"
		c6 = "tool:intent c6 unknown {\"command\":\"c6\"}\nagent:tool c6 \"done\"\nfile_changed b.txt created\n"
	)
	for _, test := range []struct {
		knows string
		calls agent.Calls
		want  string
	}{
		{"c0 c1 c2", agent.Calls{Ended: []string{"c1", "c2"}}, ""},
		{"c1 c2 c3 c4?", agent.Calls{Ended: []string{"c1", "c2"}}, c3 + c4},
		{"c1 c2 c4~", agent.Calls{Ended: []string{"c1", "c2"}}, c4},
		{"c1 c2 c5!", agent.Calls{Ended: []string{"c1", "c2"}}, c5},
		{"x1 x2", agent.Calls{Ended: []string{"c1", "c2"}, Whole: true}, ""},
		{"c0 c2 c4?", agent.Calls{Ended: []string{"c1", "c2"}}, c4},
		{"c3 c2", agent.Calls{Ended: []string{"c1", "c2"}, Whole: true}, ""},
		{"c1 c2 open?", agent.Calls{Ended: []string{"c1", "c2"}, Open: []string{"open"}}, ""},
		{"c1 open c3 c4?", agent.Calls{Ended: []string{"c1"}, Open: []string{"open"}}, c3 + c4},
		{"c3 c4?", agent.Calls{Whole: true}, c3 + c4},
		{"c2 c1? c4? .c1", agent.Calls{Ended: []string{"c2"}, Open: []string{"c1"}}, c4}, // side by side
		{"c1 c6^", agent.Calls{Ended: []string{"c1"}}, c6},
		{"c3 c4?", agent.Calls{}, ""}, // it may be of an earlier execution
	} {
		p := newPlace(t)
		if err := os.WriteFile(filepath.Join(p.home, "ours"), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := p.request(t, "!load\n!resume\n!knows "+test.knows+"\nsay Hi.")
		r.Resume, r.Calls = true, test.calls
		for _, id := range test.calls.Ended {
			r.Facts = append(r.Facts, agent.Fact{Mark: id, Text: "- " + id + " has ended"})
		}
		lines := drain(t, start(t, r), func(e *wire.Event) {
			if p, is := e.Payload.(*wire.AgentTool); is {
				if title := p.Structured.TextAt("title"); title != "Doing "+e.CallID {
					t.Errorf("%s: what it tells of %s besides has the title %q", test.knows, e.CallID, title)
				}
			}
		})
		_, got, _ := strings.Cut(strings.Join(lines, "\n"), "bypassPermissions\n")
		if got, _, _ = strings.Cut(got, "turn:start"); got != test.want {
			t.Errorf("%s, and the log %v:\n%s\nwant\n%s", test.knows, test.calls, got, test.want)
		}
		if told := strings.Contains(p.read(t, "prompts"), "their outcome is unknown"); told != strings.Contains(test.want, c4) {
			t.Errorf("%s: it was told %q", test.knows, p.read(t, "prompts"))
		}
	}
}

// A call that is recovered and had asked the agent's parent has done so, if it had ended: the agent waits for the answer.
func TestRecoveredQuestion(t *testing.T) {
	p := newPlace(t)
	if err := os.WriteFile(filepath.Join(p.home, "ours"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := p.request(t, "!load\n!knows c1 c2@ c3@?\nsay Hi.")
	r.Resume, r.Calls = true, agent.Calls{Ended: []string{"c1"}}
	s := start(t, r)
	var told, ends []string
	lines := drain(t, s, func(e *wire.Event) {
		switch p := e.Payload.(type) {
		case *wire.CCMessage:
			told = append(told, e.CallID+" "+string(p.Priority)+" "+p.Text)
		case *wire.TurnEnd:
			if ends = append(ends, p.Result); len(ends) == 1 {
				if err := s.Send(t.Context(), agent.Message{CommandID: "k1", Content: "Tabs.", Answers: "c2"}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if !slices.Equal(told, []string{"c2 question c2"}) || len(ends) != 2 || !strings.HasPrefix(lines[len(lines)-1], "agent:complete") {
		t.Errorf("told %q, %d turns:\n%s", told, len(ends), strings.Join(lines, "\n"))
	}
}

// A fork begins as a copy of the whole session, if the agent can do that.
func TestFork(t *testing.T) {
	p := newPlace(t)
	if err := os.WriteFile(filepath.Join(p.home, "sess-7"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := p.request(t, "!fork\nsay One.\n--\nsay Two.")
	r.ForkOf = "sess-7"
	if got := strings.Join(drain(t, start(t, r), nil), "\n"); !strings.Contains(got, "session:bound ours sess-7-fork") || !strings.Contains(got, "Two.") {
		t.Errorf("it did\n%s", got)
	}
}

// Modes, models and MCP servers are the agent's own: it is told which.
func TestChoices(t *testing.T) {
	p := newPlace(t)
	r := p.request(t, "!modes ask code\n!models a b\nsay Hi.")
	r.Options.PermissionMode, r.Options.Model = "code", "b"
	r.Options.MCPServers = map[string]agent.MCPServer{"x": {Command: []string{"serve", "it"}, Env: map[string]string{"K": "v"}}, "y": {URL: "http://127.0.0.1:1"}}
	got := drain(t, start(t, r), nil)
	if !strings.HasPrefix(got[len(got)-1], "agent:complete") || p.read(t, "mode") != "code" || p.read(t, "model") != "b" {
		t.Errorf("mode %s, model %s:\n%s", p.read(t, "mode"), p.read(t, "model"), strings.Join(got, "\n"))
	}
	if servers := p.read(t, "servers"); !strings.Contains(servers, `"command":"serve"`) || !strings.Contains(servers, `"name":"K"`) || !strings.Contains(servers, `"url":"http://127.0.0.1:1"`) {
		t.Errorf("servers %s", servers)
	}
}
