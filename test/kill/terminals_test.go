//go:build kill && claudecli

package kill_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// The scenarios of sessions in terminals: a call that its person is asked about, and one that isn't.
var terminalScripts = map[string]string{
	"ask": `{"turns":[
{"blocks":[{"t":"text","text":"I make a file."},{"t":"tool","name":"Bash","input":{"command":"touch made-$RANDOM","description":"Make a file"}}]},
{"blocks":[{"t":"text","text":"So it is: ${LAST_TOOL_RESULT}. Done."}]}]}`,
	"look": `{"turns":[
{"blocks":[{"t":"think","text":"A look first."},{"t":"text","text":"I look around."},{"t":"tool","name":"Bash","input":{"command":"ls","description":"List files"}}]},
{"blocks":[{"t":"text","text":"I have seen it. Done."}]}]}`,
}

// terminal is a session of Claude Code in a window of tmux.
type terminal struct {
	l       *bench
	id      string // of its session
	project string
	said    int
	deaths  int
}

// terminals are sessions of one person, in a few projects, and the tmux that shows them.
type terminals struct {
	*bench

	env []string // of the sessions
	all []*terminal
}

// newTerminals prepares five sessions in three projects, none of which has begun, with Claude Code's hooks installed.
func newTerminals(t *testing.T, binary string) *terminals {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Fatal(err)
	}
	ts := &terminals{bench: &bench{lab.Empty(t, lab.Config{Programs: p, TTL: 5 * time.Second, Limit: 20 * time.Minute, Seed: *seedFlag, Keep: *keepFlag})}}
	ts.Prog.Claude = binary
	projects := map[string]any{}
	for n := range 5 {
		one := &terminal{l: ts.bench, id: fmt.Sprintf("5e551011-0000-4000-8000-%012d", n), project: filepath.Join(ts.Dir, fmt.Sprintf("project%d", n%3))}
		ts.Must(os.MkdirAll(one.project, 0o700))
		projects[one.project] = map[string]any{"hasTrustDialogAccepted": true}
		ts.all = append(ts.all, one)
	}
	known, err := json.Marshal(map[string]any{
		"hasCompletedOnboarding": true, "theme": "dark", "customApiKeyResponses": map[string]any{"approved": []string{"dummy"}}, "projects": projects,
	})
	ts.Must(err)
	ts.Must(os.MkdirAll(ts.config(), 0o700))
	ts.Must(os.WriteFile(filepath.Join(ts.config(), ".claude.json"), known, 0o600))
	ts.env = append(append(ts.Env(""), ts.agentEnv(terminalScripts)...), "CLAUDE_CONFIG_DIR="+ts.config(), "TERM=xterm-256color")
	c := exec.CommandContext(ts.Ctx, p.Wake, "hooks", "install", "--data-dir", filepath.Join(ts.Dir, "up"))
	bin := filepath.Join(ts.Dir, "bin") // install asks the claude in PATH for its version
	ts.Must(os.Mkdir(bin, 0o700))
	ts.Must(os.Symlink(binary, filepath.Join(bin, "claude")))
	c.Env = append(slices.Clone(ts.env), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		ts.Fatalf("%v: %s", err, out)
	}
	return ts
}

func (ts *terminals) config() string { return filepath.Join(ts.Dir, "settings") }

// watch starts a watcher of the sessions.
func (ts *terminals) watch() *lab.Proc {
	return ts.Start("watch", append(ts.Env(""), "WAKE_NATS_URL="+ts.URL), ts.Prog.Wake, "watch", ts.config(), "--idle", "2s", "--data-dir", filepath.Join(ts.Dir, "watch"), "--wait", "1m")
}

func (l *bench) tmux(args ...string) (string, error) {
	c := exec.CommandContext(l.Ctx, "tmux", append([]string{"-S", filepath.Join(l.Dir, "tmux"), "-f", "/dev/null"}, args...)...)
	c.Env = append(l.Env(""), "TERM=xterm-256color")
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("tmux %s: %w: %s", args[0], err, out)
	}
	return string(out), err
}

