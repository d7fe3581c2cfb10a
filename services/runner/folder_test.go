package runner_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
	"code.wake.dev/wake/services/runner/internal/registry"
)

func keeping(c *runner.Config) { c.KeepFolders = true }

// names are the files in a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// writer makes a file by each of three calls, and goes on with nothing when it is asked again.
func writer(seen *sync.Map) *scripted {
	return &scripted{play: func(s *session, say func(wire.Payload) bool) {
		list, _ := os.ReadDir(s.request.Options.Cwd)
		var found []string
		for _, e := range list {
			found = append(found, e.Name())
		}
		seen.Store(s.request.RunID, strings.Join(found, " "))
		if s.request.Resume || s.request.ForkOf != "" {
			say(&wire.AgentComplete{Result: "done"})
			return
		}
		for _, name := range []string{"one", "two", "three"} {
			input := wire.RawString(name)
			if !say(&wire.ToolIntent{ToolName: "Write", ToolInput: input, InputHash: strings.Repeat("0", 64)}) {
				return
			}
			if err := os.WriteFile(filepath.Join(s.request.Options.Cwd, name), []byte(name), 0o600); err != nil {
				panic(err)
			}
			if !say(&wire.AgentTool{ToolName: "Write", ToolInput: input, ToolOutput: wire.RawString("ok")}) {
				return
			}
		}
		say(&wire.AgentComplete{Result: "done"})
	}}
}

// A fork has the folder as it was at its point, with the files that had been made until then.
func TestForkHasTheFolderOfItsPoint(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var seen sync.Map
		b.runner("r1", writer(&seen), keeping)
		b.submit("run1", one)
		state, entries := b.ended("run1")
		if n := count(entries, wire.TypeWorkspaceSnapshot); n != 3 || state.Folder == nil || state.Folder.Files != 3 {
			t.Fatalf("%d snapshots, the last %+v:\n%s", n, state.Folder, story(entries))
		}
		var points []string
		for _, e := range entries {
			if e.Event.Type() == wire.TypeAgentTool {
				points = append(points, strconv.FormatUint(e.Pos, 10))
			}
		}
		points = append(points, "a#1:start", "sfp-1") // before and behind the first snapshot
		wants := map[string]string{"fork1": "one", "fork2": "one two", "fork3": "one three two", "fork4": "", "fork5": ""}
		for i, fork := range slices.Sorted(maps.Keys(wants)) {
			at := points[i]
			if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: fork, At: at}); code(r) != "accepted" {
				t.Fatalf("%+v", r)
			}
			state, entries := b.ended(fork)
			if got, _ := seen.Load(fork); got != wants[fork] || state.Result != wire.FlowStatusComplete {
				t.Errorf("%s at %s ended as %s and found %q, want %q:\n%s", fork, at, state.Result, got, wants[fork], story(entries))
			}
		}
		if got := names(t, state.Workspace); got != "one three two" {
			t.Errorf("the parent's folder has %s", got)
		}
	})
}

