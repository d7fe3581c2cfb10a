package main

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// exportSession writes the session of an agent: for Claude Code the file that was kept of it; where none was, and
// for Codex, what the log says of the conversation.
func (a fileVerbs) exportSession(ctx context.Context, src source, m *meter, out *exportOutput, o exportOptions, done *exportSummary) error {
	if src.until { // its sessions are known at the end
		for _, err := range m.countEvents(src.readEvents(ctx)) {
			if err != nil {
				return err
			}
		}
		src.until = false
	}
	all, err := export.Conversations(src.readEvents(ctx, wire.KindAgent))
	if err != nil {
		return err
	}
	c, err := chooseConversation(all, o.node)
	if err != nil {
		return err
	}
	write := export.Codex
	if o.format == formatClaude {
		write = export.Claude
	}
	if o.format == formatClaude && !o.rebuild && src.query.From == 0 && src.query.To == 0 {
		kept, err := src.log.Session(ctx, src.query.Run, c.Session)
		if err != nil {
			return err
		}
		if len(kept) > 0 {
			done.Result = export.Result{RunID: src.query.Run, Written: strings.Count(string(kept), "\n"), Session: c.Session, Cwd: c.Cwd}
			done.Source = "kept"
			_, err := out.Write(kept)
			return err
		}
	}
	done.Result, err = src.exportWhole(ctx, m, func(events export.Events) (export.Result, error) {
		return write(out, src.runInfo(), events, c)
	})
	done.Source = "log"
	return err
}

// chooseConversation returns the conversation of the node, or the only one.
func chooseConversation(all []export.Conversation, node string) (export.Conversation, error) {
	var names []string
	for _, c := range all {
		if c.Node == node || node == "" && len(all) == 1 {
			return c, nil
		}
		names = append(names, c.Node)
	}
	hint := "its agents are " + strings.Join(names, ", ")
	switch {
	case len(all) == 0:
		return export.Conversation{}, serviceError(string(wire.CodeNotFound), "wake status RUN shows its agents, and which of them has a session", "the run has no agent with a session")
	case node != "":
		return export.Conversation{}, serviceError(string(wire.CodeNodeNotFound), hint, "no agent of the run is %q", node)
	}
	return export.Conversation{}, usageError(hint, "--node: the run has %d agents", len(all))
}

// sessionHint says how the session is gone on with. The folder and the session are
// the agent's words: a session that isn't named as Claude Code names them could
// be a path or a flag, and has no command; nor has a folder that doesn't fit into
// a line, or has several spaces in a row.
func sessionHint(done exportSummary, file string) []string {
	from := "written from the log"
	if done.Source == "kept" {
		from = "the file that was kept"
	}
	lines := []string{fmt.Sprintf("session %s, %d lines, %s", done.Session, done.Written, from)}
	if done.Written == 0 {
		return append(lines, "nothing was said in it: there is nothing to go on with")
	}
	if done.Cwd == "" || !sessionName().MatchString(done.Session) {
		return lines
	}
	at := filepath.ToSlash(claude.SessionFile(done.Cwd, done.Session))
	hint := fmt.Sprintf("hint: cp %s ~/.claude/%s && cd %s && claude --resume %s", ask.ShellWord(file), ask.ShellWord(at), ask.ShellWord(done.Cwd), done.Session)
	if done.Format == formatCodex {
		at = export.CodexFile(done.Session, time.UnixMilli(done.Begun))
		hint = fmt.Sprintf("hint: mkdir -p ~/.codex/%s && cp %s ~/.codex/%s && cd %s && codex resume %s",
			path.Dir(at), ask.ShellWord(file), at, ask.ShellWord(done.Cwd), done.Session)
	}
	if timeline.Line(hint, maxMessage) != hint {
		return lines
	}
	return append(lines, hint)
}

var sessionName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
})
