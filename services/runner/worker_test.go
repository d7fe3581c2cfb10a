package runner_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

func makeFolder(t *testing.T, elem ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(elem...), 0o700); err != nil {
		t.Fatal(err)
	}
}

// waitsFirst plays an agent that its first session waits in until it is told to
// come to a safe point, and whose later ones complete.
func waitsFirst(a *act) {
	a.turn()
	if a.nth == 1 {
		a.say(&wire.AgentTextDelta{Content: "Hi", Block: 1}, "")
		a.pauseWhenTold()
		return
	}
	a.say(&wire.AgentComplete{Result: "done"}, "")
}

// F9, F16: a pause at the first piece of what the agent says interrupts it; its node
// stays running. Resumed, it goes on in the same execution and session.
func TestPauseInterrupts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: waitsFirst}
		b.runner("r1", p)
		b.submit("run1", single)
		b.until("run1", wire.TypeAgentTextDelta)
		b.command("run1", wire.Command{Type: "pause"})
		entries := b.until("run1", wire.TypeAgentPaused)
		s := b.fold("run1", entries)
		if paused, _ := s.Outputs["a"].Get("paused").Any().(bool); s.Status != wire.RunPaused || s.NodeStatus["a"] != wire.NodeRunning || !paused {
			t.Errorf("run is %s, a is %s with %v", s.Status, s.NodeStatus["a"], s.Outputs["a"].Any())
		}
		if paused := first[*wire.AgentPaused](t, entries); paused.Reason != wire.PauseOperator {
			t.Errorf("reason %q", paused.Reason)
		}
		<-time.After(time.Minute)
		if len(p.asked()) != 1 {
			t.Error("the agent of a paused run was started again")
		}
		b.command("run1", wire.Command{Type: "resume", Message: "go on"})
		state, entries := b.ended("run1")
		r := p.asked()
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeStart) != 1 || count(entries, wire.TypeAgentResumed) != 1 || len(r) != 2 {
			t.Fatalf("run ended as %s:\n%s", state.Result, story(entries))
		}
		if !r[1].Resume || r[1].SessionID != r[0].SessionID || promptOf(r[1]) != "go on" {
			t.Errorf("it was resumed with %+v", r[1])
		}
		if count(entries, wire.TypeFlowResumed) != 1 || count(entries, wire.TypeCommandReceived) != 2 {
			t.Errorf("history:\n%s", story(entries))
		}
	})
}

// F10, F11: an abort ends the agent without an outcome; a resumable one is a pause,
// of which the agent is told (it is asked to come to a safe point) and the log says
// why (RULES 8).
func TestAbortOfAgent(t *testing.T) {
	for _, resumable := range []bool{false, true} {
		natstest.Bubble(t, func(t *testing.T) {
			b := newBench(t)
			told := make(chan bool, 1)
			p := &puppet{play: func(a *act) {
				a.turn()
				select {
				case <-a.interrupted:
					told <- true
					a.say(&wire.AgentPaused{}, "")
				case <-a.ctx.Done():
					told <- false
				}
			}}
			b.runner("r1", p)
			b.submit("run1", single)
			b.until("run1", wire.TypeTurnStart)
			b.command("run1", wire.Command{Type: "abort", Resumable: resumable})
			want := wire.TypeAgentAborted
			if resumable {
				want = wire.TypeAgentPaused
			}
			entries := b.until("run1", want)
			s := b.fold("run1", entries)
			if s.NodeStatus["a"] != wire.NodeRunning || (s.Status == wire.RunAborted) == resumable || <-told != resumable {
				t.Errorf("resumable %t: run is %s, a is %s", resumable, s.Status, s.NodeStatus["a"])
			}
			if _, has := s.Outputs["a"]; has != resumable {
				t.Errorf("resumable %t: output %v", resumable, s.Outputs["a"].Any())
			}
			if resumable && (s.Status != wire.RunPaused || first[*wire.AgentPaused](t, entries).Reason != wire.PauseOperator) {
				t.Errorf("the run is %s, the agent was told %+v", s.Status, first[*wire.AgentPaused](t, entries))
			}
			<-time.After(time.Minute)
			if n := count(b.read("run1"), wire.TypeNodeError) + count(b.read("run1"), wire.TypeNodeComplete); n != 0 {
				t.Errorf("resumable %t: it has an outcome", resumable)
			}
		})
	}
}