// start begins the session, or goes on with it.
func (ts *terminals) start(t *terminal) {
	ts.Helper()
	how := "--session-id"
	if _, err := os.Stat(t.file()); err == nil {
		how = "--resume"
	}
	argv := []string{"new-session", "-d", "-s", t.id, "-x", "150", "-y", "50", "-c", t.project, "env", "-i"}
	_, err := ts.tmux(append(append(argv, ts.env...), ts.Prog.Claude, "--permission-mode", "default", how, t.id)...)
	ts.Must(err)
}

// file is the file of the session.
func (t *terminal) file() string {
	found, _ := filepath.Glob(filepath.Join(t.l.Dir, "settings", "projects", "*", t.id+".jsonl")) // the pattern is one
	if len(found) == 0 {
		return filepath.Join(t.l.Dir, "none")
	}
	return found[0]
}

// screen is what the terminal shows; "" if its session isn't there any more.
func (t *terminal) screen() string {
	out, err := t.l.tmux("capture-pane", "-p", "-t", t.id)
	if err != nil {
		return ""
	}
	return out
}

// asks reports whether the terminal shows a dialog; idle, whether it takes a prompt.
func asks(screen string) bool { return strings.Contains(screen, "Do you want to proceed?") }

func idle(screen string) bool {
	return strings.Contains(screen, "❯") && !asks(screen) && !strings.Contains(screen, "esc to interrupt")
}

func (t *terminal) press(keys ...string) {
	_, _ = t.l.tmux(append([]string{"send-keys", "-t", t.id}, keys...)...) // the session may have been killed
}

// say types a prompt. It does nothing if the session is killed meanwhile.
func (t *terminal) say(scenario string) {
	t.said++
	text := fmt.Sprintf("word %d [[scn:%s]]", t.said, scenario)
	t.press("-l", text)
	for range 50 {
		screen := t.screen()
		if screen == "" || strings.Contains(screen, text) {
			break
		}
		t.wait(100 * time.Millisecond)
	}
	t.press("Enter")
}

func (t *terminal) wait(d time.Duration) {
	select {
	case <-t.l.Ctx.Done():
	case <-time.After(d):
	}
}

// inbox returns what waits for a person; nothing while wake is away.
func (ts *terminals) inbox() []wire.Approval {
	ctx, stop := context.WithTimeout(ts.Ctx, 5*time.Second)
	defer stop()
	all, _ := api.Call[wire.ApprovalsResponse](ctx, ts.NC, subjects.Default, wire.VerbApprovals, wire.ApprovalsRequest{}) // see above
	return all.Approvals
}

// order gives a command by the console, as a program does.
func (ts *terminals) order(run string, form url.Values) (status int) {
	ts.Helper()
	b, err := os.ReadFile(filepath.Join(ts.Dir, "up", "console-url"))
	ts.Must(err)
	at, fragment, _ := strings.Cut(strings.TrimSpace(string(b)), "#")
	_, token, _ := strings.Cut(fragment, "=")
	return ts.post(strings.TrimSuffix(at, "/")+"/runs/"+run+"/command", "", token, form)
}

func (ts *terminals) post(address, host, token string, form url.Values) (status int) {
	ts.Helper()
	r, err := http.NewRequestWithContext(ts.Ctx, http.MethodPost, address, strings.NewReader(form.Encode()))
	ts.Must(err)
	if host != "" {
		r.Host = host
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	ts.Must(err)
	body, _ := io.ReadAll(answer.Body) // for the story
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		ts.Tell("%s: %s %s", address, answer.Status, body)
	}
	return answer.StatusCode
}

