//go:build claudecli

package claude_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// lab is a made-up API and a version of the real CLI.
type lab struct {
	version, binary, api string
	requests             string // folder of what the API was asked
}

// versions runs f with each version of the CLI. The script test/claude/run sets up
// what is needed.
func versions(t *testing.T, f func(*testing.T, lab)) {
	binaries := os.Getenv("WAKE_CLAUDE_BINARIES")
	if binaries == "" {
		t.Fatal("WAKE_CLAUDE_BINARIES isn't set: run test/claude/run")
	}
	requests := t.TempDir()
	api := apitest.Program(t, requests)
	for entry := range strings.SplitSeq(binaries, ":") {
		version, binary, _ := strings.Cut(entry, "=")
		t.Run(version, func(t *testing.T) { f(t, lab{version, binary, api, requests}) })
	}
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

// lastRequest returns what the API was last asked.
func (l lab) lastRequest(t *testing.T) []byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(l.requests, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("nothing was asked: %v", err)
	}
	b, err := os.ReadFile(names[len(names)-1])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// asked returns the conversation that the API was last asked to go on with: speakers
// and what they say, in order. Reminders of the program are left out.
func (l lab) asked(t *testing.T) []string {
	t.Helper()
	b := l.lastRequest(t)
	var request struct {
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(b, &request); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range request.Messages {
		var text string
		if json.Unmarshal(m.Content, &text) == nil {
			out = append(out, m.Role+" "+text)
			continue
		}
		var blocks []struct {
			Type, Text, Name string
			Content          any
		}
		if err := json.Unmarshal(m.Content, &blocks); err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if s := strings.TrimSpace(b.Text); !strings.HasPrefix(s, "<system-reminder>") {
				out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s%s%v", m.Role, s, b.Name, orNothing(b.Content))))
			}
		}
	}
	return slices.DeleteFunc(out, func(line string) bool {
		return strings.HasPrefix(line, "system ") && !strings.Contains(line, "sent a new message")
	})
}

func orNothing(v any) any {
	if v == nil {
		return ""
	}
	return v
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

// An agent that has asked its parent waits for the answer, and gets it in the same session of
// the same process.
func TestCLIQuestion(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		var asked string
		results := 0
		events := l.run(t, l.request(t, "question"), func(s agent.Session, e *wire.Event) {
			switch p := e.Payload.(type) {
			case *wire.CCMessage:
				asked = e.CallID
			case *wire.AgentTool:
				t.Logf("notify_parent returns %v", p.ToolOutput.Any())
			case *wire.TurnEnd:
				if results++; results == 1 {
					later(t, func() error {
						return s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Tabs.", Answers: asked})
					})
				}
			}
		})
		text := strings.Join(said(events), "\n")
		if !strings.Contains(text, `user:message command c1 "Tabs."`) || !strings.Contains(text, "Tabs it is.") || results != 2 {
			t.Errorf("%d results:\n%s", results, text)
		}
		if n := count[*wire.AgentStart](events); n != 1 || asked == "" {
			t.Errorf("%d sessions, call %q", n, asked)
		}
		if told := strings.Join(l.asked(t), "\n"); !strings.Contains(told, "user Tabs.") || !strings.Contains(told, "delivered as message "+asked) {
			t.Errorf("the model was told\n%s", told)
		}
		last[*wire.AgentComplete](t, events)
	})
}

// An agent that waits for an answer comes to a safe point at once when it is interrupted, and
// goes on waiting when it is resumed.
func TestCLIQuestionInterrupted(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "question")
		began := time.Now()
		paused := l.run(t, r, func(s agent.Session, e *wire.Event) {
			if e.Type() == wire.TypeTurnEnd {
				began = time.Now()
				later(t, func() error { return s.Interrupt(t.Context()) })
			}
		})
		last[*wire.AgentPaused](t, paused)
		t.Logf("paused within %s", time.Since(began))
		r.Resume, r.Prompt, r.Asked = true, wire.RawString("continue"), []string{first[*wire.CCMessage](paused).CallID}
		results := 0
		events := l.run(t, r, func(s agent.Session, e *wire.Event) {
			if e.Type() != wire.TypeTurnEnd {
				return
			}
			if results++; results == 1 {
				later(t, func() error { return s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Tabs."}) })
			}
		})
		if results != 2 {
			t.Errorf("%d results:\n%s", results, strings.Join(heard(events), "\n"))
		}
		last[*wire.AgentComplete](t, events)
	})
}

// first returns the first event with a payload of a kind.
func first[P wire.Payload](events []*wire.Event) *wire.Event {
	for _, e := range events {
		if _, ok := e.Payload.(P); ok {
			return e
		}
	}
	return &wire.Event{}
}

// A notice reaches the model as words of the system.
func TestCLINotice(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		l.run(t, l.request(t, "midtool"), func(s agent.Session, e *wire.Event) {
			if p, ok := e.Payload.(*wire.ToolIntent); ok && strings.Contains(fmt.Sprint(p.ToolInput.Any()), "step1") {
				if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "[Worker events]\nA worker is done.", Notice: true}); err != nil {
					t.Error(err)
				}
			}
		})
		if told := l.lastRequest(t); !bytes.Contains(told, []byte(`[Worker events]\nA worker is done.`)) {
			t.Error("the model wasn't told")
		}
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

