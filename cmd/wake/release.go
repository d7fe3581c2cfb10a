package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/durable"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a fileVerbs) releaseCommand() *cobra.Command {
	var node, config string
	cmd := &cobra.Command{
		Use:   "release RUN",
		Short: "Put the session of a run where a person can go on with it",
		Long: `Put the session of a run where Claude Code looks for it, and print the command by which
a person goes on with it in a terminal. The run must not be at work: pause it first.
What goes on there is the person's: wake watch sees it as a session.

    wake pause RUN && wake release RUN`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.releaseRun(cmd.Context(), args[0], node, config)
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the `node` whose session it is")
	cmd.Flags().StringVar(&config, "settings", "", "`folder` of settings to put it in (default: CLAUDE_CONFIG_DIR, or ~/.claude)")
	return cmd
}

func (a fileVerbs) releaseRun(ctx context.Context, ref, node, config string) error {
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	id, err := s.FindSession(ctx, ref)
	if err != nil {
		return err
	}
	state, err := s.State(ctx, id)
	switch {
	case err != nil:
		return err
	case state.Status == wire.RunRunning && state.Imported == "":
		return serviceError(string(wire.CodeLeaseHeld), "wake pause "+ask.ShellWord(id), "run %s is at work", id)
	}
	log, err := a.readerOn(ctx, s.conn)
	if err != nil {
		return err
	}
	src, err := a.findSource(ctx, log, eventlog.Query{Run: id}, false)
	if err != nil {
		return err
	}
	all, err := export.Conversations(src.readEvents(ctx, wire.KindAgent))
	if err != nil {
		return err
	}
	c, err := chooseConversation(all, node)
	if err != nil {
		return err
	}
	if c.Cwd == "" || !sessionName().MatchString(c.Session) {
		return serviceError(codeFailed, "wake export "+ask.ShellWord(id)+" --format claude", "run %s has no session with a folder that a person could go on with", id)
	}
	folders, err := sessionFolders(config)
	if err != nil {
		return err
	}
	var content bytes.Buffer
	var done exportSummary
	m := a.newMeter("release", "events").start()
	err = a.exportSession(ctx, src, m, &exportOutput{Writer: &content}, exportOptions{format: formatClaude, node: c.Node}, &done)
	m.eraseLine()
	if err != nil {
		return err
	}
	file := filepath.Join(folders[0], claude.SessionFile(c.Cwd, c.Session))
	there := ""
	if state.Imported != "" {
		there = watchedFile(folders, file, content.Bytes())
	}
	switch {
	case there == "":
		err = placeSession(file, content.Bytes())
	case there != file: // a copy would be another session to those that watch
		err = serviceError(codeFailed, "go on with it from the folder that this one is of, or move it to "+timeline.Line(file, maxMessage), "the session is in %s", timeline.Line(there, maxMessage))
	}
	if err != nil {
		return err
	}
	command := fmt.Sprintf("cd %s && claude --resume %s", ask.ShellWord(c.Cwd), c.Session)
	switch {
	case a.json:
		return a.printJSON(map[string]string{"runId": id, "session": c.Session, "cwd": c.Cwd, "file": file, "command": command})
	case timeline.Line(command, maxMessage) != command:
		return serviceError(codeFailed, "--json tells it", "the folder of the session can't be printed as it is")
	}
	_, err = fmt.Fprintln(a.out, command)
	return err
}

// watchedFile returns the file of a session that is watched, if it is in a folder of sessions: where it is wanted, or elsewhere. It has other
// bytes than what is made of the log, and at least as many lines.
func watchedFile(folders []string, file string, content []byte) string {
	for _, folder := range folders {
		names := []string{file}
		projects, _ := fs.Glob(os.DirFS(folder), "projects/*") // the pattern is one
		for _, project := range projects {
			names = append(names, filepath.Join(folder, project, filepath.Base(file)))
		}
		for _, name := range names {
			if b, err := os.ReadFile(name); err == nil && bytes.Count(b, []byte("\n")) >= bytes.Count(content, []byte("\n")) {
				return name
			}
		}
	}
	return ""
}

// placeSession writes the file of a session, unless the file there goes as far. It never replaces another conversation.
func placeSession(file string, content []byte) error {
	there, err := os.ReadFile(file)
	switch {
	case err == nil && bytes.HasPrefix(there, content):
		return nil
	case err == nil && !bytes.HasPrefix(content, there):
		return serviceError(codeFailed, "go on with that, or move it away", "%s has another conversation", timeline.Line(file, maxMessage))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return durable.Write(file, content, 0o600)
}
