package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// The run of a runner that is gone goes on in its folder with a runner that sees
// it.
func TestFolderIsShared(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		dir := t.TempDir()
		same := func(c *runner.Config) { c.Workspaces = dir }
		r1 := b.process("r1", gated(nil), same)
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		p := &scripted{say: echo}
		b.process("r2", p, same)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || len(p.started()) != 2 || state.Workspace != filepath.Join(dir, "run1") {
			t.Errorf("run ended as %s in %s:\n%s", state.Result, state.Workspace, story(entries))
		}
	})
}

// A run that only waits for a slot when its runner and all folders there are gone begins in a folder of another runner; not so if its
// folder was named.
func TestUnusedFolderLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		top := t.TempDir()
		first, second := filepath.Join(top, "a", "workspaces"), filepath.Join(top, "b", "workspaces")
		on := func(dir string) func(*runner.Config) {
			return func(c *runner.Config) { c.Workspaces, c.MaxAgents, c.WorkspaceGrace = dir, 1, 3*time.Second }
		}
		r1 := b.process("r1", gated(nil), on(first))
		b.submit("busy", one)
		b.until("busy", wire.TypeAgentStart)
		b.submit("waits", one)
		b.submit("named", one, func(r *wire.RunRequest) { r.Workspace = filepath.Join(top, "named") })
		b.until("waits", wire.TypeNodeScheduled)
		b.until("named", wire.TypeNodeScheduled)
		r1.kill()
		for _, dir := range []string{first, filepath.Join(top, "named")} {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		p := &scripted{say: echo}
		b.process("r2", p, on(second))
		state, entries := b.ended("waits")
		if dir := filepath.Join(second, "waits"); state.Result != wire.FlowStatusComplete || state.Workspace != dir || count(entries, wire.TypeFlowPaused) != 0 {
			t.Errorf("the run that waited ended as %s in %s, want complete in %s:\n%s", state.Result, state.Workspace, dir, story(entries))
		}
		for _, id := range []string{"busy", "named"} {
			entries := b.until(id, wire.TypeFlowPaused)
			if p := entries[len(entries)-1].Event.Payload.(*wire.FlowPaused); p.Reason != wire.PauseWorkspaceLost {
				t.Errorf("%s paused for %s", id, p.Reason)
			}
		}
		if n := len(p.started()); n != 1 {
			t.Errorf("%d agents began", n)
		}
	})
}

// A run whose folder is gone with its runner is paused after a while, and goes on
// by itself when that runner is back.
func TestWorkspaceLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		dir := t.TempDir()
		r1 := b.process("r1", gated(nil), func(c *runner.Config) { c.Workspaces = dir })
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		folder := filepath.Join(dir, "run1")
		if err := os.Rename(folder, folder+".away"); err != nil {
			t.Fatal(err)
		}
		other := &scripted{say: echo}
		b.process("r2", other)
		start := time.Now()
		entries := b.until("run1", wire.TypeFlowPaused)
		p := entries[len(entries)-1].Event.Payload.(*wire.FlowPaused)
		if p.Reason != wire.PauseWorkspaceLost || !strings.Contains(p.Message, "runner r1") || !strings.Contains(p.Message, folder) {
			t.Errorf("paused for %+v", p)
		}
		if took := time.Since(start); took < time.Minute || took > 2*time.Minute {
			t.Errorf("it took %s", took)
		}
		<-time.After(10 * time.Minute)
		if n := len(b.read("run1")); n != len(entries) {
			t.Errorf("a paused run had %d more events", n-len(entries))
		}
		if err := os.Rename(folder+".away", folder); err != nil {
			t.Fatal(err)
		}
		back := &scripted{say: echo}
		b.process("r1", back, func(c *runner.Config) { c.Workspaces = dir })
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || len(other.started())+len(back.started()) != 2 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// A run that is paused without its folder doesn't go on by itself when a person, or its
// parent, has paused it meanwhile.
func TestPausedWithoutFolder(t *testing.T) {
	for reason, prefix := range map[string]string{wire.PauseOperator: "my", wire.PauseParent: "parent"} {
		t.Run(reason, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				dir := t.TempDir()
				in := func(c *runner.Config) { c.Workspaces = dir }
				r1 := b.process("r1", gated(nil), in)
				b.submit("run1", chain)
				b.until("run1", wire.TypeAgentStart)
				r1.kill()
				folder := filepath.Join(dir, "run1")
				if err := os.Rename(folder, folder+".away"); err != nil {
					t.Fatal(err)
				}
				b.process("r2", &scripted{say: echo})
				b.until("run1", wire.TypeFlowPaused)
				tell := func(kind, want string) {
					t.Helper()
					if r := b.tell(wire.Command{Type: kind, ID: prefix + "-" + kind + "-7", RunID: "run1"}); code(r) != want {
						t.Fatalf("%s: %+v", kind, r)
					}
				}
				tell("pause", "accepted")
				if r := b.tell(wire.Command{Type: "pause", RunID: "run1"}); code(r) != string(wire.CodeCommandRejected) {
					t.Errorf("a second pause: %+v", r)
				}
				if err := os.Rename(folder+".away", folder); err != nil {
					t.Fatal(err)
				}
				b.process("r1", &scripted{say: echo}, in)
				<-time.After(2 * time.Minute)
				if s := b.fold("run1", b.read("run1")); s.Status != wire.RunPaused || s.Reason != reason {
					t.Errorf("the run is %s (%s):\n%s", s.Status, s.Reason, story(b.read("run1")))
				}
				tell("resume", "accepted")
				if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
					t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
				}
			})
		})
	}
}