// What is in the folder of a run at a position, and what differs in it at another one, is asked for page by page.
func TestFolderIsAsked(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
			for _, name := range []string{"one", "two"} {
				input := wire.RawString(name)
				say(&wire.ToolIntent{ToolName: "Write", ToolInput: input, InputHash: strings.Repeat("0", 64)})
				for i := range 700 { // of both calls more than fits into an answer
					file := fmt.Sprintf("%s%03d%s", name, i, strings.Repeat("<", 180)) // which JSON writes as six
					if err := os.WriteFile(filepath.Join(s.request.Options.Cwd, file), []byte(name), 0o600); err != nil {
						panic(err)
					}
				}
				say(&wire.AgentTool{ToolName: "Write", ToolInput: input, ToolOutput: wire.RawString("ok")})
			}
			say(&wire.AgentComplete{Result: "done"})
		}}, keeping)
		b.submit("run1", one)
		_, entries := b.ended("run1")
		var at []uint64
		for _, e := range entries {
			if e.Event.Type() == wire.TypeWorkspaceSnapshot {
				at = append(at, e.Pos)
			}
		}
		ask := func(q wire.WorkspaceRequest) (files, changes, pages int) {
			seen := map[string]bool{}
			for {
				pages++
				r, err := api.Call[wire.WorkspaceResponse](t.Context(), b.log.Conn(), subjects.Default, wire.VerbWorkspace, q)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range r.Content {
					seen[f.Path] = true
				}
				for _, c := range r.Changes {
					if seen[c.Path] = true; c.Change != "added" || c.B == nil {
						t.Fatalf("%+v", c)
					}
				}
				files, changes = files+len(r.Content), changes+len(r.Changes)
				if q.Cursor = r.Cursor; q.Cursor == "" {
					if len(seen) != files+changes {
						t.Errorf("%d paths of %d files and %d changes", len(seen), files, changes)
					}
					return files, changes, pages
				}
			}
		}
		if files, _, _ := ask(wire.WorkspaceRequest{Run: "run1", At: at[0]}); files != 700 {
			t.Errorf("%d files after the first call", files)
		}
		if files, _, pages := ask(wire.WorkspaceRequest{Run: "run1"}); files != 1400 || pages < 2 {
			t.Errorf("%d files in %d pages", files, pages)
		}
		if _, changes, _ := ask(wire.WorkspaceRequest{Run: "run1", At: at[0], Diff: at[1]}); changes != 700 {
			t.Errorf("%d changes", changes)
		}
		// What is kept meanwhile is no part of the list that was begun.
		page := func(q wire.WorkspaceRequest) wire.WorkspaceResponse {
			t.Helper()
			r, err := api.Call[wire.WorkspaceResponse](t.Context(), b.log.Conn(), subjects.Default, wire.VerbWorkspace, q)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		begun := page(wire.WorkspaceRequest{Run: "run1"})
		w := logtest.Claim(t, b.log, "run1", "late")
		logtest.Append(t, w, &wire.Event{ExecID: "late#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
			&wire.Event{ExecID: "late#1", Payload: &wire.WorkspaceSnapshot{Files: 0, Process: "another"}})
		if now := page(wire.WorkspaceRequest{Run: "run1"}); now.Snapshot.ID == begun.Snapshot.ID {
			t.Fatal("the new snapshot isn't the present one")
		}
		if next := page(wire.WorkspaceRequest{Run: "run1", Cursor: begun.Cursor}); len(begun.Content)+len(next.Content) > 1400 || len(next.Content) == 0 {
			t.Errorf("%d files and %d", len(begun.Content), len(next.Content))
		}
		for _, q := range []wire.WorkspaceRequest{{Run: "none"}, {Run: "_"}, {Run: "run1", Cursor: "x"}, {Run: "run1", Cursor: "1 of another"}} {
			if _, err := api.Call[wire.WorkspaceResponse](t.Context(), b.log.Conn(), subjects.Default, wire.VerbWorkspace, q); err == nil {
				t.Errorf("%+v is answered", q)
			}
		}
	})
}

