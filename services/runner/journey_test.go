package runner_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// journey is a flow whose agent makes a file and commits it by each of five calls; a command says what has come of it.
const journey = `
name: journey
nodes:
  - {id: a, type: agent, input: {provider: native, model: m, prompt: "Five steps."}}
  - {id: b, type: exec, idempotent: true, input: {command: "ls | tr '\n' ' '; git log --reverse --format=%s"}}
edges: [{from: a, to: b}]
`

const journeySteps = 5

// scene is what an agent's request finds: the conversation up to it, and the folder of its run.
type scene struct {
	messages []string
	folder   map[string]string
	commits  string
}

// scenes records the requests of agents by run. It answers by a script.
type scenes struct {
	t      *testing.T
	script *apitest.Script
	roots  []string // of the folders of runs

	mu    sync.Mutex
	byRun map[string][]scene
}

func newScenes(t *testing.T, roots ...string) *scenes {
	s := &scenes{t: t, script: &apitest.Script{ByTurn: true}, roots: roots, byRun: map[string][]scene{}}
	for i := range journeySteps {
		command := fmt.Sprintf(`export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z; [ -d .git ] || git init -q . && echo %[1]d > f%[1]d && git add -A && git -c user.name=a -c user.email=a@b commit -qm "step %[1]d"`, i+1)
		input, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		s.script.Replies = append(s.script.Replies, apitest.Message(apitest.Call(fmt.Sprint("t", i+1), "bash", string(input))))
	}
	s.script.Replies = append(s.script.Replies, apitest.Message(apitest.Text("Done.")))
	return s
}

// RoundTrip implements [http.RoundTripper].
func (s *scenes) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost {
		return s.script.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.record(body) // of this agent: others ask at the same time
	r.Body = io.NopCloser(bytes.NewReader(body))
	return s.script.RoundTrip(r)
}