// A fork works in a copy of its parent's folder, links and all, which has nothing
// of the folders of other runs.
func TestForkCopiesFolder(t *testing.T) {
	t.Run("run", func(t *testing.T) { forkCopiesFolder(t, one) })
	t.Run("shared", func(t *testing.T) { forkCopiesFolder(t, shared(one)) })
	t.Run("shared, kept", func(t *testing.T) { forkCopiesFolder(t, shared(one), keeping) })
}

func forkCopiesFolder(t *testing.T, source string, options ...func(*runner.Config)) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		home := t.TempDir()
		b.runner("r1", gated(nil), append(options, func(c *runner.Config) { c.Workspaces = filepath.Join(home, ".wake", "runs") })...)
		b.submit("run1", source, func(r *wire.RunRequest) { r.Workspace = home })
		b.until("run1", wire.TypeAgentStart)
		if err := os.WriteFile(filepath.Join(home, "file"), []byte("parent"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("file", filepath.Join(home, "link")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(home, "file"), filepath.Join(home, "abs")); err != nil {
			t.Fatal(err)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		entries := b.until("fork1", wire.TypeAgentStart)
		dir := b.fold("fork1", entries).Workspace
		if want := filepath.Join(home, ".wake", "runs", "fork1"); dir != want {
			t.Errorf("the fork works in %s, want %s", dir, want)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "link")); err != nil || string(data) != "parent" {
			t.Errorf("link has %q: %v", data, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "abs"), []byte("fork"), 0o600); err != nil { // by a link that led to the parent's
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(home, "file")); err != nil || string(data) != "parent" {
			t.Errorf("the parent's file has %q: %v", data, err)
		}
		if _, err := os.Stat(filepath.Join(dir, ".wake", "runs")); err == nil {
			t.Error("the copy has the folders of runs")
		}
		// A fork doesn't begin with an empty folder because that of its parent isn't here.
		if err := os.Rename(home, home+".away"); err != nil {
			t.Fatal(err)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork2"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		entries = b.until("fork2", wire.TypeFlowComplete)
		last := entries[len(entries)-1].Event.Payload.(*wire.FlowComplete)
		if last.Status != wire.FlowStatusFailed || !strings.Contains(last.Error, "--without-workspace") {
			t.Errorf("without its parent's folder the fork ended as %+v", last)
		}
	})
}

// limit changes the limits of the stream of events, as `wake init` does.
func (b *bench) limit(c topology.Config) {
	b.t.Helper()
	if _, err := topology.Init(b.t.Context(), b.log.JetStream(), c); err != nil {
		b.t.Fatal(err)
	}
}

// fill stores events until a part of the stream's bytes is in use.
func (b *bench) fill(part float64) {
	b.t.Helper()
	w := b.claim("junk", "x", "test")
	for {
		fill, _, err := b.log.Fill(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		if fill >= part {
			return
		}
		if _, err := w.Append(b.t.Context(), &wire.Event{Payload: &wire.AgentText{Content: strings.Repeat("x", 10_000)}}); err != nil {
			b.t.Fatal(err)
		}
	}
}

// No run begins in a stream that is nearly full (RULES 4), and what has begun
// begins no other node in one that is fuller; both do when there is room.
func TestNearlyFull(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.limit(topology.Config{MaxBytes: 2 << 20})
		release := make(chan struct{})
		p := gated(release)
		b.runner("r1", p)
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		b.fill(0.82)
		b.submit("run2", one)
		<-time.After(10 * time.Minute)
		if n := len(b.read("run2")); n != 0 {
			t.Errorf("run2 has begun: %d events", n)
		}
		b.fill(0.92)
		<-time.After(time.Minute)
		close(release)
		b.until("run1", wire.TypeNodeComplete)
		<-time.After(10 * time.Minute)
		if got := p.started(); len(got) != 1 {
			t.Errorf("started %v", got)
		}
		b.limit(topology.Config{MaxBytes: 8 << 20})
		for _, id := range []string{"run1", "run2"} {
			if state, entries := b.ended(id); state.Result != wire.FlowStatusComplete {
				t.Errorf("%s ended as %s:\n%s", id, state.Result, story(entries))
			}
		}
	})
}