// slowFolder is a folder whose snapshot takes longer than an agent waits for before it begins: its repository is being written.
func slowFolder(t *testing.T) string {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(".git", "index.lock"), "there"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// An agent begins while the first snapshot is taken, which comes before the first call that may change something. A fork that is asked for
// meanwhile has the folder of that snapshot, and so has the runner that goes on if this one dies.
func TestAgentBeginsBesideTheFirstSnapshot(t *testing.T) {
	for name, kill := range map[string]bool{"fork": false, "kill": true} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				var seen sync.Map
				w := writer(&seen)
				plain, begun, said := w.play, make(chan struct{}), make(chan struct{})
				var once sync.Once
				w.play = func(s *session, say func(wire.Payload) bool) {
					first := false
					if s.request.RunID == "run1" {
						once.Do(func() { first = true; close(begun); <-said })
						s.request.Resume = false // the scripted agent begins anew
					}
					if first && kill {
						return
					}
					plain(s, say)
				}
				r1 := b.process("r1", w, keeping)
				b.submit("run1", one, func(r *wire.RunRequest) { r.Workspace = slowFolder(t) })
				<-begun
				if kill {
					r1.kill()
					close(said)
					b.process("r2", w, keeping)
				} else {
					if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1", At: "a#1:start"}); code(r) != "accepted" {
						t.Fatalf("%+v", r)
					}
					close(said)
				}
				state, entries := b.ended("run1")
				var order []wire.Type
				for _, e := range entries {
					p, _ := e.Event.Payload.(*wire.NodeStart)
					switch {
					case p != nil && !p.FolderFollows:
						t.Errorf("the start says nothing of a snapshot:\n%s", story(entries))
					case slices.Contains([]wire.Type{wire.TypeNodeStart, wire.TypeAgentStart, wire.TypeWorkspaceSnapshot, wire.TypeToolIntent}, e.Event.Type()):
						order = append(order, e.Event.Type())
					}
				}
				want := []wire.Type{wire.TypeNodeStart, wire.TypeAgentStart, wire.TypeWorkspaceSnapshot, wire.TypeToolIntent}
				if order = slices.Compact(order); len(order) < len(want) || !slices.Equal(order[:len(want)], want) {
					t.Errorf("%v, want %v first:\n%s", order, want, story(entries))
				}
				if state.Result != wire.FlowStatusComplete || state.Folder == nil || state.Folder.Pending || state.Folder.Files != 5 {
					t.Errorf("ended as %s, folder %+v:\n%s", state.Result, state.Folder, story(entries))
				}
				if !kill {
					state, entries = b.ended("fork1")
					if found, _ := seen.Load("fork1"); found != ".git there" || state.Result != wire.FlowStatusComplete {
						t.Errorf("the fork ended as %s and found %q:\n%s", state.Result, found, story(entries))
					}
				}
			})
		})
	}
}

// What changes nothing costs nothing: of an empty folder the first start says so, and recorded agents have none looked at again.
func TestFolderUnchanged(t *testing.T) {
	calls := func(_ *session, say func(wire.Payload) bool) {
		input := wire.RawString("x")
		if say(&wire.ToolIntent{ToolName: "Read", ToolInput: input, InputHash: strings.Repeat("0", 64)}) &&
			say(&wire.AgentTool{ToolName: "Read", ToolInput: input, ToolOutput: wire.RawString("ok")}) {
			say(&wire.AgentComplete{Result: "done"})
		}
	}
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{play: calls}, keeping)
		b.submit("run1", chain)
		state, entries := b.ended("run1")
		said := 0
		for _, e := range entries {
			if p, ok := e.Event.Payload.(*wire.NodeStart); ok && p.EmptyFolder {
				said++
			}
		}
		if n := count(entries, wire.TypeWorkspaceSnapshot); n != 0 || said != 1 || state.Folder == nil || state.Folder.ID != "" {
			t.Errorf("%d snapshots, %d starts say that there is nothing, the folder is %+v:\n%s", n, said, state.Folder, story(entries))
		}
		bucket, err := b.log.JetStream().Stream(t.Context(), "OBJ_"+subjects.Default.WorkspacesBucket())
		if err != nil {
			t.Fatal(err)
		}
		if n := bucket.CachedInfo().State.LastSeq; n != 0 {
			t.Errorf("%d packs were stored", n)
		}
	})
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var dir string
		recorded := &scripted{play: func(s *session, say func(wire.Payload) bool) {
			if err := os.WriteFile(filepath.Join(dir, s.request.NodeID), nil, 0o600); err != nil { // another program does
				panic(err)
			}
			calls(s, say)
		}}
		b.runner("r1", recorded, keeping, func(c *runner.Config) {
			c.Workspaces = t.TempDir()
			c.Fixtures = func(string) (agent.Provider, error) { return recorded, nil }
		})
		b.submit("run1", chain, func(r *wire.RunRequest) {
			dir = t.TempDir()
			r.Workspace, r.Fixtures = dir, t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		})
		if state, entries := b.ended("run1"); count(entries, wire.TypeWorkspaceSnapshot) != 1 || state.Folder == nil || state.Folder.Files != 1 {
			t.Errorf("the folder is %+v:\n%s", state.Folder, story(entries))
		}
	})
}

