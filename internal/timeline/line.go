package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Limits of a line's text, in characters.
const (
	MaxThinking = 300  // of a thinking line
	MaxCommand  = 2000 // of what a person has to allow
	MaxSummary  = 200  // of what follows the first line of a tool line
)

// How lines of type system begin that a timeline tells apart: what is tried again, made shorter, or taken up again after a pause or a crash.
const (
	TriesAgain     = "Retry of "
	CompactsItself = "Auto-compacted"
	Compacts       = "Compacted"
	FailsToCompact = "Compaction failed: "
	ResumesRun     = "Run resumed"
	ResumesAgent   = "Agent resumed"
)

// How lines of type tool begin: of calls that failed, and of the others.
const (
	FailedCall = "❌ "
	DoneCall   = "✅ "
)

// How lines of type system begin that ask a person something.
const (
	AsksPermission = "Permission needed: "
	AsksQuestion   = "Question: "
	AsksMessage    = "💬 " // also what is only said: it ends with (info)
)

// Of returns the line that e is, if it is one. Streamed pieces are none of
// their own: [Timeline] joins them. An event is at most one line.
func Of(e *wire.Event) (t wire.LineType, text string, ok bool) {
	t, text = lineOf(e)
	return t, text, text != ""
}

func lineOf(e *wire.Event) (wire.LineType, string) {
	switch p := e.Payload.(type) {
	case *wire.AgentText:
		return wire.LineText, p.Content
	case *wire.AgentThinking:
		return wire.LineThinking, cutText(p.Content, MaxThinking)
	case *wire.AgentTool:
		return wire.LineTool, toolLine(p)
	case *wire.ToolSealed:
		return wire.LineTool, sealedLine(p)
	case *wire.ExecExit:
		return wire.LineTool, exitLine(p, "")
	case *wire.AgentStart:
		if prompt := promptText(p.Prompt); prompt != "" {
			return wire.LineUser, userLine("prompt", prompt)
		}
		return wire.LineSystem, joinNonEmpty(": ", "Agent started", p.Model)
	case *wire.UserMessage:
		return wire.LineUser, userLine(p.Source, p.Content)
	case *wire.InputReceived:
		return wire.LineUser, userLine(cmp.Or(p.By, "answer"), p.Content.Plain())
	}
	if t, text := errorLine(e); text != "" {
		return t, text
	}
	if text := runLine(e); text != "" {
		return wire.LineSystem, text
	}
	return wire.LineSystem, agentLine(e)
}

// errorLine returns the line of what went wrong.
func errorLine(e *wire.Event) (wire.LineType, string) {
	switch p := e.Payload.(type) {
	case *wire.AgentError:
		if p.Severity == wire.SeverityWarning && p.Attempt == nil { // it goes on, and nothing is tried again
			return wire.LineSystem, "Warning: " + agentErrorText(p)
		}
		return wire.LineError, agentErrorText(p)
	case *wire.NodeError:
		line := joinNonEmpty(": ", e.Node()+" failed"+durationNote(p.DurationMs), cmp.Or(p.Error, p.ErrorType))
		if p.RetryAt != 0 {
			line += "; it goes on at " + UTCText(p.RetryAt)
		}
		return wire.LineError, line
	case *wire.FlowComplete:
		if p.Status == wire.FlowStatusFailed {
			return wire.LineError, joinNonEmpty(": ", "Run failed"+durationNote(p.DurationMs), p.Error)
		}
	case *wire.NodeScheduled:
		if p.Error != "" {
			return wire.LineError, e.Node() + " can't start: " + p.Error
		}
	case *wire.CommandReceived:
		switch {
		case p.Accepted:
		case p.Command.TextAt("type") == "notice": // what has become of a run below: there is nobody left to tell it
			return wire.LineSystem, joinNonEmpty(": ", commandText(p)+" came too late", aboutCommand(p.Command))
		default:
			return wire.LineError, joinNonEmpty(": ", commandText(p)+" rejected", p.Reason)
		}
	case *wire.StorageFailure:
		return wire.LineError, joinNonEmpty(", ", "Storage failure: "+p.Message, formatCount(p.Dropped, "event", "dropped"))
	case *wire.RawMessage:
		if p.Reason != "" {
			return wire.LineError, joinNonEmpty(": ", "Unreadable "+cmp.Or(p.Name, "message")+" from "+p.Source, p.Reason)
		}
	case *wire.AuditCheckpoint:
		if p.Result == wire.AuditFail {
			return wire.LineError, "Audit " + p.CheckpointID + " failed" + durationNote(p.DurationMs)
		}
	}
	return "", ""
}

