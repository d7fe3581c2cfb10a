package run

import (
	"cmp"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// maxCommandIDs bounds the memory of commands that were seen. The same command
// comes twice within seconds, not after hundreds of others.
const maxCommandIDs = 256

// commandReceived records a command and puts one that asks for something into
// the inbox. It may stand before flow:start: what was refused is kept too.
func (f *fold) commandReceived(p *wire.CommandReceived) error {
	if err := f.byOwner(); err != nil {
		return err
	}
	f.s.CommandPos = max(f.s.CommandPos, p.AtPos)
	if p.CommandID != "" {
		if slices.Contains(f.s.CommandIDs, p.CommandID) {
			return nil
		}
		ids := f.s.CommandIDs
		if len(ids) >= maxCommandIDs {
			ids = slices.Clone(ids[len(ids)-maxCommandIDs+1:])
		}
		f.s.CommandIDs = append(ids, p.CommandID)
	}
	if !p.Accepted {
		return nil
	}
	switch p.Command.TextAt("type") {
	case "send", "reply", "resume", "pause", "abort", "approve", "deny", "bookmark", CommandNotice:
		f.s.Inbox = append(f.s.Inbox, wire.InboxEntry{
			ID:   cmp.Or(p.CommandID, fmt.Sprintf("@%d", f.pos.Seq)),
			Node: p.Command.TextAt("nodeId"), Exec: p.Command.TextAt("execId"), Command: p.Command,
		})
		if p.Command.TextAt("type") == CommandNotice {
			f.trimNotices()
		}
	}
	return nil
}

// removeObeyed takes out the commands that the event obeys.
func (f *fold) removeObeyed(obeyed func(command wire.Raw) bool) {
	f.s.Inbox = slices.DeleteFunc(f.s.Inbox, func(c wire.InboxEntry) bool { return obeyed(c.Command) })
}

func isResumable(command wire.Raw) bool {
	yes, _ := command.Get("resumable").Any().(bool)
	return yes
}
