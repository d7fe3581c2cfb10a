package codex_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/internal/agent/codex/codextest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) {
	if codextest.Main() {
		return
	}
	natstest.Main(m)
}

type place struct{ home, dir string }

func newPlace(t *testing.T) place { return place{t.TempDir(), t.TempDir()} }

func (p place) request(script string) agent.Request {
	return agent.Request{
		RunID: "r1", NodeID: "coder", ExecID: "coder#1", SessionID: "ours", Prompt: wire.RawString("Do it."),
		Options: agent.Options{Cwd: p.dir, Env: map[string]string{codextest.Script: script, codextest.Home: p.home}},
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

func provider(t *testing.T) *codex.Provider {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &codex.Provider{Binary: program, Environ: os.Environ(), Grace: time.Second}
}

func start(t *testing.T, r agent.Request) agent.Session {
	t.Helper()
	s, err := provider(t).Start(t.Context(), r)
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

func render(e *wire.Event) string {
	call, _, _ := strings.Cut(e.CallID, "-") // behind it is a time
	line := strings.TrimSpace(string(e.Type()) + " " + call)
	switch p := e.Payload.(type) {
	case *wire.SessionBound:
		return line + " " + p.OldSession + " " + p.NewSession
	case *wire.AgentText:
		return fmt.Sprintf("%s %d %s", line, p.Block, p.Content)
	case *wire.AgentThinking:
		return fmt.Sprintf("%s %d %s", line, p.Block, p.Content)
	case *wire.ToolIntent:
		return fmt.Sprintf("%s %s %s", line, p.ToolName, p.ToolInput.Plain())
	case *wire.ToolState:
		return fmt.Sprintf("%s %s", line, p.To)
	case *wire.AgentTool:
		return strings.TrimSpace(fmt.Sprintf("%s %q %s", line, p.ToolOutput.Plain(), p.Error))
	case *wire.FileChanged:
		return fmt.Sprintf("%s %s %s", line, p.Path, p.Change)
	case *wire.TodoChanged:
		return fmt.Sprintf("%s %d/%d", line, p.Done, p.Total)
	case *wire.UserMessage:
		return fmt.Sprintf("%s %s %s", line, p.CommandID, p.Content)
	case *wire.Usage:
		return fmt.Sprintf("%s %d+%d %d", line, p.InputTokens, *p.CacheReadInputTokens, p.OutputTokens)
	case *wire.TurnEnd:
		return fmt.Sprintf("%s %s", line, p.Subtype)
	case *wire.AgentComplete:
		return fmt.Sprintf("%s %q %d turns, %d+%d %d tokens", line, p.Result, p.NumTurns, p.Usage.InputTokens, *p.Usage.CacheReadInputTokens, p.Usage.OutputTokens)
	case *wire.AgentError:
		return fmt.Sprintf("%s %s %s: %s", line, p.Severity, p.ErrorType, p.Message)
	case *wire.RawMessage:
		return strings.TrimSpace(line + " " + p.Name)
	}
	return line
}

const opened = "agent:start\nagent:init\nsession:bound ours thread-1\nturn:start\n"

// What Codex prints becomes events of the wire, exit codes too; what isn't known is passed on.
func TestTurn(t *testing.T) {
	recorded, err := os.ReadFile("testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(recorded)) {
		lines = append(lines, "raw "+line)
	}
	end := "usage 0+0 0\nturn:end success\nagent:complete \"\" 1 turns, 0+0 0 tokens"
	for name, test := range map[string]struct{ script, want string }{
		"items": {
			"think Hm.\nsay One.\ntodo a, b\nbegin item_1 make\nend item_1 2 oops\nchange item_2 a.txt\nmcp item_3 srv get\nsay Two.\ntokens 100 60 7",
			"agent:thinking 1 Hm.\nagent:text 2 One.\ntodo:changed 1/2\ntool:intent item_1 command_execution {\"command\":\"make\"}\ntool:state item_1 EXECUTING\n" +
				"agent:tool item_1 \"oops\" the command ended with exit code 2\ntool:intent item_2 file_change {\"changes\":[{\"kind\":\"add\",\"path\":\"a.txt\"}],\"path\":\"a.txt\"}\n" +
				"tool:state item_2 EXECUTING\nagent:tool item_2 \"completed\"\nfile_changed a.txt created\ntool:intent item_3 mcp__srv__get {\"q\":1}\ntool:state item_3 EXECUTING\n" +
				"agent:tool item_3 \"[{\\\"text\\\":\\\"ok\\\",\\\"type\\\":\\\"text\\\"}]\"\nagent:text 3 Two.\nusage 40+60 7\nturn:end success\nagent:complete \"Two.\" 1 turns, 40+60 7 tokens",
		},
		"garbage": {
			"raw \x1b[31mwarning\nraw {\"type\":\"item.completed\",\"item\":{\"id\":\"x\",\"type\":\"dream\"}}\nraw {\"type\":\"thread.started\"}\nraw []\nraw {\"type\":\"item.completed\"}",
			"raw malformed\nraw item.completed/dream\nraw thread.started\nraw\nraw item.completed\n" + end,
		},
		"no end of a call": {
			"begin item_1 make",
			"tool:intent item_1 command_execution {\"command\":\"make\"}\ntool:state item_1 EXECUTING\nagent:tool item_1 \"null\" the turn ended without the call's result\n" + end,
		},
		"fails": {
			"say A\nfail unexpected status 401 Unauthorized",
			"agent:text 1 A\nagent:error warning error_during_execution: unexpected status 401 Unauthorized\nturn:end error\n" +
				"agent:error error authentication_failed: unexpected status 401 Unauthorized",
		},
		"dies": {
			"begin item_1 make\nstderr out of luck\ndie 7",
			"tool:intent item_1 command_execution {\"command\":\"make\"}\ntool:state item_1 EXECUTING\nagent:tool item_1 \"null\" interrupted\n" +
				"agent:error error process_died: the agent ended with exit code 7: out of luck, before its result",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := drain(t, start(t, newPlace(t).request(test.script)), nil)
			if diff := cmp.Diff(strings.Split(opened+test.want, "\n"), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("recorded", func(t *testing.T) {
		got := strings.Join(drain(t, start(t, newPlace(t).request(strings.Join(lines, "\n"))), nil), "\n")
		for _, want := range []string{
			"agent:error warning error_during_execution: Model metadata for `gpt-5` not found", "agent:thinking 1 **Listing files** first.",
			"agent:tool item_2 \"README.md\\nhello\\n\" the command ended with exit code 2", "agent:text 2 Codex fake answer.", "usage 1200+800 40",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	})
}

// What can't begin says why, and what to do.
func TestStartFails(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*agent.Request)
		want   string
	}{
		"no program": {nil, "start_failed: the agent didn't start: no-such-codex isn't in the PATH of the runner: install Codex"},
		"no thread":  {func(r *agent.Request) { r.Resume = true }, "session_not_found: Codex can't go on with its thread: no rollout found for thread id ours (code -32600)"},
		"no begin":   {func(r *agent.Request) { cutThread(t, r); r.Resume = true }, "session_not_found: Codex can't go on with its thread: failed to read thread: "},
		"no copy":    {func(r *agent.Request) { r.ForkOf = "theirs" }, "session_not_found: Codex can't go on with its thread: no rollout found for thread id theirs (code -32600)"},
		"no config":  {func(r *agent.Request) { r.Resume, r.Options.Env[codextest.Script] = true, codextest.Refusal }, "start_failed: the agent didn't start: it ended with exit code 1: Error: loading config.toml"},
		"no point":   {func(r *agent.Request) { r.ForkOf, r.ForkAt = "thread-1", "x" }, "fork_point_not_found: the agent didn't start: a thread of Codex can be forked as a whole"},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := newPlace(t).request("say Hi."), provider(t)
			if test.change != nil {
				test.change(&r)
			} else {
				p.Binary = "no-such-codex"
			}
			s, err := p.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if got := drain(t, s, nil); !strings.HasPrefix(got[len(got)-1], "agent:error error "+test.want) {
				t.Errorf("it did\n%s", strings.Join(got, "\n"))
			}
		})
	}
	for _, line := range []string{"y", "1", "{}", "", `{"type":"x"}`} {
		t.Run("endless "+line, func(t *testing.T) {
			r, p := newPlace(t).request(""), provider(t)
			s := startScript(t, p, r, "exec yes '"+line+"'\n")
			wantSoon(t, func() {
				if got := drain(t, s, nil); !strings.Contains(got[len(got)-1], "start_failed: the agent didn't start") || !strings.Contains(got[len(got)-1], "it has printed 200 lines before the one that names its thread") {
					t.Errorf("it did\n%s", got[len(got)-1])
				}
			})
		})
	}
	t.Run("another trouble", func(t *testing.T) { // with a thread that is there
		for _, why := range []string{
			"session x is archived. Run `codex unarchive x` to unarchive it first. (code -32600)", "permissions cannot be combined with sandbox",
			"failed to read thread: thread-store internal error: failed to read session metadata /x.jsonl: Permission denied (os error 13) (code -32603)",
		} {
			r, p := newPlace(t).request(""), provider(t)
			r.Resume = true
			s := startScript(t, p, r, "cat >&2 <<'EOF'\nError: thread/resume: thread/resume failed: "+why+"\nEOF\nexit 1\n")
			if got := drain(t, s, nil); !strings.HasPrefix(got[len(got)-1], "agent:error error start_failed: ") {
				t.Errorf("%s: it did\n%s", why, strings.Join(got, "\n"))
			}
		}
	})
	t.Run("silent", func(t *testing.T) {
		r, p := newPlace(t).request(""), provider(t)
		r.StartTimeout = 200 * time.Millisecond
		s := startScript(t, p, r, "exec sleep 60\n")
		if got := drain(t, s, nil); !strings.Contains(got[len(got)-1], "start_failed: the agent didn't start") || !strings.Contains(got[len(got)-1], "it printed nothing within 200ms") {
			t.Errorf("it did\n%s", strings.Join(got, "\n"))
		}
	})
}

// A request that can't be served says what to change.
func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*agent.Request){
		"needs an approver":                            func(r *agent.Request) { r.Options.PermissionMode = "approval" },
		"it is one of bypassPermissions":               func(r *agent.Request) { r.Options.PermissionMode = "yolo" },
		"there is no maxTurns for it":                  func(r *agent.Request) { r.Options.MaxTurns = 3 },
		"there is no allowedTools for it":              func(r *agent.Request) { r.Options.AllowedTools = []string{"x"} },
		"the prompt must be a text":                    func(r *agent.Request) { r.Prompt = wire.Null },
		"a folder to work in is required":              func(r *agent.Request) { r.Options.Cwd = "" },
		"a session id is required":                     func(r *agent.Request) { r.SessionID = "" },
		"there is no mcpServers for it: leave it out,": func(r *agent.Request) { r.Options.MCPServers = map[string]agent.MCPServer{"x": {}} },
	} {
		r := newPlace(t).request("")
		change(&r)
		if _, err := new(codex.Provider).Start(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// A message is the next turn of the thread, after the one at work or in its place; the tokens of a turn are what it adds.
func TestMessages(t *testing.T) {
	for name, interrupt := range map[string]bool{"after": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			first := "say One.\ntokens 10 0 1\nawait " + filepath.Join(p.home, "go")
			if interrupt {
				first = "say One.\nbegin item_1 make\nhang"
			}
			s := start(t, p.request(first+"\n--\nsay Two.\ntokens 20 5 2"))
			got := drain(t, s, func(e *wire.Event) {
				if text, ok := e.Payload.(*wire.AgentText); ok && text.Content == "One." {
					if err := s.Send(t.Context(), agent.Message{CommandID: "cmd-1", Content: "And now?", Interrupt: interrupt}); err != nil {
						t.Error(err)
					}
					if err := os.WriteFile(filepath.Join(p.home, "go"), nil, 0o600); err != nil {
						t.Error(err)
					}
				}
			})
			want := opened + "agent:text 1 One.\nusage 10+0 1\nturn:end success\n"
			last := "usage 15+5 2\nturn:end success\nagent:complete \"Two.\" 2 turns, 25+5 3 tokens"
			if interrupt {
				want = opened + "agent:text 1 One.\n"
				last = "usage 15+5 2\nturn:end success\nagent:complete \"Two.\" 2 turns, 15+5 2 tokens"
				kept := got[:0:0]
				for _, line := range got { // how far it came isn't known
					if !strings.Contains(line, "item_1") && line != "turn:end interrupted" {
						kept = append(kept, line)
					}
				}
				got = kept
			}
			want += "user:message cmd-1 And now?\nagent:init\nturn:start\nagent:text 2 Two.\n" + last
			if diff := cmp.Diff(strings.Split(want, "\n"), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if asked := p.read(t, "prompts"); asked != "thread-1: Do it.\nthread-1: And now?\n" {
				t.Errorf("asked %q", asked)
			}
		})
	}
}

// A thread that is lost between two turns is a session that isn't there.
func TestThreadLostBetweenTurns(t *testing.T) {
	p := newPlace(t)
	s := start(t, p.request("say One.\nawait "+filepath.Join(p.home, "go")))
	got := drain(t, s, func(e *wire.Event) {
		var err error
		switch e.Type() {
		case wire.TypeAgentText:
			err = errors.Join(s.Send(t.Context(), agent.Message{CommandID: "cmd-1", Content: "And now?"}), touch(filepath.Join(p.home, "go")))
		case wire.TypeTurnEnd:
			err = os.Remove(filepath.Join(p.home, "thread-1"))
		}
		if err != nil {
			t.Error(err)
		}
	})
	if last := got[len(got)-1]; !strings.HasPrefix(last, "agent:error error session_not_found: Codex can't go on with its thread: no rollout found for thread id thread-1") {
		t.Errorf("it did\n%s", strings.Join(got, "\n"))
	}
}

// startScript starts a session whose Codex is a shell script.
func startScript(t *testing.T, p *codex.Provider, r agent.Request, script string) agent.Session {
	t.Helper()
	p.Binary = filepath.Join(t.TempDir(), "codex")
	if err := os.WriteFile(p.Binary, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := p.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A program that stays, or prints on, when its turn is over is ended, and its work is done.
func TestLingers(t *testing.T) {
	for name, rest := range map[string]string{"stays": "exec sleep 60", "prints": "exec yes"} {
		t.Run(name, func(t *testing.T) {
			r, p := newPlace(t).request(""), provider(t)
			p.Linger = 100 * time.Millisecond
			program := `echo '{"type":"thread.started","thread_id":"t"}'
echo '{"type":"turn.started"}'
echo '{"type":"turn.completed","usage":{}}'
`
			s := startScript(t, p, r, program+rest+"\n")
			wantSoon(t, func() {
				if got := drain(t, s, nil); !strings.HasPrefix(got[len(got)-1], "agent:complete") {
					t.Errorf("it ends with %s", got[len(got)-1])
				}
			})
		})
	}
}

// An agent that is interrupted has paused, and goes on in its thread; a fork begins as a copy of it.
func TestInterruptAndGoOn(t *testing.T) {
	p := newPlace(t)
	script := "say One.\nhang\n--\nsay Two.\ntokens 30 0 3\n--\nsay Three.\ntokens 7 0 1"
	s := start(t, p.request(script))
	got := drain(t, s, func(e *wire.Event) {
		if e.Type() == wire.TypeAgentText {
			if err := s.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if got[len(got)-1] != "agent:paused" {
		t.Fatalf("it did\n%s", strings.Join(got, "\n"))
	}
	r := p.request(script)
	r.Resume, r.SessionID, r.Prompt = true, "thread-1", wire.RawString("continue")
	want := strings.Split("agent:start\nagent:init\nturn:start\nagent:text 1 Two.\nusage 30+0 3\nturn:end success\nagent:complete \"Two.\" 1 turns, 30+0 3 tokens", "\n")
	if diff := cmp.Diff(want, drain(t, start(t, r), nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r = p.request(script)
	r.ForkOf, r.Options.PermissionMode, r.Options.Model = "thread-1", "read-only", "gpt-x"
	zero := int64(0)
	r.History = func(yield func(*wire.Event, error) bool) {
		yield(&wire.Event{Payload: &wire.Usage{InputTokens: 30, OutputTokens: 3, CacheReadInputTokens: &zero}}, nil)
	}
	text := strings.Join(drain(t, start(t, r), nil), "\n")
	if !strings.Contains(text, "session:bound ours thread-1-fork") || !strings.Contains(text, "Three.\nusage 7+0 1\n") {
		t.Errorf("it did\n%s", text)
	}
	if argv := p.read(t, "arguments"); !strings.Contains(argv, `exec fork --json --skip-git-repo-check -c sandbox_mode="read-only" -c approval_policy="never" --model=gpt-x -- thread-1 -`) {
		t.Errorf("called\n%s", argv)
	}
}

// cutThread leaves of a request's thread a file that Codex had begun, and nothing in it.
func cutThread(t *testing.T, r *agent.Request) {
	t.Helper()
	if err := touch(filepath.Join(r.Options.Env[codextest.Home], r.SessionID)); err != nil {
		t.Fatal(err)
	}
}

func touch(file string) error { return os.WriteFile(file, nil, 0o600) }