// agentErrorText follows the alerts of seeds/004: "rate limited (retry 2/5)". Some agents
// put the count of tries behind their message themselves.
func agentErrorText(p *wire.AgentError) string {
	s := p.Message
	if p.Attempt != nil && p.MaxAttempts > 0 {
		s = strings.TrimSuffix(s, fmt.Sprintf(": retry %d/%d", *p.Attempt, p.MaxAttempts))
	}
	if s == "" {
		s = p.ErrorType
	} else if !strings.Contains(s, p.ErrorType) {
		s = p.ErrorType + ": " + s
	}
	switch {
	case p.Attempt != nil && p.MaxAttempts > 0 && p.Severity == wire.SeverityError: // no other follows
		s += fmt.Sprintf(" (given up after retry %d/%d)", *p.Attempt, p.MaxAttempts)
	case p.Attempt != nil && p.MaxAttempts > 0:
		s += fmt.Sprintf(" (retry %d/%d)", *p.Attempt, p.MaxAttempts)
	case p.Attempt != nil && *p.Attempt > 0:
		s += fmt.Sprintf(" (retry %d)", *p.Attempt)
	}
	return s
}

// runLine returns the line of what happened to the run or one of its nodes.
func runLine(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		return joinNonEmpty(" ", "Run started:", cmp.Or(p.FlowName, "unnamed flow")+forRunText(p.ParentRun))
	case *wire.RunForked:
		return fmt.Sprintf("Forked from %s at %s", p.ParentRun, cmp.Or(p.Label, strconv.FormatUint(p.ParentPos, 10)))
	case *wire.FlowComplete:
		return "Run complete" + durationNote(p.DurationMs)
	case *wire.FlowPaused:
		return joinNonEmpty(": ", "Run paused"+InBrackets(p.Reason), p.Message)
	case *wire.FlowResumed:
		return resumedText(p)
	case *wire.FlowAborted:
		return joinNonEmpty(": ", "Run aborted", p.Reason)
	case *wire.NodeScheduled:
		if p.Attempt > 1 {
			return fmt.Sprintf(TriesAgain+"%s: attempt %d", e.Node(), p.Attempt)
		}
	case *wire.LoopIterate:
		return fmt.Sprintf("Loop %s: iteration %d", p.EdgeID, p.Iteration)
	case *wire.NodeSkipped:
		return e.Node() + " skipped (" + p.Reason + ")"
	case *wire.NodeCancelled:
		return joinNonEmpty(": ", e.Node()+" cancelled", p.Reason)
	case *wire.NodeWaiting:
		return e.Node() + " waits until " + UTCText(p.Until)
	case *wire.NodeStart:
		return e.Node() + " started" + InBrackets(p.NodeType)
	case *wire.NodeComplete:
		return e.Node() + " done" + durationNote(p.DurationMs)
	case *wire.InputRequested:
		return joinNonEmpty(" ", AsksQuestion+p.Prompt, choicesText(p.Choices))
	case *wire.LogTruncated:
		return joinNonEmpty(": ", truncatedText(p), p.Reason)
	case *wire.CommandReceived:
		return joinNonEmpty(": ", commandText(p), aboutCommand(p.Command))
	}
	return ""
}

// UTCText is a time (Unix ms) as texts tell it.
func UTCText(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.DateTime + " UTC") }

// commandText names a command, the node it is for and its sender: the user, or, if the server
// doesn't name one, the name in the command.
func commandText(p *wire.CommandReceived) string {
	s := joinNonEmpty(" ", "Command", p.Command.TextAt("type"))
	if node := p.Command.TextAt("nodeId"); node != "" {
		s += " to " + node
	}
	return s + byText(cmp.Or(p.By, p.Command.TextAt("by")))
}

// aboutCommand is what a command says, in its most telling field.
func aboutCommand(command wire.Raw) string {
	for _, key := range []string{"message", "content", "reason", "label", "callId", "at"} {
		if s := command.Get(key).Plain(); s != "" {
			return cutText(s, MaxSummary)
		}
	}
	return ""
}

// resumedText says how a run goes on. The strategy crash is what every resumption does unless it is told otherwise, be there a crash or not.
func resumedText(p *wire.FlowResumed) string {
	s, strategy := ResumesRun, p.Strategy
	if strategy == "crash" {
		strategy = ""
	}
	switch {
	case p.Hold && p.Strategy == "manual":
		s = "Open calls stay open, the run stays paused"
	case p.Hold:
		s = "Open calls are closed, the run stays paused"
	}
	return joinNonEmpty(", ", joinNonEmpty(": ", s+InBrackets(strategy), p.Message),
		listText("again", p.Rerun), listText("given up", p.Fail), overridesText(p.Overrides))
}

func overridesText(settings wire.Raw) string {
	if s := settings.Plain(); s != "" && s != "{}" {
		return "with " + cutText(s, MaxSummary)
	}
	return ""
}

func listText(what string, nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return what + ": " + strings.Join(nodes, ", ")
}

