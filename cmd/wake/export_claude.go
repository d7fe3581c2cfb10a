package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"wake/internal/agent/claude"
	"wake/internal/export"
	"wake/internal/timeline"
	"wake/internal/transcript"
	"wake/pkg/wire"
)

// exportClaude writes the session of an agent: the file that was kept of it or,
// where none was, what the log says of the conversation.
func (a *app) exportClaude(ctx context.Context, src source, m *meter, out *output, o exportOptions, done *exported) error {
	if src.until { // its sessions are known at the end
		for _, err := range m.count(src.events(ctx)) {
			if err != nil {
				return err
			}
		}
		src.until = false
	}
	all, err := export.Conversations(src.events(ctx, wire.KindAgent))
	if err != nil {
		return err
	}
	c, err := choose(all, o.node)
	if err != nil {
		return err
	}
	if !o.rebuild && src.query.From == 0 && src.query.To == 0 {
		kept, err := a.keptSession(ctx, src, c.Session)
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
	done.Result, err = src.whole(ctx, m, func(events export.Events) (export.Result, error) {
		return export.Claude(out, src.run(), events, c)
	})
	done.Source = "log"
	return err
}

// choose returns the conversation of the node, or the only one.
func choose(all []export.Conversation, node string) (export.Conversation, error) {
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
		return export.Conversation{}, failure(string(wire.CodeNotFound), "the other formats need none", "the run has no agent with a session")
	case node != "":
		return export.Conversation{}, failure(string(wire.CodeNodeNotFound), hint, "no agent of the run is %q", node)
	}
	return export.Conversation{}, usage(hint, "--node: the run has %d agents", len(all))
}

// keptSession returns the session file that was kept, or nil.
func (a *app) keptSession(ctx context.Context, src source, session string) ([]byte, error) {
	store, err := transcript.Open(ctx, src.log.JetStream(), a.names, src.log.Keys())
	if err != nil {
		return nil, err
	}
	return store.Load(ctx, session)
}

// claudeHint says how the session is gone on with. The folder and the session are
// the agent's words: a session that isn't named as Claude Code names them could
// be a path or a flag, and has no command; nor has a folder that can't be printed
// as it is.
func claudeHint(done exported, file string) []string {
	from := "written from the log"
	if done.Source == "kept" {
		from = "the file that was kept"
	}
	lines := []string{fmt.Sprintf("session %s, %d lines, %s", done.Session, done.Written, from)}
	if done.Cwd == "" || !sessionName.MatchString(done.Session) {
		return lines
	}
	at := filepath.ToSlash(claude.SessionFile(done.Cwd, done.Session))
	hint := fmt.Sprintf("hint: cp %s ~/.claude/%s && cd %s && claude --resume %s", word(file), word(at), word(done.Cwd), done.Session)
	if timeline.Line(hint, maxMessage) != hint {
		return lines
	}
	return append(lines, hint)
}

var (
	sessionName = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
	plainWord   = regexp.MustCompile(`^[\w./][\w./+:@%=,-]*$`)
)

// word is a text as one word of a shell's command, which is nothing but text there.
func word(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