// A fork whose snapshot is gone says so; one that is told to do without begins with an empty folder.
func TestForkWithoutItsFolder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var seen sync.Map
		b.runner("r1", writer(&seen), keeping)
		b.submit("run1", one)
		state, entries := b.ended("run1")
		if err := workspace.Drop(t.Context(), b.nc, subjects.Default, "run1"); err != nil {
			t.Fatal(err)
		}
		at := entries[slices.IndexFunc(entries, func(e eventlog.Entry) bool { return e.Event.Type() == wire.TypeAgentTool })].Pos
		ask := func(id string, without bool) {
			b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: id, Fork: &wire.ForkRequest{
				ParentRun: "run1", ParentPos: at, WithoutWorkspace: without,
			}})
		}
		ask("fork1", false)
		if s, entries := b.ended("fork1"); s.Result != wire.FlowStatusFailed || !strings.Contains(s.Error, "not kept") || !strings.Contains(s.Error, "--without-workspace") ||
			count(entries, wire.TypeRunClaimed) != 1 {
			t.Errorf("ended as %s (%s):\n%s", s.Result, s.Error, story(entries))
		}
		ask("fork2", true)
		if s, entries := b.ended("fork2"); s.Result != wire.FlowStatusComplete {
			t.Errorf("ended as %s (%s):\n%s", s.Result, s.Error, story(entries))
		}
		if got, _ := seen.Load("fork2"); got != "" {
			t.Errorf("it found %q", got)
		}
		if got := names(t, state.Workspace); got != "one three two" {
			t.Errorf("the parent's folder has %s", got)
		}
	})
}

// A fork that is given a folder works there, as it is. Where no runner sees that folder, it says so instead of working elsewhere, and
// a resumption that names such a one is refused.
func TestForkInFolderOfItsOwn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var seen sync.Map
		b.runner("r1", writer(&seen), keeping)
		b.submit("run1", one)
		b.ended("run1")
		there := t.TempDir()
		if err := os.WriteFile(filepath.Join(there, "own"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := b.position("run1", wire.TypeAgentTool)
		ask := func(id, dir string) {
			overrides, err := wire.Marshal(map[string]string{"workspace": dir})
			if err != nil {
				t.Fatal(err)
			}
			b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: id, Fork: &wire.ForkRequest{
				ParentRun: "run1", ParentPos: at, Overrides: overrides,
			}})
		}
		ask("fork1", there)
		if s, entries := b.ended("fork1"); s.Result != wire.FlowStatusComplete || s.Workspace != there {
			t.Errorf("ended as %s (%s) in %s:\n%s", s.Result, s.Error, s.Workspace, story(entries))
		}
		if got, _ := seen.Load("fork1"); got != "own" {
			t.Errorf("it found %q", got)
		}
		away := filepath.Join(t.TempDir(), "away")
		ask("fork2", away)
		if s, entries := b.ended("fork2"); s.Result != wire.FlowStatusFailed || !strings.Contains(s.Error, away) {
			t.Errorf("ended as %s (%s) in %s:\n%s", s.Result, s.Error, s.Workspace, story(entries))
		}
		overrides, err := wire.Marshal(map[string]string{"workspace": away})
		if err != nil {
			t.Fatal(err)
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "fork2", Rerun: []string{"a"}, Overrides: overrides}); r.Accepted || !strings.Contains(r.Reason, away) {
			t.Errorf("a resumption: %+v", r)
		}
	})
}