// An interruption is the end of the agent's work, also if a message waits for
// its turn; the call that was running isn't denied but interrupted.
func TestCLIInterruptWithMessageWaiting(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "longtool")
		events := l.run(t, r, func(s agent.Session, e *wire.Event) {
			p, ok := e.Payload.(*wire.ToolState)
			if !ok || p.To != wire.ToolExecuting {
				return
			}
			if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Hurry [[scn:second]]"}); err != nil {
				t.Error(err)
			}
			if err := s.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		})
		last[*wire.AgentPaused](t, events)
		for _, e := range events {
			if call, ok := e.Payload.(*wire.AgentTool); ok && (call.Denied || call.Error != wire.CallInterrupted) {
				t.Errorf("the call is %+v", call)
			}
		}
		if story := strings.Join(said(events), "\n"); strings.Contains(story, "user:message command") {
			t.Errorf("another turn began:\n%s", story)
		}
		r.Resume, r.Prompt = true, wire.RawString("Lab run [[scn:second]]")
		events = l.run(t, r, nil)
		if c := last[*wire.AgentComplete](t, events); c.Result != "Answer to the second message." {
			t.Errorf("result %q", c.Result)
		}
		if story := strings.Join(said(events), "\n"); strings.Contains(story, "Hurry") {
			t.Errorf("the message came by itself:\n%s", story)
		}
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

// points returns where the session can be forked, by what was said there.
func points(events []*wire.Event) map[string]string {
	at := make(map[string]string)
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.UserMessage:
			at[p.Content] = p.Point
		case *wire.AgentTool:
			at[fmt.Sprint(p.ToolOutput.Any())] = p.Point
		}
	}
	return at
}

// A session is forked where wake says: at a result, at a message that was sent
// while the agent worked, and at the prompt; and it is rolled back.
func TestCLIForkAt(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "midtool")
		events := l.run(t, r, func(s agent.Session, e *wire.Event) {
			if p, ok := e.Payload.(*wire.ToolIntent); ok && strings.Contains(fmt.Sprint(p.ToolInput.Any()), "step1") {
				if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "prefer tabs"}); err != nil {
					t.Error(err)
				}
			}
		})
		at := points(events)
		parent := r.SessionID
		r.Prompt = wire.RawString("Another way [[scn:second]]")
		begin := []string{"user Lab run [[scn:midtool]]", "assistant Step one.", "assistant Bash", "user step1"}
		for _, test := range []struct {
			point string
			into  string
			want  []string
		}{
			{"step1", "", append(begin, "user Another way [[scn:second]]")},
			{"prefer tabs", "", append(begin, "user Another way [[scn:second]]", "system prefer tabs")},
			{"step2", "", append(begin, "system prefer tabs", "assistant Step two.", "assistant Bash", "user step2", "user Another way [[scn:second]]")},
			{"step1", parent, append(begin, "user Another way [[scn:second]]")},
		} {
			r.ForkOf, r.ForkAt, r.SessionID = parent, at[test.point], test.into
			if r.SessionID == "" {
				r.SessionID = agent.NewSessionID()
			}
			events := l.run(t, r, nil)
			last[*wire.AgentComplete](t, events)
			if n := count[*wire.AgentError](events); n > 0 || r.ForkAt == "" {
				t.Errorf("fork at %s (%q): %v", test.point, r.ForkAt, heard(events))
			}
			var got []string
			for _, line := range l.asked(t) {
				if strings.HasPrefix(line, "system ") && strings.Contains(line, "prefer tabs") {
					line = "system prefer tabs"
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("fork at %s: the API was asked (-want +got):\n%s", test.point, diff)
			}
		}
		r.Resume, r.ForkOf, r.ForkAt, r.SessionID = true, "", "", parent // the rollback stays
		last[*wire.AgentComplete](t, l.run(t, r, nil))
		if got := strings.Join(l.asked(t), "; "); strings.Contains(got, "step2") || !strings.Contains(got, "Answer to the second message.") {
			t.Errorf("after the rollback the API was asked: %s", got)
		}
		r.Resume, r.ForkOf, r.ForkAt, r.SessionID = false, parent, at["step2"], agent.NewSessionID() // what was rolled back is gone
		var o agent.Outcome
		for _, e := range l.run(t, r, nil) {
			o.Observe(e)
		}
		if p := o.Error(); p == nil || p.ErrorType != agent.ErrorForkPointNotFound {
			t.Errorf("fork at what was rolled back: %+v", p)
		}
	})
}

