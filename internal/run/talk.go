package run

import (
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

const (
	// reasonQuestion is why a node waits after its agent has asked its parent.
	reasonQuestion = "question"
	// maxAsked bounds the questions of an agent that are remembered: an agent that asks
	// more is blocked by the first ones.
	maxAsked = 32
	// maxQuestion is how much of each is remembered, in characters.
	maxQuestion = 2000
	// maxNotices bounds the notices that wait for an agent.
	maxNotices = 20
	// CommandNotice is the type of a command that tells whichever agent of the run is
	// at work something, or the next one. It answers nothing.
	CommandNotice = "notice"
)

// ccMessage marks an agent that asks its parent as blocked until it is answered.
func (f *fold) ccMessage(a actor, p *wire.CCMessage) {
	if !f.isOwnAgent(a) || p.Priority == wire.PriorityInfo {
		return
	}
	if len(a.n.Asked) < maxAsked {
		a.n.Asked = append(slices.Clone(a.n.Asked), wire.Question{
			ID: f.e.CallID, Position: f.pos.Seq, Text: firstChars(p.Text, maxQuestion), Priority: p.Priority, Since: f.e.Timestamp,
		})
	}
	a.n.Reason, a.n.AgentStatus = reasonQuestion, statusBlocked
	f.putActor(a)
}

// userMessage takes the command that sent it out of the inbox, and answers what
// the agent has asked.
func (f *fold) userMessage(a actor, p *wire.UserMessage) {
	command := f.takeCommand(p.CommandID)
	notice := command.TextAt("type") == CommandNotice
	said := p.Source != "synthetic" && p.Source != "subagent"
	if f.isOwnAgent(a) && len(a.n.Asked) > 0 && said && !notice {
		f.removeQuestion(a, command.TextAt("answers"))
	}
	if f.isOwnAgent(a) {
		f.forkPoint(a.id, p.Point)
	}
}

// removeQuestion takes out the question that was answered: with "", all of them.
func (f *fold) removeQuestion(a actor, id string) {
	i := slices.IndexFunc(a.n.Asked, func(q wire.Question) bool { return q.ID == id })
	switch {
	case id == "":
		a.n.Asked = nil
	case i >= 0:
		a.n.Asked = slices.Delete(slices.Clone(a.n.Asked), i, i+1) // a copy: states share it
	}
	if len(a.n.Asked) == 0 {
		a.n.Asked = nil
		a.n.Reason, a.n.AgentStatus = "", "thinking"
	}
	f.putActor(a)
}

// takeCommand takes a command out of the inbox and returns it. Notices are handed over
// together: with one go those before it.
func (f *fold) takeCommand(id string) wire.Raw {
	i := slices.IndexFunc(f.s.Inbox, func(c wire.InboxEntry) bool { return c.ID == id })
	if id == "" || i < 0 {
		return nil
	}
	entry := f.s.Inbox[i]
	if entry.Command.TextAt("type") != CommandNotice {
		f.s.Inbox = slices.DeleteFunc(f.s.Inbox, func(c wire.InboxEntry) bool { return c.ID == id })
		return entry.Command
	}
	rest := slices.Clone(f.s.Inbox[i+1:])
	before := slices.DeleteFunc(f.s.Inbox[:i], func(c wire.InboxEntry) bool { return c.Command.TextAt("type") == CommandNotice })
	f.s.Inbox, f.s.NoticesLost = append(before, rest...), 0
	return entry.Command
}

// trimNotices drops the oldest notice if there are too many.
func (f *fold) trimNotices() {
	isNotice := func(c wire.InboxEntry) bool { return c.Command.TextAt("type") == CommandNotice }
	n := 0
	for _, c := range f.s.Inbox {
		if isNotice(c) {
			n++
		}
	}
	if n <= maxNotices {
		return
	}
	oldest := slices.IndexFunc(f.s.Inbox, isNotice)
	f.s.Inbox = slices.Delete(f.s.Inbox, oldest, oldest+1)
	f.s.NoticesLost++
}
