//go:build claudecli

package claude_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"wake/internal/agent"
	"wake/internal/agent/claude"
	"wake/pkg/wire"
)

// lab is a made-up API and a version of the real CLI.
type lab struct {
	version, binary, api string
}

// versions runs f with each version of the CLI. The script test/claude/run sets up
// what is needed.
func versions(t *testing.T, f func(*testing.T, lab)) {
	binaries := os.Getenv("WAKE_CLAUDE_BINARIES")
	if binaries == "" {
		t.Fatal("WAKE_CLAUDE_BINARIES isn't set: run test/claude/run")
	}
	api := fakeAPI(t)
	for entry := range strings.SplitSeq(binaries, ":") {
		version, binary, _ := strings.Cut(entry, "=")
		t.Run(version, func(t *testing.T) { f(t, lab{version, binary, api}) })
	}
}

// fakeAPI starts the made-up API on a free port.
func fakeAPI(t *testing.T) string {
	t.Helper()
	c := exec.Command(os.Getenv("WAKE_FAKE_API"), "-addr", "127.0.0.1:0", "-scenarios", os.Getenv("WAKE_FAKE_SCENARIOS"))
	out, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the API doesn't say where it listens")
	}
	addr := lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:]
	go func() {
		for lines.Scan() {
		}
	}()
	return "http://" + addr
}

// request is a request in a folder and a home of its own.
func (l lab) request(t *testing.T, scenario string) agent.Request {
	home, cwd := t.TempDir(), t.TempDir()
	return agent.Request{
		ExecID: "coder#1", SessionID: agent.NewSessionID(), Prompt: wire.RawString("Lab run [[scn:" + scenario + "]]"),
		Options: agent.Options{Cwd: cwd, Env: map[string]string{
			"HOME": home, "CLAUDE_CONFIG_DIR": filepath.Join(home, ".claude"), "TMPDIR": t.TempDir(), "IS_SANDBOX": "1",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1",
			"DISABLE_AUTOUPDATER": "1", "ANTHROPIC_BASE_URL": l.api, "ANTHROPIC_API_KEY": "dummy",
			"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com",
		}},
	}
}

func (l lab) start(t *testing.T, r agent.Request) agent.Session {
	t.Helper()
	p := claude.Provider{Binary: l.binary, Environ: []string{"PATH=" + os.Getenv("PATH")}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	s, err := p.Start(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (l lab) run(t *testing.T, r agent.Request, on func(agent.Session, *wire.Event)) []*wire.Event {
	t.Helper()
	s := l.start(t, r)
	events := drain(t, s, func(e *wire.Event) {
		if on != nil {
			on(s, e)
		}
	})
	if dir := os.Getenv("WAKE_CLAUDE_DUMP"); dir != "" {
		name := strings.ReplaceAll(t.Name(), "/", "-") + "." + l.version + ".txt"
		if err := os.WriteFile(filepath.Join(dir, name), render(t, events), 0o600); err != nil {
			t.Error(err)
		}
	}
	return events
}

// ids are what differs between runs.
var ids = regexp.MustCompile(`(toolu|msg)_[A-Za-z0-9]+`)

// heard lists the events that matter, with ids cut.
func heard(events []*wire.Event) []string {
	var out []string
	for i, s := range said(events) {
		switch events[i].Payload.(type) {
		case *wire.RawMessage, *wire.AgentTextDelta, *wire.AgentThinkingDelta, *wire.TurnStart, *wire.Usage, *wire.FileChanged:
			continue
		}
		out = append(out, ids.ReplaceAllString(s, "$1"))
	}
	return out
}

func count[P wire.Payload](events []*wire.Event) (n int) {
	for _, e := range events {
		if _, ok := e.Payload.(P); ok {
			n++
		}
	}
	return n
}

func last[P wire.Payload](t *testing.T, events []*wire.Event) P {
	t.Helper()
	p, ok := events[len(events)-1].Payload.(P)
	if !ok {
		t.Fatalf("the last event is %s:\n%s", events[len(events)-1].Type(), strings.Join(said(events), "\n"))
	}
	return p
}

func TestCLITools(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "tools")
		events := l.run(t, r, nil)
		c := last[*wire.AgentComplete](t, events)
		if c.Result != "All done: one file written, four failures seen." || c.TotalCostUsd == nil || c.Usage.OutputTokens == 0 {
			t.Errorf("complete %+v", c)
		}
		intents, results, failures := count[*wire.ToolIntent](events), count[*wire.AgentTool](events), 0
		open := make(map[string]bool)
		for _, e := range events {
			switch p := e.Payload.(type) {
			case *wire.ToolIntent:
				open[e.CallID] = true
			case *wire.AgentTool:
				if !open[e.CallID] {
					t.Errorf("%s ended before it began", p.ToolName)
				}
				delete(open, e.CallID)
				if p.Error != "" {
					failures++
				}
			case *wire.AgentInit:
				if p.Version != l.version {
					t.Errorf("version %s, want %s", p.Version, l.version)
				}
			}
			if e.SessionID != r.SessionID {
				t.Errorf("%s is of session %s", e.Type(), e.SessionID)
			}
		}
		if intents != 9 || results != 9 || failures != 5 || len(open) != 0 {
			t.Errorf("%d intents, %d results, %d failures, %d open", intents, results, failures, len(open))
		}
		if _, err := os.Stat(filepath.Join(r.Options.Cwd, "hello.py")); err != nil {
			t.Error(err)
		}
	})
}

