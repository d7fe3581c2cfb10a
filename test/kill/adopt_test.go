//go:build kill && claudecli

package kill_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// A session of each version of the CLI, in a repository with changes that aren't committed, is watched, adopted, forked and released again: the
// model is sent what it was sent before and then the rest, each of them has its folder, and the session and its folder stay as they are.
func TestClaudeAdopted(t *testing.T) {
	versions(t, func(t *testing.T, binary string) {
		p, err := build()
		if err != nil {
			t.Fatal(err)
		}
		l := &bench{lab.Empty(t, lab.Config{Programs: p, TTL: 5 * time.Second, Limit: 5 * time.Minute, Seed: *seedFlag, Keep: *keepFlag})}
		l.Prog.Claude = binary
		scripts := map[string]string{"begin": `{"turns":[
{"blocks":[{"t":"text","text":"I write it."},{"t":"tool","name":"Write","input":{"file_path":"${CWD}/made","content":"made\n"}}]},
{"blocks":[{"t":"text","text":"It is written."}]}]}`}
		for _, name := range []string{"adopted", "forked", "released"} {
			scripts[name] = fmt.Sprintf(`{"turns":[{"blocks":[{"t":"tool","name":"Bash","input":{"command":"echo %[1]s >> made && cat made && ls"}}]},{"blocks":[{"t":"text","text":"%[1]s it is."}]}]}`, name)
		}
		config := filepath.Join(l.Dir, "settings")
		env := append(l.agentEnv(scripts), "CLAUDE_CONFIG_DIR="+config, "IS_SANDBOX=1")
		l.AgentEnv = env
		const id = "5e551011-0000-4000-8000-00000000000a"
		project := filepath.Join(l.Dir, "project")
		l.Must(os.Mkdir(project, 0o700))
		l.shell(project, nil, "git init -q && git config user.email a@b.c && git config user.name a && echo 1 >f && git add f && git commit -qm 1 && echo 2 >>f && echo 3 >new")
		claude := func(dir, args string) {
			l.shell(dir, env, l.Prog.Claude+" --dangerously-skip-permissions -p "+args)
		}
		claude(project, "'Begin [[scn:begin]]' --session-id "+id)
		files, err := filepath.Glob(filepath.Join(config, "projects", "*", id+".jsonl"))
		if err != nil || len(files) != 1 {
			t.Fatalf("the files of the session: %v, %v", files, err)
		}
		look := func() string { // but for objects of git that nothing refers to
			folder, _, _ := strings.Cut(l.folderOf(project), "fsck:")
			return folder
		}
		kept, folder := l.content(files[0]), look()

		l.Up("up", "--watch", "--idle", "1s")
		l.Until("the session is told", 30*time.Second, func() bool {
			out, err := l.wakeIn(config, "status", id)
			return err == nil && strings.Contains(out, "paused")
		})
		work := func(args ...string) {
			if out, err := l.wakeIn(config, args...); err != nil {
				t.Fatalf("%v: %v %s", args, err, out)
			}
			l.Reach(args[len(args)-1], time.Minute, wire.RunComplete)
		}
		begun := l.sent("begin")
		work("adopt", id, "--message", "Go on [[scn:adopted]]", "--id", "adopted")
		adopted := l.continues("adopted", begun)
		worktree := filepath.Join(l.Dir, "up", "adopted", "adopted")
		if got := l.content(filepath.Join(worktree, "made")) + l.content(filepath.Join(worktree, "f")) + l.content(filepath.Join(worktree, "new")); got != "made\nadopted\n1\n2\n3\n" {
			t.Errorf("its folder has %q", got)
		}
		work("fork", "adopted", "--message", "Another way [[scn:forked]]", "--id", "forked")
		l.continues("forked", adopted)
		if got := l.content(filepath.Join(worktree, "made")); got != "made\nadopted\n" {
			t.Errorf("the folder of what was forked has %q", got)
		}
		if got := l.content(filepath.Join(l.workspace("forked"), "made")); got != "made\nadopted\nforked\n" {
			t.Errorf("the folder of the fork has %q", got)
		}
		command, err := l.wakeIn(config, "release", "adopted", "--json")
		l.Must(err)
		var released struct{ Session, Cwd string }
		l.Must(json.Unmarshal([]byte(command), &released))
		claude(released.Cwd, "'And here [[scn:released]]' --resume "+released.Session)
		l.continues("released", adopted)
		if got := l.content(filepath.Join(worktree, "made")); got != "made\nadopted\nreleased\n" {
			t.Errorf("the folder that was released has %q", got)
		}
		if got := l.content(files[0]); got != kept {
			t.Errorf("the session's file was touched: %s", cmp.Diff(kept, got))
		}
		if got := look(); got != folder {
			t.Errorf("the session's folder was touched: %s, before %s", got, folder)
		}
	})
}

func (l *bench) shell(dir string, env []string, command string) {
	l.Helper()
	c := exec.CommandContext(l.Ctx, "/bin/sh", "-c", command)
	c.Dir, c.Env = dir, append(l.Env(""), env...)
	if out, err := c.CombinedOutput(); err != nil {
		l.Fatalf("%s: %v: %s", command, err, out)
	}
}

func (l *bench) content(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		l.Errorf("%v", err)
	}
	return string(b)
}

// wakeIn runs a verb with a folder of settings.
func (l *bench) wakeIn(config string, args ...string) (string, error) {
	c := exec.CommandContext(l.Ctx, l.Prog.Wake, args...)
	c.Env, c.Dir = append(l.Env(""), "WAKE_NATS_URL="+l.URL, "CLAUDE_CONFIG_DIR="+config, "WAKE_DATA_DIR="+filepath.Join(l.Dir, "up")), l.Dir
	out, err := c.Output()
	return string(out), err
}

// sent is what the model was sent last by a scenario, line by line.
func (l *bench) sent(scenario string) (lines []string) {
	l.Helper()
	files, err := filepath.Glob(filepath.Join(l.Dir, "requests", "*-"+scenario+"-*.json"))
	l.Must(err)
	slices.Sort(files)
	for _, file := range slices.Backward(files) {
		var request struct{ Messages, Tools []json.RawMessage }
		l.Must(json.Unmarshal([]byte(l.content(file)), &request))
		if len(request.Tools) == 0 {
			continue // of the small model
		}
		for _, m := range request.Messages {
			lines = append(lines, l.wordsOf(m)...)
		}
		return lines
	}
	l.Fatalf("the model was never sent %s", scenario)
	return nil
}

// continues returns what the model was sent last by a scenario, which is to go on from what it was sent before.
func (l *bench) continues(scenario string, before []string) []string {
	l.Helper()
	after := l.sent(scenario)
	if len(after) <= len(before) || !slices.Equal(before, after[:len(before)]) {
		l.Errorf("what the model was sent by %s doesn't go on from what was before:\n%s", scenario, cmp.Diff(before, after))
	}
	l.Logf("%s: %d lines were sent, %d of them before", scenario, len(after), len(before))
	return after
}
