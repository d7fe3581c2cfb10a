package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/ask"
	sessions "code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// adoptOptions are the settings of an adoption.
type adoptOptions struct {
	forkOptions

	fork      bool
	workspace string
	config    string
}

func (a runVerbs) adoptCommand() *cobra.Command {
	var o adoptOptions
	cmd := &cobra.Command{
		Use:   "adopt RUN",
		Short: "Go on with a session that is watched, as a run that wake executes",
		Long: `Go on with a session of Claude Code that wake watches, or that was ingested, as a run
that wake executes: with its conversation, its model and permissions, and its folder,
of which the run gets a git worktree with what isn't committed. The session itself
isn't touched. Prints the id of the new run.

    wake adopt 1294c3b9 -m "now the tests"
    wake adopt 1294c3b9 --workspace ~/src/parser   in this folder as it is
    wake release RUN                               the way back, into a terminal`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.adoptRun(cmd.Context(), args[0], o) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&o.message, "message", "m", "", "the `text` that the agent is told (default: continue)")
	flags.BoolVar(&o.fork, "fork", false, "also while a process holds the session: both go on, each by itself")
	flags.StringVar(&o.workspace, "workspace", "", "`folder` to work in, as it is (default: a worktree of the session's own)")
	flags.StringArrayVar(&o.sets, "set", nil, "change a setting of the agent, `key=value`: model, permissionMode, maxTurns …")
	flags.StringVar(&o.id, "id", "", "`id` of the new run (default: a new ULID)")
	flags.StringVar(&o.config, "settings", "", "`folder` of settings that has the session (default: CLAUDE_CONFIG_DIR, or ~/.claude)")
	flags.BoolVar(&o.follow, "follow", false, "follow the new run until it is complete")
	return cmd
}

func (a runVerbs) adoptRun(ctx context.Context, ref string, o adoptOptions) error {
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	r := client.ForkRequest{NewID: o.id, Message: o.message}
	r.NewID = cmp.Or(r.NewID, newRunID())
	if err := subjects.CheckNewRun(r.NewID); err != nil {
		return usageError("", "--id: %w", err)
	}
	if r.RunID, err = s.FindSession(ctx, ref); err != nil {
		return err
	}
	state, err := s.State(ctx, r.RunID)
	switch {
	case err != nil:
		return err
	case state.Imported == "":
		return usageError("wake resume "+ask.ShellWord(r.RunID)+", or wake fork "+ask.ShellWord(r.RunID), "run %s is executed by wake already", r.RunID)
	}
	found, err := a.findSession(state, o.config)
	if err != nil {
		return err
	}
	if h := found.holder; h.PID != 0 && !o.fork {
		return serviceError(string(wire.CodeLeaseHeld), "end it there, or --fork", "the session is held: %s", h)
	}
	own := worktree{}
	if o.workspace == "" {
		if own, err = a.makeWorktree(ctx, found.about.Cwd, r.NewID); err != nil {
			return err
		}
		o.workspace = own.folder
	} else if o.workspace, err = filepath.Abs(o.workspace); err != nil {
		return err
	}
	if r.Overrides, err = s.overridesOf(ctx, r.RunID, found.listSettings(o)); err != nil {
		return errors.Join(err, own.removeTree(ctx))
	}
	fork, err := s.Fork(ctx, r)
	unsure := wire.HasCode(err, wire.CodeTimeout, wire.CodeUnreachable, wire.CodeInternal) // the run may begin
	if _, refused := errors.AsType[*wire.APIError](err); refused && !unsure {
		return errors.Join(err, own.removeTree(ctx))
	}
	switch {
	case err != nil:
		return err
	case o.follow:
		return a.followFork(ctx, s, fork.RunID)
	case a.json:
		return a.printJSON(fork)
	}
	a.printNote("it works in %s\n", timeline.Line(o.workspace, maxMessage))
	_, err = fmt.Fprintln(a.out, fork.RunID)
	return err
}

// foundSession is a session as this machine has it.
type foundSession struct {
	about  sessions.About
	holder sessions.Holder
}

// listSettings returns those of the session, and then those that were asked for.
func (f foundSession) listSettings(o adoptOptions) []string {
	sets := []string{"workspace=" + o.workspace}
	if f.about.Model != "" {
		sets = append(sets, "model="+f.about.Model)
	}
	if f.about.Mode != "" {
		sets = append(sets, "permissionMode="+f.about.Mode)
	}
	return append(sets, o.sets...)
}

// sessionFolders are the folders of settings that have sessions: the named one, or those of this user.
func sessionFolders(named string) ([]string, error) {
	if named != "" {
		return sessions.Folders([]string{named}, os.LookupEnv)
	}
	return sessions.Folders(nil, os.LookupEnv)
}

