package claude

import (
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// readUser takes a line of the user's side: tool results, echoes of messages that
// were sent, and what the program wrote into the conversation itself.
func (n *Normalizer) readUser(m wire.Raw) bool {
	message := m.Get("message")
	blocks, ok := blocksOf(message.Get("content"))
	if !ok {
		return false
	}
	n.bindSession(m)
	t := n.threadOfLine(m)
	if n.isRewritten(t, m, blocks) {
		n.emitRaw(m, rewritten)
		return true
	}
	n.adoptThread(t, blocks)
	var prose []string
	results := readResultLine(t, m)
	for _, b := range blocks {
		switch kind := b.TextAt("type"); {
		case kind == "text":
			prose = append(prose, b.TextAt("text"))
		case isToolResult(kind):
			n.toolResult(t, b, results)
		default:
			n.emitRawBlock(t, "user/"+kind, b)
		}
	}
	if len(prose) > 0 {
		n.userMessage(t, m, strings.Join(prose, "\n"))
	}
	return true
}

func (n *Normalizer) userMessage(t *thread, m wire.Raw, content string) {
	sent, ours := n.sent[m.TextAt("uuid")]
	if ours {
		delete(n.sent, m.TextAt("uuid"))
	} else {
		sent.Source = n.sourceOf(t, m, content)
	}
	if n.opt.Format == Transcript {
		n.endMessage(t)
	}
	n.local = n.local || t.main && strings.HasPrefix(content, localCommand)
	if t.main && sent.Source != "synthetic" {
		n.tally.Active, n.tally.Asked, n.tally.Failed = true, true, ""
	}
	if strings.HasPrefix(content, taskNotification) && n.notified > 0 {
		n.notified-- // the report came within a turn
	}
	if sent.Source == "prompt" && content == n.prompt {
		n.prompt = "" // it stands in agent:start; said again, it is a message
		return
	}
	n.emitForThread(t, &wire.UserMessage{Content: content, Source: sent.Source, CommandID: sent.CommandID, Point: pointOf(t, m)})
}

// sourceOf tells a message's writer.
func (n *Normalizer) sourceOf(t *thread, m wire.Raw, content string) string {
	switch {
	case !t.main:
		return "subagent"
	case isTrue(m, "isSynthetic"), isTrue(m, "isMeta"), isTrue(m, "isCompactSummary"), programText(content):
		return "synthetic"
	case isTrue(m, "isReplay"):
		return "replay"
	case n.opt.Format == Transcript, n.inits == 0:
		return "prompt"
	}
	return "synthetic"
}

// taskNotification begins the report of a task in the background.
const taskNotification = "<task-notification>"

// localCommand begins a command of the user that the program obeys itself.
const localCommand = "<command-name>"

// programText recognises by their beginning what the program writes in the
// user's name: notes of an interruption, and local commands with their output.
func programText(content string) bool {
	return hasAnyPrefix(content, "[Request interrupted by user", "<local-command-", localCommand, "<command-message>", "<bash-", taskNotification)
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// adoptThread finds the call that started a sub-agent with messages in the
// transcript of the main thread: it has the sub-agent's first message as its prompt, and is no other sub-agent's.
func (n *Normalizer) adoptThread(t *thread, blocks []wire.Raw) {
	if t.main || t.Parent != "" || len(blocks) == 0 {
		return
	}
	prompt := blocks[0].TextAt("text")
	for _, id := range n.open {
		if c := n.calls[id]; !c.done && !c.adopted && prompt != "" && c.input.TextAt("prompt") == prompt {
			t.Parent, c.adopted = id, t.Agent != "" // older versions don't tell their sub-agents apart
			return
		}
	}
}

// refusedCalls are the calls of which a line of results says that they were refused.
func refusedCalls(m wire.Raw) map[string]bool {
	refused := map[string]bool{}
	for _, meta := range slices.Backward(m.Get("tool_result_meta").Items()) { // the first one of a call counts
		decision := meta.TextAt("permission_decision", "decision")
		refused[meta.TextAt("id")] = meta.TextAt("non_execution_kind") != "" || decision == "reject" || decision == "deny"
	}
	return refused
}

// isRefusal recognises a refusal by its words: older versions have no other sign.
func isRefusal(message string) bool {
	switch {
	case strings.HasPrefix(message, "Permission to use "),
		strings.Contains(message, "haven't granted it yet"),
		strings.Contains(message, "requires approval"),
		strings.Contains(message, "require approval"),
		strings.Contains(message, " was blocked. For security, Claude Code"):
		return true
	}
	return false
}