// A run whose machine is gone goes on elsewhere in its folder as it was last kept, and its agents are told.
func TestFolderIsRestoredElsewhere(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		first := t.TempDir()
		begun := make(chan struct{})
		r1 := b.process("r1", &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			if r.NodeID == "b" {
				close(begun)
				<-ctx.Done()
				return "", ctx.Err()
			}
			return "done", os.WriteFile(filepath.Join(r.Options.Cwd, "made"), []byte("by a"), 0o600)
		}}, keeping, func(c *runner.Config) { c.Workspaces = first })
		b.submit("run1", chain)
		<-begun
		r1.kill()
		if err := os.Rename(first, first+".gone"); err != nil {
			t.Fatal(err)
		}
		second := t.TempDir()
		var cwd, message, content string
		var reg registry.Registration
		b.process("r2", &scripted{play: func(s *session, say func(wire.Payload) bool) {
			cwd = s.request.Options.Cwd
			value, _ := b.registered("run1")
			if err := wire.Unmarshal(value, &reg); err != nil {
				t.Error(err)
			}
			found, _ := os.ReadFile(filepath.Join(cwd, "made"))
			content = string(found)
			message, _ = s.request.Prompt.Text()
			say(&wire.AgentComplete{Result: "done"})
		}}, keeping, func(c *runner.Config) { c.Workspaces, c.WorkspaceGrace = second, 3*time.Second })
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) != 0 {
			t.Errorf("ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
		}
		if dir := filepath.Join(second, "run1"); state.Workspace != dir || cwd != dir || content != "by a" {
			t.Errorf("it went on in %s (%s) and found %q, want %s", cwd, state.Workspace, content, dir)
		}
		if reg.Folder != "r2" || reg.Runner != "r2" {
			t.Errorf("its folder is registered with %q, its owner is %q", reg.Folder, reg.Runner)
		}
		if !strings.Contains(message, "on another one") || !strings.Contains(message, second) {
			t.Errorf("the agent was told %q", message)
		}
	})
}

// A snapshot is on record also when the end of its execution, or the result that it belongs to, can't be stored.
func TestFolderOfAnUnfitEnd(t *testing.T) {
	for name, last := range map[string]wire.Payload{
		"end":    &wire.AgentComplete{Result: "\xff"},
		"result": &wire.AgentTool{ToolName: "\xff", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("ok")},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
					if err := os.WriteFile(filepath.Join(s.request.Options.Cwd, "made"), nil, 0o600); err != nil {
						panic(err)
					}
					if say(last) {
						say(&wire.AgentComplete{Result: "done"})
					}
				}}, keeping)
				b.submit("run1", one)
				state, entries := b.ended("run1")
				if n := count(entries, wire.TypeWorkspaceSnapshot); n != 1 || state.Folder == nil || state.Folder.Files != 1 {
					t.Errorf("%d snapshots, the last %+v:\n%s", n, state.Folder, story(entries))
				}
			})
		})
	}
}

// A fork of a run whose folder can't be kept says so; one that is told to do without begins with an empty folder.
func TestForkOfAFolderThatIsNotKept(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var seen sync.Map
		b.runner("r1", writer(&seen), keeping, func(c *runner.Config) { c.Workspaces = t.TempDir() })
		b.submit("run1", one, func(r *wire.RunRequest) {
			r.Workspace = t.TempDir()
			if err := os.WriteFile(filepath.Join(r.Workspace, ".git"), []byte("gitdir: elsewhere"), 0o600); err != nil {
				t.Fatal(err)
			}
		})
		if state, entries := b.ended("run1"); state.Folder == nil || state.Folder.Refused == "" {
			t.Fatalf("%+v:\n%s", state.Folder, story(entries))
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1"}); code(r) != string(wire.CodeNotResumable) || !strings.Contains(r.Reason, "doesn't name it") {
			t.Errorf("a fork by a command: %+v", r)
		}
		for fork, bare := range map[string]bool{"fork1": false, "fork2": true} {
			b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: fork, Fork: &wire.ForkRequest{
				ParentRun: "run1", ParentPos: b.position("run1", wire.TypeAgentTool), WithoutWorkspace: bare,
			}})
		}
		if s, entries := b.ended("fork1"); s.Result != wire.FlowStatusFailed || !strings.Contains(s.Error, "doesn't name it") || !strings.Contains(s.Error, "--without-workspace") ||
			count(entries, wire.TypeRunClaimed) != 1 {
			t.Errorf("ended as %s (%s):\n%s", s.Result, s.Error, story(entries))
		}
		if s, entries := b.ended("fork2"); s.Result != wire.FlowStatusComplete || s.Folder == nil || s.Folder.Refused != "" {
			t.Errorf("ended as %s (%s), folder %+v:\n%s", s.Result, s.Error, s.Folder, story(entries))
		}
	})
}