func truncatedText(p *wire.LogTruncated) string {
	if p.Lost > 0 {
		return formatCount(int64(p.Lost), "event", "lost")
	}
	return fmt.Sprintf("Log hidden after %d", p.AtSeq)
}

func agentLine(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.AgentInit:
		return "Session initialized: " + joinNonEmpty(", ", e.SessionID, p.Model)
	case *wire.SessionBound:
		return "Session changed: " + joinNonEmpty(" → ", p.OldSession, p.NewSession)
	case *wire.AgentResumed:
		return joinNonEmpty(", ", ResumesAgent+InBrackets(p.Strategy), formatCount(int64(len(p.Sealed)), "open call", "sealed"))
	case *wire.AgentComplete:
		return joinNonEmpty(" · ", "Agent complete", formatCount(p.NumTurns, "turn", ""), formatDollars(p.TotalCostUsd), formatDuration(p.DurationMs))
	case *wire.AgentPaused:
		return joinNonEmpty(": ", "Agent paused", p.Reason)
	case *wire.AgentAborted:
		return joinNonEmpty(": ", "Agent aborted", p.Reason)
	case *wire.TurnEnd:
		if p.IsError {
			return joinNonEmpty(" · ", "Turn complete ("+cmp.Or(p.Subtype, "error")+")", formatDollars(p.TurnCostUsd))
		}
	case *wire.Compaction:
		return compactionText(p)
	case *wire.CCMessage:
		return fmt.Sprintf(AsksMessage+"%q%s", Line(p.Text, 4*MaxSummary), InBrackets(string(p.Priority)))
	case *wire.TodoChanged:
		return todoText(p)
	case *wire.PermissionRequired:
		if s := questionText(p.ToolName, p.ToolInput); s != "" {
			return AsksQuestion + s
		}
		return joinNonEmpty("\n", AsksPermission+p.ToolName, cutText(cmp.Or(Input(p.ToolInput), p.Description), MaxCommand))
	case *wire.PermissionDecided:
		return joinNonEmpty(": ", "Permission "+decisionText(p.Decision)+byText(p.By), p.Note)
	case *wire.HookFired:
		return hookText(p)
	case *wire.ExecStart:
		return "$ " + cutText(p.Command, MaxSummary)
	case *wire.Checkpoint:
		if p.Kind == wire.CheckpointLabelled {
			return "Bookmark " + p.Label
		}
	case *wire.AuditCheckpoint:
		return fmt.Sprintf("Audit %s: %s%s", p.CheckpointID, p.Result, durationNote(p.DurationMs))
	}
	return ""
}

func compactionText(p *wire.Compaction) string {
	if p.Error != "" {
		return FailsToCompact + p.Error
	}
	s := CompactsItself
	if p.Trigger == "manual" {
		s = Compacts
	}
	if p.PreTokens == 0 {
		return s
	}
	was := "was " + formatTokens(p.PreTokens) + " tokens"
	if p.PostTokens > 0 {
		was += ", now " + formatTokens(p.PostTokens)
	}
	return s + InBrackets(was)
}

// todoText names the item that is worked on, else the next one.
func todoText(p *wire.TodoChanged) string {
	s := fmt.Sprintf("📋 [%d/%d]", p.Done, p.Total)
	next := " all done"
	for _, item := range slices.Backward(p.Items) {
		if item.Status == "in_progress" {
			return s + " " + cutText(cmp.Or(item.ActiveForm, item.Content), MaxSummary)
		}
		if item.Status != "completed" {
			next = " next: " + cutText(item.Content, MaxSummary)
		}
	}
	return s + next
}

// hookText is a line only if the hook changed what happened.
func hookText(p *wire.HookFired) string {
	name := cmp.Or(p.HookName, p.HookEvent)
	switch {
	case p.Error != "":
		return "Hook " + name + " failed: " + cutText(p.Error, MaxSummary)
	case p.Decision != "" && p.Decision != "allow" && p.Decision != "continue":
		return joinNonEmpty("\n", "Hook "+name+": "+p.Decision, cutText(p.Output, MaxSummary))
	}
	return ""
}

func userLine(source, text string) string { return "[" + source + "] " + text }

// promptText returns the text of a prompt: a string, or messages with content
// that is a string or a list of blocks.
func promptText(prompt wire.Raw) string {
	if s, ok := prompt.Text(); ok {
		return s
	}
	var parts []string
	collectText(prompt.Any(), &parts)
	if len(parts) == 0 && prompt.Any() != nil {
		return prompt.Plain()
	}
	return strings.Join(parts, "\n")
}

func collectText(v any, parts *[]string) {
	switch v := v.(type) {
	case string:
		*parts = append(*parts, v)
	case []any:
		for _, item := range v {
			collectText(item, parts)
		}
	case map[string]any:
		for _, key := range []string{"message", "content", "text"} {
			if inner, ok := v[key]; ok {
				collectText(inner, parts)
				return
			}
		}
	}
}