func TestCLIThink(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "think"), nil)
		if n := count[*wire.AgentThinkingDelta](events); n == 0 {
			t.Error("no thinking")
		}
		last[*wire.AgentComplete](t, events)
	})
}

func TestCLIGitBuild(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "gitbuild")
		for _, argv := range [][]string{{"git", "init", "-q"}, {"sh", "-c", `printf 'test:\n\t./run.sh\n' > Makefile; printf '#!/bin/sh\necho "--- FAIL: TestX"\nexit 1\n' > run.sh; chmod +x run.sh`}} {
			c := exec.Command(argv[0], argv[1:]...)
			c.Dir = r.Options.Cwd
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		events := l.run(t, r, nil)
		last[*wire.AgentComplete](t, events)
		if !strings.Contains(strings.Join(heard(events), "\n"), "make test") {
			t.Errorf("no build:\n%s", strings.Join(heard(events), "\n"))
		}
	})
}

func TestCLIRetry(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "retry"), nil)
		var retries []string
		for _, e := range events {
			if p, ok := e.Payload.(*wire.AgentError); ok && p.Severity == wire.SeverityWarning {
				retries = append(retries, p.Message)
			}
		}
		want := "rate_limit (HTTP 429): retry 1/10; overloaded (HTTP 529): retry 2/10; server_error (HTTP 500): retry 3/10"
		if got := strings.Join(retries, "; "); got != want {
			t.Errorf("retries %s, want %s", got, want)
		}
		last[*wire.AgentComplete](t, events)
	})
}

func TestCLIDenied(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "denied")
		r.Options.PermissionMode = "default"
		r.Options.Decide = func(_ context.Context, p agent.Permission) agent.Verdict {
			return agent.Verdict{Allow: p.ToolName == "Write", By: "tester", Note: "no network"}
		}
		events := l.run(t, r, nil)
		var got []string
		for _, e := range events {
			switch p := e.Payload.(type) {
			case *wire.PermissionRequired:
				got = append(got, "ask "+p.ToolName)
			case *wire.PermissionDecided:
				got = append(got, string(p.Decision))
			case *wire.AgentTool:
				got = append(got, fmt.Sprintf("%s denied=%v %s", p.ToolName, p.Denied, p.Error))
			}
		}
		want := "ask Bash, deny, Bash denied=true no network, ask Write, allow, Write denied=false "
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("got  %s\nwant %s", s, want)
		}
		last[*wire.AgentComplete](t, events)
	})
}

func TestCLINotifyParent(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "mcp"), nil)
		if n := count[*wire.CCMessage](events); n != 2 {
			t.Errorf("%d messages to the parent, want 2:\n%s", n, strings.Join(heard(events), "\n"))
		}
		last[*wire.AgentComplete](t, events)
	})
}

// Calls of sub-agents are recorded before they are made, under the call that
// started the sub-agent; in 2.1.329 sub-agents go on after the first result.
func TestCLISubagents(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "sub"), nil)
		started, ended := make(map[string]bool), make(map[string]bool)
		var bash, children int
		for _, e := range events {
			switch p := e.Payload.(type) {
			case *wire.ToolIntent:
				started[e.CallID] = true
				if p.ToolName == "Bash" {
					bash++
				}
			case *wire.AgentTool:
				ended[e.CallID] = true
			}
			if e.Parent != "" {
				children++
				if !started[e.Parent] {
					t.Errorf("%s of a sub-agent that nobody started: %s", e.Type(), e.Parent)
				}
			}
		}
		if len(started) != 4 || len(ended) != 4 || bash != 2 || children < 6 {
			t.Errorf("%d calls began, %d ended, %d of sub-agents; %d events of sub-agents", len(started), len(ended), bash, children)
		}
		text := strings.Join(said(events), "\n")
		for _, want := range []string{"Child one: nothing found.", "Child two: tests fail."} {
			if !strings.Contains(text, want) {
				t.Errorf("nobody said %q", want)
			}
		}
		t.Logf("%d results", count[*wire.TurnEnd](events))
		last[*wire.AgentComplete](t, events)
	})
}