// No run begins while the stream is about to drop what isn't recorded; what has
// begun goes on.
func TestRecorderBehind(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.limit(topology.Config{MaxAge: 12 * time.Minute})
		release := make(chan struct{})
		b.runner("r1", gated(release))
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		<-time.After(10 * time.Minute)
		b.submit("run2", one)
		<-time.After(time.Minute)
		if n := len(b.read("run2")); n != 0 {
			t.Errorf("run2 has begun: %d events", n)
		}
		close(release)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run1 ended as %s:\n%s", state.Result, story(entries))
		}
		_, last, err := b.log.Bounds(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.log.JetStream().ResetConsumerToSequence(t.Context(), b.log.Names().EventsStream(), subjects.RecorderConsumer, last+1); err != nil {
			t.Fatal(err)
		}
		if state, entries := b.ended("run2"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run2 ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// A run that goes on for longer than the stream keeps its events stays its
// owner's, and its nodes nobody's but its workers' (RULES 11): none of them is ever
// without events. What was left alone for so long goes on where it was, and its
// claims go on with the seq that it had.
func TestOlderThanItsEvents(t *testing.T) {
	for _, name := range []string{"owned", "left alone", "found late"} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.limit(topology.Config{MaxAge: 3 * time.Minute})
				r1 := b.process("r1", gated(nil))
				own := func() {
					b.process("r2", &scripted{say: echo}, func(c *runner.Config) { c.Pools = []string{"none"} })
				}
				if name == "owned" {
					own()
				}
				b.submit("run1", shared(chain))
				entries := b.until("run1", wire.TypeAgentStart)
				r1.kill()
				b.save(b.fold("run1", entries))
				<-time.After(30 * time.Minute)
				if name == "found late" {
					own()
					<-time.After(100 * time.Second) // for one anchor
				}
				for _, node := range []string{wire.RunNode, "a"} {
					if _, found, err := b.log.Last(t.Context(), "run1", node); err != nil || found != (name != "left alone") {
						t.Errorf("%s has events: %t, %v", node, found, err)
					}
				}
				p := &scripted{say: echo}
				b.process("r3", p)
				rest := b.until("run1", wire.TypeFlowComplete)
				s, _, err := snapshot.Load(t.Context(), b.log, "run1")
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range rest {
					if err := snapshot.Apply(t.Context(), b.log, s, e); err != nil {
						t.Errorf("fold: %v", err)
					}
				}
				if s.Result != wire.FlowStatusComplete || count(rest, wire.TypeNodeStart) != 1 || len(p.started()) != 2 {
					t.Errorf("run ended as %s; r3 started %v:\n%s", s.Result, p.started(), story(rest))
				}
			})
		})
	}
}

// A fork has all of its parent that it needs: it goes on, with another runner too,
// when the log has lost the parent's beginning (RULES 20).
func TestForkOutlivesItsParent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.limit(topology.Config{MaxAge: 3 * time.Minute})
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(chain), withInput(t, map[string]any{"who": "world"}))
		b.until("run1", wire.TypeAgentStart)
		<-time.After(2 * time.Minute)
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		b.until("fork1", wire.TypeAgentStart)
		<-time.After(90 * time.Second)
		if entries := b.read("run1"); count(entries, wire.TypeFlowStart) != 0 {
			t.Fatalf("the parent's beginning is there:\n%s", story(entries))
		}
		r1.kill()
		b.process("r2", &scripted{say: echo})
		state, entries := b.ended("fork1")
		if in := state.Input.TextAt("who"); state.Result != wire.FlowStatusComplete || in != "world" {
			t.Errorf("the fork ended as %s with input %v:\n%s", state.Result, state.Input.Any(), story(entries))
		}
	})
}

// save stores a snapshot.
func (b *bench) save(s *wire.State) {
	b.t.Helper()
	store, err := snapshot.Open(b.t.Context(), b.log)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := store.Save(b.t.Context(), s, snapshot.Stored{}); err != nil {
		b.t.Fatal(err)
	}
}