// findSession finds what this machine has of the session of a run: nothing, if it was elsewhere.
func (a *app) findSession(state *wire.State, config string) (found foundSession, err error) {
	folders, err := sessionFolders(config)
	if err != nil {
		return found, err
	}
	id := state.Labels["session"]
	for node, session := range state.AgentSessions {
		if id == "" || node == "agent" {
			id = session
		}
	}
	if !sessionName().MatchString(id) {
		return found, nil
	}
	for _, dir := range folders {
		if h, held := sessions.Holders(dir)[id]; held {
			found.holder = h
		}
		projects := filepath.Join(dir, "projects")
		folders, err := os.ReadDir(projects)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return found, err
		}
		for _, folder := range folders {
			in, err := os.Open(filepath.Join(projects, folder.Name(), id+".jsonl"))
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
				continue
			} else if err != nil {
				return found, err
			}
			lines := claude.NewLineReader(in, maxSessionLine)
			for err = nil; err == nil; {
				var line []byte
				if line, _, err = lines.Next(); err == nil {
					found.about.Note(line)
				}
			}
			_ = in.Close() // it was only read
			if !errors.Is(err, io.EOF) {
				return found, err
			}
		}
	}
	return found, nil
}

// maxSessionLine bounds a line that is read to know what a session is about.
const maxSessionLine = 64 << 20

// worktree is that of a session's repository which `wake adopt` has made for the new run; the zero value is none.
type worktree struct {
	root   string // of the repository
	path   string
	folder string // in it, to work in
}

// removeTree removes the worktree of a run that doesn't begin.
func (w worktree) removeTree(ctx context.Context) error {
	if w.path == "" {
		return nil
	}
	_, err := gitOutput(context.WithoutCancel(ctx), w.root, "worktree", "remove", "--force", w.path)
	return err
}

// gitOutput runs git in a folder, without what the repository's settings would have it run.
func gitOutput(ctx context.Context, folder string, args ...string) (string, error) {
	var problem bytes.Buffer
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", folder, "-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor="}, args...)...)
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("git %s: %s", args[0], timeline.Line(strings.TrimSpace(problem.String()), maxMessage))
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// makeWorktree makes a worktree of the repository that a folder is in, with what isn't committed there.
func (a *app) makeWorktree(ctx context.Context, dir, id string) (worktree, error) {
	if dir == "" {
		return worktree{}, usageError("where its settings are elsewhere, name their folder: --settings DIR or CLAUDE_CONFIG_DIR; else name a folder to work in: --workspace DIR", "the session isn't found on this machine")
	}
	if !filepath.IsLocal(id) || filepath.Base(id) != id {
		return worktree{}, usageError("choose another --id, or name a folder to work in: --workspace DIR", "no folder can have the name %q", id)
	}
	prefix, err := gitOutput(ctx, dir, "rev-parse", "--show-prefix")
	if err != nil {
		return worktree{}, usageError("name a folder to work in: --workspace DIR", "%s is in no git repository: %w", timeline.Line(dir, maxMessage), err)
	}
	w := worktree{}
	if w.root, err = gitOutput(ctx, dir, "rev-parse", "--show-toplevel"); err != nil {
		return worktree{}, err
	}
	if w.path, err = filepath.Abs(filepath.Join(a.server.DataDir, "adopted", id)); err != nil {
		return worktree{}, err
	}
	w.folder = filepath.Join(w.path, filepath.FromSlash(prefix))
	if err := os.MkdirAll(filepath.Dir(w.path), 0o700); err != nil {
		return worktree{}, err
	}
	if _, err := gitOutput(ctx, w.root, "worktree", "add", "--detach", w.path, "HEAD"); err != nil {
		return worktree{}, err
	}
	if err := w.copyChanges(ctx); err != nil {
		return worktree{}, errors.Join(err, w.removeTree(ctx))
	}
	return w, nil
}

// copyChanges has what isn't committed in the repository's folder in the worktree, too.
func (w worktree) copyChanges(ctx context.Context) error {
	changes, err := gitOutput(ctx, w.root, "stash", "create")
	if err != nil {
		return err
	}
	if changes != "" {
		if _, err := gitOutput(ctx, w.path, "stash", "apply", "--index", changes); err != nil {
			return err
		}
	}
	added, err := gitOutput(ctx, w.root, "ls-files", "-z", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	return copyFiles(w.root, w.path, strings.Split(strings.TrimSuffix(added, "\x00"), "\x00"))
}

// copyFiles copies files from one folder into another; nothing leads out of either.
func copyFiles(from, to string, names []string) error {
	source, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // it was only read
	target, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }() // files are closed by themselves
	for _, name := range names {
		info, err := source.Lstat(name)
		if name == "" || err != nil || !info.Mode().IsRegular() {
			continue // it is gone, or a link
		}
		content, err := source.ReadFile(name)
		if err != nil {
			return err
		}
		if err := target.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := target.WriteFile(name, content, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}