// A message that is sent while a tool runs is taken before the next model call.
func TestCLISend(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "midtool"), func(s agent.Session, e *wire.Event) {
			if p, ok := e.Payload.(*wire.ToolIntent); ok && strings.Contains(fmt.Sprint(p.ToolInput.Any()), "step1") {
				if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "prefer tabs"}); err != nil {
					t.Error(err)
				}
			}
		})
		if !strings.Contains(strings.Join(said(events), "\n"), `user:message command c1 "prefer tabs"`) {
			t.Errorf("the message wasn't taken:\n%s", strings.Join(heard(events), "\n"))
		}
		last[*wire.AgentComplete](t, events)
	})
}

func TestCLIInterrupt(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "longtool"), func(s agent.Session, e *wire.Event) {
			if _, ok := e.Payload.(*wire.ToolIntent); ok {
				if err := s.Interrupt(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		last[*wire.AgentPaused](t, events)
	})
}

// Ending the agent in the middle of a tool ends the tool too, and the session
// can be resumed.
func TestCLIKillAndResume(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "longtool")
		marker := filepath.Join(r.Options.Cwd, "marker")
		r.Options.Env["MARKER"] = marker
		s := l.start(t, r)
		for e, err := range s.Events() {
			if err != nil {
				t.Fatal(err)
			}
			if p, ok := e.Payload.(*wire.RawMessage); ok && p.Name == "system/task_started" {
				break // the tool has run for some seconds
			}
		}
		if left := bearing(t, "MARKER="+marker); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		r.Resume, r.Prompt = true, wire.RawString("Lab run [[scn:second]]")
		events := l.run(t, r, nil)
		if c := last[*wire.AgentComplete](t, events); c.Result != "Answer to the second message." {
			t.Errorf("result %q", c.Result)
		}
	})
}

// bearing lists the processes with a variable in their environment.
func bearing(t *testing.T, kv string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains("\x00"+string(b), "\x00"+kv+"\x00") {
			pids = append(pids, f)
		}
	}
	return pids
}

func TestCLIResumeUnknown(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "plain")
		r.Resume = true
		events := l.run(t, r, nil)
		var kind string
		for _, e := range events {
			if p, ok := e.Payload.(*wire.AgentError); ok {
				kind = p.ErrorType
			}
		}
		if kind != agent.ErrorSessionNotFound {
			t.Errorf("error %q:\n%s", kind, strings.Join(said(events), "\n"))
		}
	})
}

func TestCLIFork(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "plain")
		last[*wire.AgentComplete](t, l.run(t, r, nil))
		r.ForkOf, r.SessionID, r.Prompt = r.SessionID, agent.NewSessionID(), wire.RawString("Lab run [[scn:second]]")
		events := l.run(t, r, nil)
		last[*wire.AgentComplete](t, events)
		if n := count[*wire.SessionBound](events); n != 0 {
			t.Errorf("the fork has another session than asked for:\n%s", strings.Join(heard(events), "\n"))
		}
	})
}

// Errors of the API; 2.1.329 goes on by itself after some of them.
func TestCLIErrors(t *testing.T) {
	for _, test := range []struct {
		scenario, want string
		recovers       bool
	}{
		{"fatal400", "invalid_request", false},
		{"midstream", "unknown", true},
		{"refusal", "invalid_request", true},
	} {
		t.Run(test.scenario, func(t *testing.T) {
			versions(t, func(t *testing.T, l lab) {
				var o agent.Outcome
				for _, e := range l.run(t, l.request(t, test.scenario), nil) {
					o.Observe(e)
				}
				got := ""
				if p := o.Error(); p != nil {
					got = p.ErrorType
				}
				want := test.want
				if test.recovers && l.version == "2.1.329" {
					want = ""
				}
				if got != want {
					t.Errorf("error %q, want %q", got, want)
				}
			})
		})
	}
}

func TestCLIMaxTurns(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "loop")
		r.Options.MaxTurns = 3
		var o agent.Outcome
		for _, e := range l.run(t, r, nil) {
			o.Observe(e)
		}
		if p := o.Error(); p == nil || p.ErrorType != wire.ErrorMaxTurns || p.Message != "Reached maximum number of turns (3)" {
			t.Errorf("error %+v", p)
		}
	})
}
