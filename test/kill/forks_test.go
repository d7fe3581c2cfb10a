//go:build kill && claudecli

package kill_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

const journeySteps = 5

// journey is a flow whose agent makes a file and commits it by each of five calls; a command says what has come of it.
const journey = `
name: journey
nodes:
  - id: a
    type: agent
    input: {provider: claude, prompt: "Five steps [[scn:from1]]", env: {IS_SANDBOX: "1"}}
  - {id: b, type: exec, idempotent: true, input: {command: "ls | tr '\n' ' '; git log --reverse --format=%H.%s"}}
edges: [{from: a, to: b}]
`

// journeyScripts are what the model says: from1 all steps, from2 all but the first one, and so on.
func journeyScripts(t *testing.T) map[string]string {
	type block map[string]any
	type turn struct {
		Blocks []block `json:"blocks"`
	}
	scripts := map[string]string{}
	for from := 1; from <= journeySteps; from++ {
		var turns []turn
		for n := from; n <= journeySteps; n++ {
			command := fmt.Sprintf("[ -d .git ] || git init -q . && echo %[1]d > f%[1]d && git add -A && git -c user.name=a -c user.email=a@b commit -qm 'step %[1]d' && echo did %[1]d", n)
			turns = append(turns, turn{[]block{
				{"t": "text", "text": fmt.Sprintf("Now step %d.", n)},
				{"t": "tool", "id": fmt.Sprintf("toolu_from%dstep%d", from, n), "name": "Bash", "input": map[string]string{
					"command":     "export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z; " + command,
					"description": fmt.Sprintf("Do step %d", n),
				}},
			}})
		}
		b, err := json.Marshal(map[string]any{"turns": append(turns, turn{[]block{{"t": "text", "text": "All steps are done."}}})})
		if err != nil {
			t.Fatal(err)
		}
		scripts[fmt.Sprint("from", from)] = string(b)
	}
	return scripts
}

// scene is what an agent's request finds: the conversation up to it, and the folder of its run.
type scene struct {
	said   []string // without what the program reminds the model of
	body   string
	folder string
}

// scenes records the requests of agents by run, on their way to the made-up API.
type scenes struct {
	*bench
	proxy *httputil.ReverseProxy

	mu    sync.Mutex
	byRun map[string][]scene
}

// watchRequests has requests come here before the API gets them.
func watchRequests(l *bench, api string) *scenes {
	l.Helper()
	to, err := url.Parse(api)
	l.Must(err)
	s := &scenes{bench: l, proxy: httputil.NewSingleHostReverseProxy(to), byRun: map[string][]scene{}}
	s.proxy.FlushInterval = -1
	return s
}

// ServeHTTP implements [http.Handler].
func (s *scenes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/messages") {
		s.record(body)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.proxy.ServeHTTP(w, r)
}

