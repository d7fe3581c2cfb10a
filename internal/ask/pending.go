package ask

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Pending lists what waits for a person in a run, the longest waiting first: what is [Open] and has no answer. One that was given
// while the run is paused waits there until the run goes on.
func Pending(s *wire.State) []wire.Approval {
	return slices.DeleteFunc(Open(s), func(a wire.Approval) bool { return HasAnswer(s, a) })
}

// HasAnswer reports whether the answer to an open question has come and is on its way to the agent, node or hook that asked.
func HasAnswer(s *wire.State, a wire.Approval) bool {
	return slices.ContainsFunc(s.Inbox, func(m wire.InboxEntry) bool {
		switch kind := m.Command.TextAt("type"); a.Kind {
		case wire.ApprovalAsk:
			return run.RepliesTo(a.CallID)(m.Command)
		case wire.ApprovalMessage:
			return a.CallID != "" && m.Node == a.NodeID && m.Command.TextAt("answers") == a.CallID
		case wire.ApprovalCall, wire.ApprovalQuestion:
			return (kind == "approve" || kind == "deny") && m.Node == a.NodeID && m.Command.TextAt("callId") == a.CallID
		}
		return false
	})
}

// Open lists the questions of agents, ask nodes and hooks in a run to which they have no answer yet, the longest waiting first: none in a run
// that has ended, and none in a copy of one, which its original answers. In a run that strategy manual holds, all open calls are among
// them: a person has to say what becomes of them.
func Open(s *wire.State) []wire.Approval {
	all := []wire.Approval{}
	if s.Status != wire.RunRunning && s.Status != wire.RunPaused || s.Imported == wire.ImportedCopy {
		return all
	}
	for _, c := range s.Tools {
		if c.State == wire.ToolApprovalRequired || s.Held && s.Status == wire.RunPaused {
			all = append(all, approvalOfCall(c))
		}
	}
	for node, n := range s.Nodes {
		if !n.Open() {
			continue
		}
		if n.PromptID != "" {
			all = append(all, approvalOfNode(node, n))
		}
		for _, q := range n.Asked {
			all = append(all, wire.Approval{
				Kind: wire.ApprovalMessage, NodeID: node, CallID: q.ID, Text: q.Text, Priority: q.Priority, Since: q.Since,
			})
		}
	}
	named := map[string]int{}
	for _, a := range all {
		named[a.CallID]++
	}
	for i := range all {
		all[i].RunID = s.RunID
		all[i].Answer = answerCommand(all[i])
		if id := all[i].CallID; id != "" && named[id] > 1 { // ids are those of agents, which may count their calls
			all[i].Answer += " --node " + ShellWord(all[i].NodeID)
		}
	}
	slices.SortFunc(all, Older)
	return all
}

// Older orders by how long something waits, the longest first.
func Older(a, b wire.Approval) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.RunID, b.RunID), strings.Compare(a.NodeID, b.NodeID), strings.Compare(a.CallID, b.CallID))
}

func approvalOfCall(c wire.ToolCall) wire.Approval {
	a := wire.Approval{
		Kind: wire.ApprovalCall, NodeID: c.Node, CallID: c.CallID, ToolName: c.Tool, ToolInput: c.Input, Since: cmp.Or(c.AskedAt, c.Since),
	}
	if c.Tool == Tool {
		a.Kind = wire.ApprovalQuestion
		a.Questions, _ = Questions(c.Input) // what is no question is shown as its input
		a.Text = Line(a.Questions)
	}
	return a
}

func approvalOfNode(node string, n wire.NodeState) wire.Approval {
	a := wire.Approval{Kind: wire.ApprovalAsk, NodeID: node, CallID: n.PromptID, Since: cmp.Or(n.PromptAt, n.StartedAt)}
	q := wire.AskQuestion{Question: cmp.Or(n.Prompt, n.Input.Get("prompt").Plain())}
	choices, _ := n.Input.Get("choices").Any().([]any)
	for _, c := range choices {
		raw, err := wire.Marshal(c)
		if err == nil {
			q.Options = append(q.Options, wire.AskOption{Label: raw.Plain()})
		}
	}
	a.Text = Line([]wire.AskQuestion{q})
	if len(q.Options) > 0 {
		a.Questions = []wire.AskQuestion{q}
	}
	return a
}

// answerCommand is the command line that answers. A message without an id can only be answered by
// a message.
func answerCommand(a wire.Approval) string {
	switch {
	case a.Kind == wire.ApprovalCall:
		return "wake approve " + ShellWord(a.RunID) + " " + ShellWord(a.CallID)
	case a.CallID == "":
		return "wake steer " + ShellWord(a.RunID) + " ANSWER --node " + ShellWord(a.NodeID)
	}
	return "wake reply " + ShellWord(a.RunID) + " ANSWER --prompt " + ShellWord(a.CallID)
}

// ShellWord is a text as a shell takes it for one word, all of which can be seen: other characters are escaped as bash, zsh and ksh
// know it.
func ShellWord(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return escapedWord(s)
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,=", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// escapedWord is ShellWord of a text with characters that can't be seen.
func escapedWord(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == '\'' || r == '\\':
			b.WriteString(`\` + string(r))
		case unicode.IsPrint(r) && r != utf8.RuneError:
			b.WriteRune(r)
		default:
			for _, c := range []byte(s[:size]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		s = s[size:]
	}
	return "$'" + b.String() + "'"
}