// An agent that doesn't come to a safe point is ended.
func TestForcedPause(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			if a.nth > 1 {
				a.say(&wire.AgentComplete{Result: "done"}, "")
				return
			}
			a.turn()
			a.intend("c1")
			<-a.ctx.Done()
			a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: "killed"}, "c1")
		}}
		b.runner("r1", p)
		b.submit("run1", single)
		b.until("run1", wire.TypeToolIntent)
		b.command("run1", wire.Command{Type: "pause"})
		start := time.Now()
		entries := b.until("run1", wire.TypeAgentPaused)
		if took := time.Since(start); took < 5*time.Second || took > 15*time.Second {
			t.Errorf("it was ended after %s", took)
		}
		if paused := first[*wire.AgentPaused](t, entries); paused.Reason != "forced" {
			t.Errorf("reason %q", paused.Reason)
		}
		b.command("run1", wire.Command{Type: "resume"})
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeToolSealed) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// An operator's pause lets commands finish; a pause that waits for a decision
// leaves agents alone.
func TestPauseForDecision(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		p := &puppet{play: func(a *act) {
			a.turn()
			select {
			case <-a.interrupted:
				t.Error("the agent was interrupted")
			case <-time.After(time.Minute):
			case m := <-a.messages:
				a.say(&wire.AgentComplete{Result: m.Content}, "")
				return
			}
			select {
			case m := <-a.messages:
				a.say(&wire.AgentComplete{Result: m.Content}, "")
			case <-a.ctx.Done():
			}
		}}
		b.runner("r1", p)
		l.offer(wire.TypeTurnStart)
		l.decide(&wire.FlowPaused{Reason: wire.PauseRequiresAction})
		<-time.After(2 * time.Minute)
		// Resumed with a message, the agent that is at work gets it, once.
		l.decide(&wire.FlowResumed{Message: "by the way", Strategy: "crash"})
		entries := b.until("run1", wire.TypeNodeComplete)
		if got := first[*wire.AgentComplete](t, entries).Result; got != "by the way" {
			t.Errorf("it was told %q", got)
		}
		if n := b.fold("run1", entries).Nodes["a"]; n.Resume != nil || len(p.asked()) != 1 {
			t.Errorf("a is to be resumed: %+v; %d sessions", n.Resume, len(p.asked()))
		}
	})
}

// A runner that ends lets its agents come to a safe point, and another one goes
// on at once; a command may finish.
func TestDrain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: waitsFirst}
		stop := b.runner("r1", p)
		b.submit("run1", single)
		b.until("run1", wire.TypeTurnStart)
		start := time.Now()
		stop()
		entries := b.read("run1")
		if paused := first[*wire.AgentPaused](t, entries); paused.Reason != "shutdown" {
			t.Errorf("reason %q", paused.Reason)
		}
		if s := b.fold("run1", entries); s.NodeStatus["a"] != wire.NodeRunning || s.Status != wire.RunRunning {
			t.Errorf("run is %s, a is %s", s.Status, s.NodeStatus["a"])
		}
		b.runner("r2", p)
		state, entries := b.ended("run1")
		if took := time.Since(start); state.Result != wire.FlowStatusComplete || took > 5*time.Second || count(entries, wire.TypeNodeStart) != 1 {
			t.Errorf("run ended as %s after %s:\n%s", state.Result, took, story(entries))
		}
	})
}

// A deaf agent is ended within the time to drain.
func TestDrainForces(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			<-a.ctx.Done()
		}}
		stop := b.runner("r1", p)
		b.submit("run1", single)
		b.until("run1", wire.TypeTurnStart)
		start := time.Now()
		stop()
		if took := time.Since(start); took > 21*time.Second {
			t.Errorf("ending took %s", took)
		}
		if paused := first[*wire.AgentPaused](t, b.read("run1")); paused.Reason != "forced" {
			t.Errorf("reason %q", paused.Reason)
		}
	})
}