func (s *scenes) record(body []byte) {
	var request struct {
		Messages []json.RawMessage `json:"messages"`
		Tools    []json.RawMessage `json:"tools"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		s.Errorf("%v", err)
	}
	if len(request.Tools) == 0 { // of the small model
		return
	}
	root := filepath.Join(s.Dir, "workspaces")
	all := regexp.MustCompile(`orking directory: `+root+`/([0-9a-z]+)`).FindAllSubmatch(body, -1)
	if len(all) == 0 {
		s.Errorf("no folder in %s", body)
		return
	}
	run := string(all[len(all)-1][1]) // those before are where its parent was
	found := scene{body: string(body), folder: s.folderOf(filepath.Join(root, run))}
	for _, m := range request.Messages {
		found.said = append(found.said, s.wordsOf(m)...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byRun[run] = append(s.byRun[run], found)
}

func (s *scenes) of(run string) []scene {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.byRun[run])
}

// wordsOf is what a message says, line by line: texts, calls and their results.
func (l *bench) wordsOf(message json.RawMessage) (lines []string) {
	type block struct {
		Type, Text, ID, Name string
		Call                 string `json:"tool_use_id"`
		Failed               bool   `json:"is_error"`
		Input, Content       any
	}
	var m struct {
		Role    string
		Content json.RawMessage
	}
	var blocks []block
	if err := json.Unmarshal(message, &m); err != nil {
		l.Errorf("%v", err)
	}
	if text := ""; json.Unmarshal(m.Content, &text) == nil {
		blocks = []block{{Type: "text", Text: text}}
	} else if err := json.Unmarshal(m.Content, &blocks); err != nil {
		l.Errorf("%v", err)
	}
	if m.Role == "system" {
		return nil
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if text := strings.TrimSpace(b.Text); !strings.HasPrefix(text, "<system-reminder>") {
				lines = append(lines, m.Role+" "+text)
			}
		case "tool_use":
			lines = append(lines, fmt.Sprint("call ", b.ID, " ", b.Name, " ", b.Input))
		case "tool_result":
			outcome := b.Content
			if b.Failed {
				outcome = "failed"
			}
			lines = append(lines, fmt.Sprint("result ", b.Call, " ", outcome))
		default:
			lines = append(lines, b.Type)
		}
	}
	return lines
}

// folderOf is the hash of all files of a folder but git's own, and what git says of it.
func (l *bench) folderOf(dir string) string {
	sum, names := sha256.New(), []string(nil)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		names = append(names, d.Name())
		_, e := fmt.Fprintf(sum, "%s %s %d\n%s", path[len(dir):], info.Mode(), len(content), content)
		return errors.Join(err, e)
	})
	if err != nil {
		l.Errorf("%v", err)
	}
	parts := []string{hex.EncodeToString(sum.Sum(nil)), fmt.Sprint(names)}
	if _, err := os.Stat(filepath.Join(dir, ".git")); errors.Is(err, fs.ErrNotExist) {
		return strings.Join(append(parts, "no repository"), "\n")
	}
	for _, args := range [][]string{{"log", "--format=%H.%s"}, {"status", "--porcelain"}, {"fsck", "--full"}} {
		out, err := exec.Command("git", append([]string{"--no-optional-locks", "-C", dir}, args...)...).CombinedOutput()
		parts = append(parts, fmt.Sprintf("%s: %s%v", args[0], out, err))
	}
	return strings.Join(parts, "\n")
}

// TestClaudeForks forks a run of the real CLI at each of its eleven points, five at once: what the API is asked is what it was
// asked there and nothing else, the folder is as it was, with its commits, the fork comes to what its parent came to, and the parent
// is as it was.
func TestClaudeForks(t *testing.T) {
	versions(t, func(t *testing.T, binary string) {
		l := newLab(t, 5*time.Second, 5*time.Minute)
		l.Prog.Claude = binary
		env := l.agentEnv(journeyScripts(t))
		s := watchRequests(l, strings.TrimPrefix(env[0], "ANTHROPIC_BASE_URL="))
		server := &http.Server{Handler: s}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		l.Must(err)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		l.AgentEnv = append(env, "ANTHROPIC_BASE_URL=http://"+listener.Addr().String())
		l.Ready(l.Runner("r1", false))
		l.Flow("parent", journey)
		parent := l.Reach("parent", time.Minute, wire.RunComplete)
		entries, want := l.Stored("parent"), s.of("parent")
		output := parent.Outputs["b"].TextAt("stdout")
		if len(want) != journeySteps+1 || strings.Count(output, "step ") != journeySteps {
			t.Fatalf("%d requests, %q", len(want), output)
		}
		state, folder, session := l.Wake("state", "parent", "--json"), l.folderOf(l.workspace("parent")), l.sessionFile(entries)

		var forks []fork
		done := 0
		addFork := func(at string, open bool) {
			forks = append(forks, fork{fmt.Sprintf("fork%d", len(forks)), at, done, open})
		}
		addFork("sfp-1", false) // the prompt
		for _, x := range entries {
			switch x.E.Payload.(type) {
			case *wire.ToolIntent:
				addFork(strconv.FormatUint(x.Pos, 10), true)
			case *wire.AgentTool:
				done++
				addFork(fmt.Sprint("sfp-", done+1), false)
			}
		}
		if len(forks) != 2*journeySteps+1 {
			t.Fatalf("%d points: %+v", len(forks), forks)
		}
		for five := range slices.Chunk(forks, 5) {
			var all sync.WaitGroup
			for _, f := range five {
				all.Go(func() {
					args := []string{"fork", "parent", "--id", f.id, "--at", f.at}
					if f.open {
						args = append(args, "-m", f.again())
					}
					if _, err := l.Try(args...); err != nil {
						l.Errorf("%v: %v", args, err)
					}
				})
			}
			all.Wait()
			for _, f := range five {
				l.Runs = append(l.Runs, f.id)
				end := l.Reach(f.id, time.Minute, wire.RunComplete)
				text := end.Outputs["b"].TextAt("stdout")
				if text != output {
					l.Errorf("%s at %s: %q, want %q", f.id, f.at, text, output)
				}
				s.judge(f, want)
			}
		}
		if now := l.folderOf(l.workspace("parent")); now != folder {
			l.Errorf("the parent's folder:\n%s\nwant\n%s", now, folder)
		}
		if diff := cmp.Diff(state, l.Wake("state", "parent", "--json")); diff != "" {
			l.Errorf("the parent's state (-before +now):\n%s", diff)
		}
		if diff := cmp.Diff(session, l.sessionFile(entries)); diff != "" {
			l.Errorf("the parent's session (-before +now):\n%s", diff)
		}
		if now := l.Stored("parent"); len(now) != len(entries) {
			l.Errorf("the parent has %d events, before %d", len(now), len(entries))
		}
	})
}

// fork is a fork of the journey at one of its points.
type fork struct {
	id, at string
	done   int  // calls whose result is in its conversation
	open   bool // one more is, which is sealed
}

// again is what a fork is told whose call was sealed: by that the made-up API knows where to go on.
func (f fork) again() string { return fmt.Sprintf("Again [[scn:from%d]]", f.done+1) }

// judge compares what the first request of a fork found with what that of its parent found at the same point.
func (s *scenes) judge(f fork, parent []scene) {
	s.Helper()
	got, there := s.of(f.id), parent[f.done]
	if len(got) != len(parent)-f.done {
		s.Errorf("%s at %s made %d requests, want %d", f.id, f.at, len(got), len(parent)-f.done)
		return
	}
	want, told, last := there.said, "continue", len(got[0].said)-1
	if f.open {
		next := parent[f.done+1].said
		call := next[:len(next)-1] // but its result
		want, told = append(slices.Clone(call), fmt.Sprintf("result toolu_from1step%d failed", f.done+1)), f.again()
	}
	line := got[0].said[last]
	if f.open && (!strings.Contains(line, "forked from another one") || !strings.Contains(line, "has not been executed")) {
		s.Errorf("%s at %s: the agent was told %q", f.id, f.at, line)
	}
	line, _, _ = strings.Cut(line, "\n\n") // and then of the call
	if line != "user "+told {
		s.Errorf("%s at %s: the agent was told %q, want %q", f.id, f.at, line, told)
	}
	if diff := cmp.Diff(want, got[0].said[:last]); diff != "" {
		s.Errorf("%s at %s: the API was asked (-want +got):\n%s", f.id, f.at, diff)
	}
	later := f.done + 1
	if f.open {
		later++
	}
	if strings.Contains(got[0].body, fmt.Sprintf("Now step %d.", later)) {
		s.Errorf("%s at %s: the API was told of step %d", f.id, f.at, later)
	}
	if diff := cmp.Diff(there.folder, got[0].folder); diff != "" {
		s.Errorf("%s at %s: the folder (-parent +fork):\n%s", f.id, f.at, diff)
	}
}

// workspace is the folder of a run.
func (l *bench) workspace(run string) string { return filepath.Join(l.Dir, "workspaces", run) }

// sessionFile is the session file of a run's agent, as its program keeps it.
func (l *bench) sessionFile(entries []lab.Entry) string {
	l.Helper()
	at := slices.IndexFunc(entries, lab.OfType(wire.TypeAgentStart, "a"))
	files, err := filepath.Glob(filepath.Join(l.Dir, "home", ".claude", "projects", "*-parent", entries[at].E.SessionID+".jsonl"))
	l.Must(err)
	if len(files) != 1 {
		l.Fatalf("session files: %v", files)
	}
	b, err := os.ReadFile(files[0])
	l.Must(err)
	return string(b)
}