// A session isn't told that the log has what it said as long as that is held behind a snapshot: its journal would be given up.
func TestHeldBehindASnapshotIsNotStored(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var early, late bool
		b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
			<-time.After(5 * time.Second) // the first snapshot has been taken
			if err := os.WriteFile(filepath.Join(s.request.Options.Cwd, "made"), nil, 0o600); err != nil {
				panic(err)
			}
			say(&wire.AgentTool{ToolName: "Write", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("ok")})
			say(&wire.Usage{MessageID: "m", InputTokens: 1})
			early = s.request.Stored()
			<-time.After(5 * time.Second)
			late = s.request.Stored()
			say(&wire.AgentComplete{Result: "done"})
		}}, keeping)
		b.submit("run1", one, func(r *wire.RunRequest) { r.Workspace = slowFolder(t) })
		if _, entries := b.ended("run1"); early || !late {
			t.Errorf("stored while it is held: %t, and then: %t:\n%s", early, late, story(entries))
		}
	})
}

// below is a flow whose first step is a flow of its own, which works in the same folder.
const below = `
name: above
nodes:
  - {id: a, type: agent, input: {provider: claude, prompt: hi}}
  - id: f
    type: flow
    input:
      flow: {name: below, nodes: [{id: b, type: agent, input: {provider: claude, prompt: hi}}, {id: c, type: agent, input: {provider: claude, prompt: hi}}], edges: [{from: b, to: c}]}
  - {id: d, type: agent, input: {provider: claude, prompt: hi}}
edges:
  - {from: a, to: f}
  - {from: f, to: d}
`

// A run and the flows that it has begun go on in one folder when their folder is gone with its machine, or from it: what each of them
// had made is there.
func TestFlowsGoOnInOneFolder(t *testing.T) {
	for name, runners := range map[string][]string{
		"elsewhere": {"r2", "r3"}, // of which any may go on with either run
		"here":      {"r1"},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { flowsGoOn(t, runners) })
		})
	}
}

func flowsGoOn(t *testing.T, runners []string) {
	t.Helper()
	b := newBench(t)
	first := t.TempDir()
	begun := make(chan struct{})
	write := func(r agent.Request) error {
		return os.WriteFile(filepath.Join(r.Options.Cwd, r.NodeID), nil, 0o600)
	}
	r1 := b.process("r1", &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
		if r.NodeID == "c" {
			close(begun)
			<-ctx.Done()
			return "", ctx.Err()
		}
		return "done", write(r)
	}}, keeping, func(c *runner.Config) { c.Workspaces = first })
	b.submit("run1", below)
	<-begun
	r1.kill()
	if err := os.Rename(first, first+".gone"); err != nil {
		t.Fatal(err)
	}
	var found sync.Map
	again := &scripted{say: func(_ context.Context, r agent.Request) (string, error) {
		found.Store(r.NodeID, names(t, r.Options.Cwd))
		return "done", write(r)
	}}
	for _, id := range runners {
		dir := t.TempDir()
		b.process(id, again, keeping, func(c *runner.Config) { c.Workspaces, c.WorkspaceGrace = dir, 3*time.Second })
	}
	state, entries := b.ended("run1")
	if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowPaused) != 0 {
		t.Errorf("ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
	}
	for node, want := range map[string]string{"c": "a b", "d": "a b c"} {
		if got, _ := found.Load(node); got != want {
			t.Errorf("%s found %q, want %q", node, got, want)
		}
	}
}