// S16: an agent that asks for permission waits until a person approves or denies; a
// decision reaches only the call that it names. What an agent needs no permission
// for, or never gets, is its program's matter (claude, TestCLIPermissions).
func TestApproveAndDeny(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		verdicts := make(chan agent.Verdict, 2)
		p := &puppet{play: func(a *act) {
			a.turn()
			for _, call := range []string{"c1", "c2"} {
				a.intend(call)
				a.say(&wire.PermissionRequired{ToolName: "Bash"}, call)
				v := a.request.Options.Decide(a.ctx, agent.Permission{CallID: call, ToolName: "Bash"})
				verdicts <- v
				d := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: v.By, Note: v.Note}
				if v.Allow {
					d.Decision = wire.DecisionAllow
				}
				a.say(d, call)
				a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Denied: !v.Allow, Error: v.Note}, call)
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		b.runner("r1", p)
		b.submit("run1", strings.Replace(single, `prompt: "do it"`, `prompt: "do it", permissionMode: default`, 1))
		asked := len(b.until("run1", wire.TypePermissionRequired))
		b.command("run1", wire.Command{Type: "approve", CallID: "c2"})
		<-time.After(time.Minute)
		select {
		case v := <-verdicts:
			t.Fatalf("nobody has decided on c1, and the verdict is %+v", v)
		default:
		}
		b.command("run1", wire.Command{Type: "approve", CallID: "c1", By: "ann", UpdatedInput: wire.RawString("safe")})
		if v := <-verdicts; !v.Allow || v.By != "ann" || string(v.UpdatedInput) != string(wire.RawString("safe")) {
			t.Errorf("c1: %+v", v)
		}
		b.after("run1", asked, wire.TypePermissionRequired)
		b.command("run1", wire.Command{Type: "deny", CallID: "c2", Note: "no"})
		if v := <-verdicts; v.Allow || v.By != "operator" || v.Note != "no" {
			t.Errorf("c2: %+v", v)
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || len(state.Inbox) != 0 {
			t.Errorf("run ended as %s, left are %v:\n%s", state.Result, state.Inbox, story(entries))
		}
	})
}

// A message may interrupt what the agent is doing, which stays at work (issue 3).
// F14: it reaches only the execution that it names.
func TestSendInterrupts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			if a.request.NodeID == "b" {
				select {
				case m := <-a.messages:
					t.Errorf("b was told %q", m.Content)
				case <-time.After(time.Minute):
				}
				a.say(&wire.AgentComplete{Result: "b"}, "")
				return
			}
			m := <-a.messages
			a.say(&wire.UserMessage{Content: m.Content, Source: "command", CommandID: m.CommandID}, "")
			if !m.Interrupt {
				t.Error("it doesn't interrupt")
			}
			a.say(&wire.AgentComplete{Result: m.Content}, "")
		}}
		b.runner("r1", p)
		b.submit("run1", `
name: two
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
`)
		b.until("run1", wire.TypeTurnStart)
		<-time.After(time.Second) // b is at work too
		b.command("run1", wire.Command{Type: "send", ExecID: "a#1", Message: "stop that", Interrupt: true})
		state, entries := b.ended("run1")
		if text := state.Outputs["a"].TextAt("text"); text != "stop that" || len(state.Inbox) != 0 {
			t.Errorf("a was told %q, left are %v:\n%s", text, state.Inbox, story(entries))
		}
	})
}

// journal collects what is logged.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.buf.String(), text)
}