// A call begins to execute before the agent is let go, in every mode.
func TestCLIStates(t *testing.T) {
	for mode, want := range map[string]string{
		"":        "PENDING→EXECUTING, result, PENDING→EXECUTING, result",
		"default": "ask, allow, APPROVED→EXECUTING, result, ask, allow, APPROVED→EXECUTING, result",
	} {
		t.Run("mode"+mode, func(t *testing.T) {
			versions(t, func(t *testing.T, l lab) {
				r := l.request(t, "denied")
				r.Options.PermissionMode = mode
				r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "tester"} }
				var got []string
				for _, e := range l.run(t, r, nil) {
					switch p := e.Payload.(type) {
					case *wire.PermissionRequired:
						got = append(got, "ask")
					case *wire.PermissionDecided:
						got = append(got, string(p.Decision))
					case *wire.ToolState:
						got = append(got, string(p.From)+"→"+string(p.To))
					case *wire.AgentTool:
						got = append(got, "result")
					}
				}
				if s := strings.Join(got, ", "); s != want {
					t.Errorf("got  %s\nwant %s", s, want)
				}
			})
		})
	}
}

// A message that interrupts is answered by the same process; the call that
// was interrupted is over.
func TestCLISendInterrupting(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		events := l.run(t, l.request(t, "longtool"), func(s agent.Session, e *wire.Event) {
			if p, ok := e.Payload.(*wire.ToolState); ok && p.To == wire.ToolExecuting {
				if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Leave it [[scn:second]]", Interrupt: true}); err != nil {
					t.Error(err)
				}
			}
		})
		if c := last[*wire.AgentComplete](t, events); c.Result != "Answer to the second message." {
			t.Errorf("result %q", c.Result)
		}
		text := strings.Join(said(events), "\n")
		if n := count[*wire.AgentTool](events); n != 1 || !strings.Contains(text, `user:message command c1 "Leave it`) {
			t.Errorf("%d results; events:\n%s", n, strings.Join(heard(events), "\n"))
		}
	})
}

// An agent that is interrupted while it waits for a decision doesn't wait any
// more.
func TestCLIInterruptWhileAsked(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "denied")
		asked := make(chan struct{})
		r.Options.PermissionMode = "default"
		r.Options.Decide = func(ctx context.Context, _ agent.Permission) agent.Verdict {
			close(asked)
			<-ctx.Done()
			return agent.Verdict{}
		}
		s := l.start(t, r)
		interrupted := make(chan error, 1)
		go func() {
			<-asked
			interrupted <- s.Interrupt(t.Context())
		}()
		events := drain(t, s, nil)
		if err := <-interrupted; err != nil {
			t.Error(err)
		}
		last[*wire.AgentPaused](t, events)
		if n := count[*wire.PermissionDecided](events); n != 1 {
			t.Errorf("%d decisions:\n%s", n, strings.Join(heard(events), "\n"))
		}
	})
}

// kept is the store of session files as another machine sees it.
func kept(t *testing.T, js jetstream.JetStream) agent.Transcript {
	t.Helper()
	s, err := transcript.Open(t.Context(), js, subjects.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	return agent.Transcript{Load: s.Load, Save: s.Save}
}

// kill ends processes as a machine does that goes down.
func kill(t *testing.T, environs []string) {
	t.Helper()
	if len(environs) == 0 {
		t.Error("nothing to kill")
	}
	for _, name := range environs {
		pid, err := strconv.Atoi(strings.Split(name, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have gone with another one
	}
}

// The agent is killed in the middle of a tool, and its machine is gone: another
// home and another folder go on with the session from what was kept.
func TestCLIMoves(t *testing.T) {
	js := natstest.JetStream(t)
	if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "move")
		r.Options.Env["MARKER"] = t.Name()
		r.Transcript = kept(t, js)
		var calls int
		var killing sync.WaitGroup
		events := drain(t, l.start(t, r), func(e *wire.Event) {
			if p, ok := e.Payload.(*wire.ToolState); !ok || p.To != wire.ToolExecuting {
				return
			}
			if calls++; calls == 2 {
				killing.Go(func() {
					for there := kept(t, js); t.Context().Err() == nil; <-time.After(50 * time.Millisecond) {
						if b, err := there.Load(t.Context(), r.SessionID); err != nil || bytes.Contains(b, []byte("tick $i")) {
							break
						}
					}
					kill(t, bearing(t, "MARKER="+t.Name()))
				})
			}
		})
		killing.Wait()
		if p := last[*wire.AgentError](t, events); p.ErrorType != wire.ErrorProcessDied {
			t.Errorf("error %+v", p)
		}
		for _, dir := range []string{r.Options.Env["HOME"], r.Options.Cwd} {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		there := l.request(t, "second")
		there.SessionID, there.Resume, there.Transcript = r.SessionID, true, kept(t, js)
		if c := last[*wire.AgentComplete](t, l.run(t, there, nil)); c.Result != "Answer to the second message." {
			t.Errorf("result %q", c.Result)
		}
		got := strings.Join(l.asked(t), "; ")
		want := "user Lab run [[scn:move]]; assistant Step one.; assistant Bash; user step1; assistant Step two.; "
		if !strings.Contains(got, want) || !strings.HasSuffix(got, "user Lab run [[scn:second]]") {
			t.Errorf("the API was asked: %s", got)
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