func (s *scenes) record(body []byte) {
	var request struct {
		System   json.RawMessage   `json:"system"`
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		s.t.Error(err)
	}
	var dir string
	for _, root := range s.roots {
		if _, rest, ok := bytes.Cut(body, []byte(root+"/")); ok {
			dir = filepath.Join(root, string(rest[:bytes.IndexFunc(rest, func(c rune) bool { return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz-", c) })]))
		}
	}
	if dir == "" {
		s.t.Errorf("no folder in %s", body)
		return
	}
	found := scene{folder: filesOf(s.t, dir), commits: commitsOf(dir)}
	for _, m := range request.Messages {
		found.messages = append(found.messages, strings.ReplaceAll(withoutCache(s.t, m), dir, "DIR"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byRun[filepath.Base(dir)] = append(s.byRun[filepath.Base(dir)], found)
}

func (s *scenes) of(run string) []scene {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.byRun[run])
}

// withoutCache is a message without marks of what the API is to cache, which move.
func withoutCache(t *testing.T, m json.RawMessage) string {
	var v any
	if err := json.Unmarshal(m, &v); err != nil {
		t.Error(err)
	}
	var strip func(any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			delete(v, "cache_control")
			for _, x := range v {
				strip(x)
			}
		case []any:
			for _, x := range v {
				strip(x)
			}
		}
	}
	strip(v)
	text, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// filesOf is what is in a folder, but for what git keeps itself.
func filesOf(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		content, err := os.ReadFile(path)
		info, _ := d.Info()
		all[d.Name()] = fmt.Sprint(info.Mode(), " ", string(content))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

// commitsOf is the history of a folder by hashes, and what isn't committed; "" if it is no repository.
func commitsOf(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		return ""
	}
	log, err := exec.Command("git", "-C", dir, "log", "--format=%H %s").CombinedOutput()
	status, e := exec.Command("git", "-C", dir, "status", "--porcelain").CombinedOutput()
	return fmt.Sprint(string(log), string(status), err, e)
}

// on has a runner drive agents that these scenes answer.
func (s *scenes) on(root string) func(*runner.Config) {
	return func(c *runner.Config) {
		keeping(c)
		c.Workspaces = root
		c.Providers = map[string]agent.Provider{"native": &native.Provider{Environ: append(os.Environ(), "ANTHROPIC_API_KEY=k"), Client: &http.Client{Transport: s}}}
	}
}

// TestForkAtEachPoint forks a run at each of its points, five at once: the conversation is what it was there and nothing
// else, so is the folder with its commits, the fork comes to what its parent came to, and the parent is as it was.
func TestForkAtEachPoint(t *testing.T) {
	b := newBench(t)
	root := t.TempDir()
	s := newScenes(t, root)
	b.runner("r1", nil, s.on(root))
	b.submit("run1", journey)
	parent, entries := b.ended("run1")
	want := s.of("run1")
	if text := parent.Outputs["b"].TextAt("stdout"); parent.Result != wire.FlowStatusComplete || len(want) != journeySteps+1 ||
		text != "f1 f2 f3 f4 f5 step 1\nstep 2\nstep 3\nstep 4\nstep 5\n" {
		t.Fatalf("%d requests, ended as %s (%s), %q:\n%s", len(want), parent.Result, parent.Error, text, story(entries))
	}
	before, commits := filesOf(t, parent.Workspace), commitsOf(parent.Workspace)

	type fork struct {
		id, at string
		done   int  // calls whose result is in its conversation
		open   bool // one more is, without a result
	}
	var forks []fork
	done := 0
	addFork := func(at string, open bool) {
		forks = append(forks, fork{fmt.Sprintf("fork%d", len(forks)), at, done, open})
	}
	addFork("a#1:start", false)
	addFork("sfp-1", false) // the prompt
	for _, e := range entries {
		switch e.Event.Payload.(type) {
		case *wire.AgentMessage:
			if e.Event.NodeID == "a" && done < journeySteps {
				addFork(strconv.FormatUint(e.Pos, 10), true)
			}
		case *wire.AgentTool:
			done++
			addFork(fmt.Sprint("sfp-", done+1), false)
		}
	}
	addFork("a#1:end", false)
	addFork("b#1:start", false)
	if len(forks) != 2*journeySteps+4 {
		t.Fatalf("%d points: %+v\n%s", len(forks), forks, story(entries))
	}
	for five := range slices.Chunk(forks, 5) {
		var all sync.WaitGroup
		for _, f := range five {
			all.Go(func() {
				if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: f.id, At: f.at}); code(r) != "accepted" {
					t.Errorf("%s at %s: %+v", f.id, f.at, r)
				}
			})
		}
		all.Wait()
		for _, f := range five {
			state, entries := b.ended(f.id)
			text := state.Outputs["b"].TextAt("stdout")
			if want := parent.Outputs["b"].TextAt("stdout"); state.Result != wire.FlowStatusComplete || text != want {
				t.Errorf("%s at %s ended as %s (%s), %q, want %q:\n%s", f.id, f.at, state.Result, state.Error, text, want, story(entries))
			}
			got := s.of(f.id)
			if len(got) == 0 {
				if f.done < journeySteps {
					t.Errorf("%s at %s asked nothing", f.id, f.at)
				}
				continue
			}
			asked := f.done
			if f.open {
				asked++ // the call, which hadn't begun, is made first
			}
			first, there := got[0], want[asked]
			if diff := cmp.Diff(there.messages, first.messages); diff != "" {
				t.Errorf("%s at %s: the request (-parent +fork):\n%s", f.id, f.at, diff)
			}
			if diff := cmp.Diff(there.folder, first.folder); diff != "" {
				t.Errorf("%s at %s: the folder (-parent +fork):\n%s", f.id, f.at, diff)
			}
			if diff := cmp.Diff(there.commits, first.commits); diff != "" {
				t.Errorf("%s at %s: the commits (-parent +fork):\n%s", f.id, f.at, diff)
			}
		}
	}
	after, later := b.ended("run1")
	if diff := cmp.Diff(before, filesOf(t, parent.Workspace)); diff != "" || commitsOf(parent.Workspace) != commits {
		t.Errorf("the parent's folder (-before +now):\n%s", diff)
	}
	if done := count(later, wire.TypeCommandReceived); len(later)-done != len(entries) || after.Result != parent.Result {
		t.Errorf("the parent has %d events, before %d", len(later), len(entries))
	}
}

// TestTwoMachines has the machine of a run go while its agent works, with its disk: another one finishes, in the folder with its
// commits, as if nothing had happened.
func TestTwoMachines(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		first, second := t.TempDir(), t.TempDir()
		s := newScenes(t, first, second)
		r1 := b.process("r1", nil, s.on(first))
		r1.watching = true
		cut := make(chan struct{})
		r1.gate.before("t3", func() { r1.gate.close(); close(cut) }) // what is said of the third call doesn't get there
		b.submit("run1", journey)
		<-cut
		r1.kill()
		if err := os.Rename(first, first+".gone"); err != nil {
			t.Fatal(err)
		}
		b.process("r2", nil, s.on(second), func(c *runner.Config) { c.WorkspaceGrace = 3 * time.Second }).watching = true
		state, entries := b.ended("run1")
		text := state.Outputs["b"].TextAt("stdout")
		if want := "f1 f2 f3 f4 f5 step 1\nstep 2\nstep 3\nstep 4\nstep 5\n"; state.Result != wire.FlowStatusComplete || text != want {
			t.Errorf("ended as %s (%s), %q, want %q:\n%s", state.Result, state.Error, text, want, story(entries))
		}
		if state.Workspace != filepath.Join(second, "run1") || count(entries, wire.TypeFlowPaused) != 0 {
			t.Errorf("it went on in %s:\n%s", state.Workspace, story(entries))
		}
	})
}