// Where each execution has a folder of its own, so has a flow, wherever its run goes on.
func TestFlowHasFolderOfItsOwn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(_ context.Context, r agent.Request) (string, error) {
			return "done", os.WriteFile(filepath.Join(r.Options.Cwd, r.NodeID), nil, 0o600)
		}}, keeping)
		b.submit("run1", strings.Replace(below, "name: above", "name: above\nworkspace: node", 1))
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete {
			t.Fatalf("ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
		}
		flow, _ := b.ended("run1.f#1")
		if got := names(t, flow.Workspace); got != "b c" || flow.Workspace == state.Workspace {
			t.Errorf("the flow's folder %s has %q, the run's is %s", flow.Workspace, got, state.Workspace)
		}
	})
}

// A runner that comes back doesn't take what it was offered before the folder of the run went elsewhere.
func TestLateOffer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		first, second := t.TempDir(), t.TempDir()
		onFirst := func(c *runner.Config) { c.Workspaces, c.MaxAgents = first, 1 }
		onSecond := func(c *runner.Config) {
			c.Workspaces, c.MaxAgents, c.WorkspaceGrace = second, 1, 3*time.Second
		}
		busy, free := make(chan string, 9), make(chan struct{})
		var by sync.Map
		of := func(id string) *scripted {
			return &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
				by.Store(r.RunID+"/"+r.NodeID, id)
				switch {
				case r.RunID == "run1" && r.NodeID == "a":
					b.submit("busy1", one) // takes the slot behind this one
					<-time.After(time.Second)
				case r.RunID != "run1":
					busy <- r.RunID
					select {
					case <-free:
					case <-ctx.Done():
					}
				}
				return "done", os.WriteFile(filepath.Join(r.Options.Cwd, r.NodeID), nil, 0o600)
			}}
		}
		r1 := b.process("r1", of("r1"), keeping, onFirst)
		b.submit("run1", chain)
		<-busy
		b.until("run1", wire.TypeNodeScheduled)
		<-time.After(time.Second) // b is offered
		r1.kill()
		move := func(from, to string) {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
		move(first, first+".gone")
		b.process("r2", of("r2"), keeping, onSecond)
		b.submit("busy2", strings.Replace(one, "name: one", "name: one\nworkspace: node", 1))
		<-busy
		<-time.After(20 * time.Second)
		move(first+".gone", first)
		b.process("r1", of("r1"), keeping, onFirst)
		<-time.After(20 * time.Second)
		close(free)
		state, entries := b.ended("run1")
		if got, _ := by.Load("run1/b"); state.Result != wire.FlowStatusComplete || got != "r2" || names(t, filepath.Join(second, "run1")) != "a b" {
			t.Errorf("ended as %s (%s), b by %v:\n%s", state.Result, state.Error, got, story(entries))
		}
	})
}

// A fork behind a flow has what the flow has made in the folder.
func TestForkBehindFlow(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var found sync.Map
		b.runner("r1", &scripted{say: func(_ context.Context, r agent.Request) (string, error) {
			found.Store(r.RunID+"/"+r.NodeID, names(t, r.Options.Cwd))
			if r.NodeID == "d" {
				return "done", nil
			}
			return "done", os.WriteFile(filepath.Join(r.Options.Cwd, r.NodeID), nil, 0o600)
		}}, keeping)
		b.submit("run1", below)
		_, entries := b.ended("run1")
		at := entries[slices.IndexFunc(entries, func(e eventlog.Entry) bool {
			p, ok := e.Event.Payload.(*wire.NodeComplete)
			return ok && p.Target == "f"
		})].Pos
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: "fork1", Fork: &wire.ForkRequest{ParentRun: "run1", ParentPos: at}})
		if s, entries := b.ended("fork1"); s.Result != wire.FlowStatusComplete {
			t.Errorf("ended as %s (%s):\n%s", s.Result, s.Error, story(entries))
		}
		if got, _ := found.Load("fork1/d"); got != "a b c" {
			t.Errorf("the fork found %q", got)
		}
		q := wire.WorkspaceRequest{Run: "run1", At: at}
		r, err := api.Call[wire.WorkspaceResponse](t.Context(), b.log.Conn(), subjects.Default, wire.VerbWorkspace, q)
		if err != nil || len(r.Content) != 3 {
			t.Errorf("there %+v, %v", r, err)
		}
	})
}