// Five sessions of Claude Code in terminals, in three projects. One after the other waits for a permission: it is in the inbox within a
// second, and is answered from there, by the console, by a link, and in the terminal; the terminal goes on.
func TestClaudeTerminalsAnswered(t *testing.T) {
	versions(t, func(t *testing.T, binary string) {
		ts := newTerminals(t, binary)
		told := filepath.Join(ts.Dir, "told.json")
		rules := filepath.Join(ts.Dir, "rules.yaml")
		ts.Must(os.WriteFile(rules, fmt.Appendf(nil, `
sinks:
  phone: {type: exec, command: [/bin/sh, -c, 'cat > %[1]s.new; mv %[1]s.new %[1]s']}
rules:
  - match: {kind: [waiting]}
    sinks: [phone]
`, told), 0o600))
		ts.Up("up", "--rules", rules, "--public-url", "https://wake.example/")
		ts.watch()
		for _, one := range ts.all {
			ts.start(one)
		}
		answers := []struct {
			by    string
			allow bool
			give  func(one *terminal, a wire.Approval)
		}{
			{"wake approve", true, func(_ *terminal, a wire.Approval) { ts.Wake("approve", a.RunID, a.CallID, "--note", "do") }},
			{"the console", true, func(_ *terminal, a wire.Approval) {
				if got := ts.order(a.RunID, url.Values{"type": {"approve"}, "node": {a.NodeID}, "call": {a.CallID}}); got != http.StatusOK {
					ts.Errorf("the console answers %d", got)
				}
			}},
			{"a link", true, func(_ *terminal, a wire.Approval) {
				var alert struct{ Source, AnswerURL string }
				ts.Until("the link is told", 20*time.Second, func() bool {
					b, err := os.ReadFile(told)
					return err == nil && json.Unmarshal(b, &alert) == nil && strings.HasSuffix(alert.Source, "/"+a.RunID) && alert.AnswerURL != ""
				})
				link, err := url.Parse(alert.AnswerURL)
				ts.Must(err)
				b, err := os.ReadFile(filepath.Join(ts.Dir, "up", "console-url"))
				ts.Must(err)
				at, _, _ := strings.Cut(strings.TrimSpace(string(b)), "#")
				if got := ts.post(strings.TrimSuffix(at, "/")+link.Path, link.Host, "", url.Values{"type": {"approve"}}); got != http.StatusOK {
					ts.Errorf("the link answers %d", got)
				}
			}},
			{"the terminal", true, func(one *terminal, _ wire.Approval) { one.press("1") }},
			{"wake deny", false, func(_ *terminal, a wire.Approval) { ts.Wake("deny", a.RunID, a.CallID, "--note", "not now") }},
		}
		for n, one := range ts.all {
			ts.Until("a prompt of "+one.id, time.Minute, func() bool { return idle(one.screen()) })
			one.say("ask")
			var shown time.Time
			ts.Until("a dialog of "+one.id, time.Minute, func() bool {
				shown = time.Now()
				return asks(one.screen())
			})
			var waits wire.Approval
			ts.Until("it is in the inbox", 20*time.Second, func() bool {
				all := ts.inbox()
				i := slices.IndexFunc(all, func(a wire.Approval) bool { return a.RunID == one.id })
				if i >= 0 {
					waits = all[i]
				}
				return i >= 0
			})
			took := time.Since(shown)
			if took > time.Second {
				ts.Errorf("in the inbox after %s", took)
			}
			if strings.HasPrefix(waits.CallID, "ask-") {
				t.Logf("%s: Claude Code wrote the call later than its hook waits", one.id)
			}
			began := time.Now()
			answers[n].give(one, waits)
			ts.Until("the terminal goes on after "+answers[n].by, 30*time.Second, func() bool {
				screen := one.screen()
				return !asks(screen) && strings.Contains(screen, "Done.") && idle(screen)
			})
			t.Logf("%s: in the inbox after %s, the terminal has gone on %s after it was answered by %s", one.id, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), answers[n].by)
			made, err := filepath.Glob(filepath.Join(one.project, "made-*"))
			ts.Must(err)
			if want := 1 + n/3; answers[n].allow && len(made) != want {
				ts.Errorf("%d files, want %d", len(made), want)
			}
			ts.Until("nothing waits", 10*time.Second, func() bool { return len(ts.inbox()) == 0 })
		}
		ts.checkTold()
	})
}