// A worker that has lost its lease, or its node, adds nothing and says once that
// it has given up (RULES 5, 6).
func TestLostLeaseAddsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		said := make(chan struct{})
		p := &puppet{play: func(a *act) {
			a.turn()
			<-said
			a.intend("late")
			a.say(&wire.AgentComplete{Result: "late"}, "")
		}}
		var j journal
		r, err := runner.New(runner.Config{
			ID: "r1", Workspaces: t.TempDir(), Providers: map[string]agent.Provider{"claude": p},
		}, b.log, slog.New(slog.NewTextHandler(&j, nil)))
		if err != nil {
			t.Fatal(err)
		}
		b.background(r.Run)
		l.offer(wire.TypeTurnStart)
		b.claim("run1", "a", "thief")
		before := b.read("run1")
		<-time.After(30 * time.Second)
		close(said)
		<-time.After(30 * time.Second)
		if after := b.read("run1"); len(after) != len(before) {
			t.Errorf("it added:\n%s", story(after[len(before):]))
		}
		if n := j.count("gave up: another runner has taken over"); n != 1 {
			t.Errorf("it said %d times that it gave up:\n%s", n, j.buf.String())
		}
	})
}

// An agent begins no tool while another worker might hold its node's lease.
func TestNoToolWithoutLease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		began := make(chan time.Duration, 1)
		p := &puppet{play: func(a *act) {
			a.turn()
			b.server.Stop()
			<-time.After(12 * time.Second) // longer than a lease lives
			start := time.Now()
			if a.say(&wire.ToolIntent{ToolName: "Read", ToolInput: wire.Null, Idempotent: true}, "c1") {
				began <- time.Since(start)
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		b.runner("r1", p)
		b.submit("run1", single)
		<-time.After(2 * time.Minute)
		b.server.Start(t)
		if waited := <-began; waited < 100*time.Second {
			t.Errorf("it began after %s, the server was away for longer", waited)
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// A worker anchors its node while it works, and an owner its run, three times
// before they would age out of the stream (RULES 11).
func TestWorkerAnchors(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		js := b.log.JetStream()
		s, err := js.Stream(t.Context(), subjects.Default.EventsStream())
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		cfg.MaxAge = 6 * time.Minute
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		p := &puppet{play: func(a *act) {
			a.turn()
			<-time.After(30*time.Minute + 42*time.Second) // not together with an anchor
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		b.runner("r1", p)
		b.submit("run1", single)
		b.until("run1", wire.TypeTurnStart)
		for range 24 * 2 {
			<-time.After(30 * time.Second)
			for _, node := range []string{wire.RunNode, "a"} {
				last, found, err := b.log.Last(t.Context(), "run1", node)
				if err != nil || !found {
					t.Fatalf("the last event of %s: %t, %v", node, found, err)
				}
				if age := time.Since(last.Time); age > cfg.MaxAge/3+5*time.Second {
					t.Errorf("the last event of %s, %s, is %s old", node, last.Event.Type(), age)
				}
			}
		}
		<-time.After(9 * time.Minute)
		last, found, err := b.log.Last(t.Context(), "run1", "a")
		if err != nil || !found || last.Event.Type() != wire.TypeNodeComplete {
			t.Errorf("the last event of the node is %v, %t, %v", last.Event, found, err)
		}
	})
}

// The death of a worker moves its node within a lease's time to live and two
// seconds; its session goes on there (RULES 7).
func TestDeadWorker(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		dead := b.server.Conn(t)
		log, err := eventlog.Open(t.Context(), dead, eventlog.Options{Logger: b.logger()})
		if err != nil {
			t.Fatal(err)
		}
		p := &puppet{play: waitsFirst}
		b.runner("owner", p, func(c *runner.Config) { c.Pools = []string{"none"} })
		r, err := runner.New(runner.Config{
			ID: "r1", Workspaces: t.TempDir(), Providers: map[string]agent.Provider{"claude": p},
		}, log, b.logger())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var over sync.WaitGroup
		over.Go(func() { _ = log.Run(ctx) }) // how the dead end is of no interest
		b.submit("run1", single)
		b.until("run1", wire.TypeNodeScheduled)
		over.Go(func() { _ = r.Run(ctx) })
		b.until("run1", wire.TypeTurnStart)
		b.runner("r2", p)
		<-time.After(time.Minute)
		dead.Close() // as seen from elsewhere, it is dead
		start := time.Now()
		b.until("run1", wire.TypeAgentResumed)
		if took := time.Since(start); took > 12*time.Second {
			t.Errorf("the node moved after %s", took)
		}
		state, entries := b.ended("run1")
		r2 := p.asked()[1]
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeStart) != 1 || r2.SessionID != p.asked()[0].SessionID || !r2.Resume {
			t.Errorf("run ended as %s, resumed with %+v:\n%s", state.Result, r2, story(entries))
		}
		if state.Nodes["a"].Runner != "r2" {
			t.Errorf("it moved to %s", state.Nodes["a"].Runner)
		}
		cancel()
		over.Wait()
	})
}

// What is cloned is what the flow names: a branch, a tag, a commit, or the
// default branch. What can't be cloned fails the node and says why.
func TestGitWorkspace(t *testing.T) {
	origin := t.TempDir()
	shell(t, origin, `git init -q -b main . && git config user.email a@b && git config user.name n &&
		echo one > f && git add f && git commit -qm one && git tag v1 &&
		git checkout -q -b feature/x && echo two > f && git commit -qam two && git checkout -q main && echo three > f && git commit -qam three &&
		git checkout -q --detach && echo lost > f && git commit -qam lost && git rev-parse HEAD > .git/lost && git checkout -q main`)
	lost, err := os.ReadFile(filepath.Join(origin, ".git", "lost"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	b.runner("r1", &puppet{})
	for ref, want := range map[string]string{"": "three", "@main": "three", "@feature/x": "two", "@v1": "one", "@" + strings.TrimSpace(string(lost)): "lost", "@nothing": ""} {
		id := "run" + strings.NewReplacer("@", "-", "/", "-").Replace(ref)
		source := `
name: clone
workspace: "git: ` + origin + ref + `"
nodes:
  - {id: a, type: exec, input: {command: "cat f"}}
`
		b.submit(id, source)
		state, _ := b.ended(id)
		out := state.Outputs["a"].TextAt("stdout")
		if strings.TrimSpace(out) != want {
			t.Errorf("ref %q: %q, want %q (%s)", ref, out, want, state.Error)
		}
		if n := state.Nodes["a"]; want == "" && (n.ErrorType != "sandbox_init_failed" || !strings.Contains(n.Error, "nothing")) {
			t.Errorf("it failed with %q: %s", n.ErrorType, n.Error)
		}
	}
}

func shell(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Files that the agent knows are watched, and again when it goes on.
func TestFilesAreWatchedAgain(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "notes.txt")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("one")
	input, err := wire.Marshal(map[string]string{"file_path": path})
	if err != nil {
		t.Fatal(err)
	}
	p := &puppet{play: func(a *act) {
		a.turn()
		if a.nth == 1 {
			a.say(&wire.ToolIntent{ToolName: "Read", ToolInput: input}, "c1")
			a.say(&wire.AgentTool{ToolName: "Read", ToolInput: input, ToolOutput: wire.Null}, "c1")
			write("two, by somebody else")
			a.pauseWhenTold()
			return
		}
		write("three, by somebody else again")
		select {
		case <-a.messages:
		case <-a.ctx.Done():
		}
		a.say(&wire.AgentComplete{Result: "done"}, "")
	}}
	b.runner("r1", p)
	b.submit("run1", single, func(r *wire.RunRequest) { r.Workspace = dir })
	changed := first[*wire.FileChanged](t, b.until("run1", wire.TypeFileChanged))
	if !changed.External || filepath.Base(changed.Path) != "notes.txt" || changed.Change != "modified" {
		t.Errorf("changed: %+v", changed)
	}
	b.command("run1", wire.Command{Type: "pause"})
	n := len(b.until("run1", wire.TypeAgentPaused))
	b.command("run1", wire.Command{Type: "resume"})
	b.after("run1", n, wire.TypeFileChanged)
	b.command("run1", wire.Command{Type: "send", Message: "enough"})
	if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
		t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
	}
}
