package work

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/subjects"
)

// workdir is where an execution works.
type workdir struct {
	path  string
	fresh bool // it was made just now
	git   bool // it is a clone
}

// errorSandbox is the error type of a node if its folder can't be made.
const errorSandbox = "sandbox_init_failed"

// cloneTimeout bounds how long a repository may take to clone.
const cloneTimeout = 15 * time.Minute

// openWorkdir finds the folder of the execution: the run's, or one of its own,
// which is made unless an earlier worker has made it here. Its error is a
// [failure] if that is the flow's fault or that of what it names.
func (x *execution) openWorkdir(ctx context.Context) error {
	repository, isGit := x.def.Git()
	if !isGit && x.def.Workspace != "node" {
		x.workdir = workdir{path: x.state.Workspace}
		if _, err := os.Stat(x.state.Workspace); x.def.Workspace == flow.WorkspaceShared && errors.Is(err, fs.ErrNotExist) {
			return sandboxError("find the shared workspace", fmt.Errorf("this runner has no %s: all runners want the same volume as --workspaces, or the flow `workspace: node`", x.state.Workspace))
		}
		return nil
	}
	dir := filepath.Join(x.cfg.Workspaces, subjects.Escape(x.offer.RunID), subjects.Escape(x.offer.ExecID))
	x.workdir = workdir{path: dir, git: isGit}
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return sandboxError("make the workspace", err)
	}
	x.workdir.fresh = true
	if !isGit {
		if err := x.awaitRoom(func() error { return x.cfg.User.MakeDir(dir) }); err != nil {
			if x.ctx.Err() != nil || errors.Is(err, errHalted) {
				return err // the folder isn't at fault
			}
			return sandboxError("make the workspace", err)
		}
		return nil
	}
	err := cloneRepository(ctx, repository, dir, x.cfg.User)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return sandboxError("clone "+withoutSecret(repository.URL), err)
	}
	return nil
}

func sandboxError(doing string, err error) error {
	return &failure{message: fmt.Sprintf("%s: %v", doing, err), kind: errorSandbox}
}

// cloneRepository makes dir a clone of a repository that the user owns, or leaves no trace of it: a folder
// that is there is whole.
func cloneRepository(ctx context.Context, g flow.Git, dir string, user *process.User) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, ".clone-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // gone if it was renamed
	ctx, cancel := context.WithTimeout(ctx, cloneTimeout)
	defer cancel()
	args := []string{"clone", "--quiet"}
	if g.Ref != "" {
		args = append(args, "--no-checkout")
	}
	if err := runGit(ctx, parent, append(args, "--", g.URL, tmp)...); err != nil {
		return err
	}
	if g.Ref != "" {
		if err := checkoutRef(ctx, tmp, g.Ref); err != nil {
			return err
		}
	}
	if err := user.Own(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// checkoutRef checks out a branch, a tag or a commit, also one that no branch of
// the clone leads to.
func checkoutRef(ctx context.Context, dir, ref string) error {
	err := runGit(ctx, dir, "checkout", "--quiet", ref, "--")
	if err == nil {
		return nil
	}
	if runGit(ctx, dir, "fetch", "--quiet", "--", "origin", ref) != nil {
		return fmt.Errorf("it has no branch, tag or commit %q", ref)
	}
	return runGit(ctx, dir, "checkout", "--quiet", "--detach", "FETCH_HEAD", "--")
}

// gitGrace is how long git may take to end when it is told to.
const gitGrace = 2 * time.Second

// runGit runs git in a folder. Git prompts for nothing, and the error is what
// git says.
func runGit(ctx context.Context, dir string, args ...string) error {
	argv := append([]string{"git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"}, args...)
	p, err := process.Start(process.Config{Argv: argv, Dir: dir, Env: gitEnvironment(os.Environ()), KeepStderr: true})
	if err != nil {
		return err
	}
	_ = p.Stdin.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, p.Stdout)
	}()
	exit, waitErr := p.Wait(ctx)
	err = p.End(gitGrace)
	<-read
	switch {
	case errors.Is(waitErr, context.DeadlineExceeded):
		return fmt.Errorf("git took longer than %s", cloneTimeout)
	case waitErr != nil:
		return waitErr
	case exit.Code != 0:
		return errors.New(withoutSecret(gitWords(p.Words())))
	}
	return err
}

// gitEnvironment is the environment of git: nothing of another repository, no
// question to a terminal, no transport that runs programs.
func gitEnvironment(environ []string) []string {
	add := map[string]string{
		"GIT_TERMINAL_PROMPT": "0",
		"GIT_ALLOW_PROTOCOL":  "https:http:ssh:git:file",
		"GIT_SSH_COMMAND":     "ssh -oBatchMode=yes",
		"LC_ALL":              "C",
	}
	var kept []string
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		switch key {
		case "GIT_SSH_COMMAND": // an operator that sets it knows better
			delete(add, key)
			kept = append(kept, kv)
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE":
		default:
			kept = append(kept, kv)
		}
	}
	return agent.Environment(kept, add)
}

// gitWords returns what git says in its last lines.
func gitWords(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if stderr == "" {
		return "git failed"
	}
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

var secret = regexp.MustCompile(`://[^/@\s]*:[^/@\s]*@`)

// withoutSecret hides passwords in URLs.
func withoutSecret(s string) string { return secret.ReplaceAllString(s, "://…@") }