// Five sessions of Claude Code in terminals; they, what watches them, and the server of their hooks are killed at random while their
// person works with them: in the end the log has each line of their files once, each event once, and nothing waits.
func TestClaudeTerminalsKilled(t *testing.T) {
	versions(t, func(t *testing.T, binary string) {
		ts := newTerminals(t, binary)
		up := ts.Up("up")
		watch := ts.watch()
		for _, one := range ts.all {
			ts.start(one)
		}
		working, stop := context.WithCancel(ts.Ctx)
		defer stop()
		done := make(chan struct{})
		go func() { // the person
			defer close(done)
			for turn := 0; working.Err() == nil; turn++ {
				for n, one := range ts.all {
					switch screen := one.screen(); {
					case screen == "":
						ts.start(one)
					case asks(screen) && turn%2 == 0:
						one.press("1")
					case asks(screen):
						_, _ = ts.Try("approve", one.id, "toolu_") // wake may be away
					case idle(screen):
						one.say([]string{"ask", "look"}[(turn+n)%2])
					}
				}
			}
		}()
		counts := map[string]int{}
		for range *killsFlag {
			(&terminal{l: ts.bench}).wait(time.Duration(200+ts.Rand.IntN(4000)) * time.Millisecond)
			switch n := ts.Rand.IntN(12); {
			case n < 4:
				ts.Kill(watch)
				watch = ts.watch()
				counts["watch"]++
			case n < 7:
				ts.Kill(up.Proc)
				ts.Restart(up)
				counts["server"]++
			default:
				one := ts.all[n-7]
				if pid, err := ts.tmux("list-panes", "-t", one.id, "-F", "#{pane_pid}"); err == nil {
					ts.Must(exec.CommandContext(ts.Ctx, "kill", "-9", strings.TrimSpace(pid)).Run())
					one.deaths++
					counts["session"]++
				}
			}
		}
		ts.Ready(up)
		stop()
		<-done
		for _, one := range ts.all {
			ts.Until("a rest of "+one.id, time.Minute, func() bool {
				screen := one.screen()
				if asks(screen) {
					one.press("1")
				}
				return screen == "" || idle(screen)
			})
		}
		ts.checkTold()
		ts.Until("nothing waits", 30*time.Second, func() bool { return len(ts.inbox()) == 0 })
		t.Logf("killed: %v", counts)
	})
}

// checkTold waits until the log has the files of all sessions, and looks for what it lacks and what it has twice.
func (ts *terminals) checkTold() {
	ts.Helper()
	log := openLog(ts.bench)
	for _, one := range ts.all {
		content, err := os.ReadFile(one.file())
		if errors.Is(err, os.ErrNotExist) {
			continue // it was killed before it had said a word
		}
		ts.Must(err)
		index, want := session.NewIndex(nil), map[string]bool{}
		for line := range strings.Lines(string(content)) {
			if l := index.Add([]byte(strings.TrimSpace(line))); !l.Omitted {
				want[l.Key] = true
			}
		}
		var lacks []string
		deadline := time.Now().Add(30 * time.Second)
		for {
			told, doubles := toldOf(ts.bench, log, one.id)
			if len(doubles) > 0 {
				ts.Errorf("%s: told twice: %v", one.id, doubles)
			}
			lacks = slices.DeleteFunc(slices.Collect(keysOf(want)), func(key string) bool { return told[key] })
			if len(lacks) == 0 && len(told) == len(want) {
				break
			}
			if time.Now().After(deadline) {
				ts.Errorf("%s: the log has %d of %d lines; it lacks %v", one.id, len(told), len(want), lacks)
				break
			}
			one.wait(100 * time.Millisecond)
		}
		asked := ts.checkAsked(log, one.id)
		ts.Logf("%s: %d lines, %d prompts, %d times asked, killed %d times", one.id, len(want), one.said, asked, one.deaths)
	}
}

func keysOf(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// checkAsked looks whether each request of a session was told once and closed once.
func (ts *terminals) checkAsked(log *eventlog.Log, id string) (asked int) {
	ts.Helper()
	open := map[string]bool{}
	for e, err := range log.Read(ts.Ctx, eventlog.Query{Run: id, Node: wire.HooksNode, Kinds: []wire.Kind{wire.KindTool}}) {
		ts.Must(err)
		ts.Must(e.Err)
		switch e.Event.Payload.(type) {
		case *wire.PermissionRequired:
			if open[e.Event.CallID] {
				ts.Errorf("%s: %s is asked twice", id, e.Event.CallID)
			}
			open[e.Event.CallID] = true
			asked++
		case *wire.PermissionDecided, *wire.ToolSealed:
			if !open[e.Event.CallID] {
				ts.Errorf("%s: %s is answered twice", id, e.Event.CallID)
			}
			open[e.Event.CallID] = false
		}
	}
	return asked
}
